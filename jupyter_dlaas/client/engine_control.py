"""Status and stop of a running engine, from another process. Standard library only."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from pathlib import Path
from typing import Any

from jupyter_dlaas.client import discovery
from jupyter_dlaas.wire.protocol import Unavailable

__all__ = ["state", "stop"]


def _listening_pid(directory: Path) -> int | None:
    """Return the process that listens on the pool's socket, according to the kernel: a pid file could be stale."""
    try:
        with discovery.connect_unix(directory / discovery.SOCKET, 2.0) as connection:
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, _uid, _gid = struct.unpack("3i", peer)
    except OSError:
        return None
    return int(pid)


def state(directory: Path) -> dict[str, Any] | None:
    """Return the record that the running engine wrote about itself, or None if no engine is running."""
    pid = _listening_pid(directory)
    return None if pid is None else discovery.engine_record(directory) | {"pid": pid}


def stop(directory: Path, timeout_s: float = 20.0) -> int | None:
    """Shut the engine down gracefully, wait for its end and return its process id, or None if none ran.

    Jobs keep running. Raises Unavailable if the engine has not ended after `timeout_s`.
    """
    pid = _listening_pid(directory)
    if pid is None:
        return None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        if _listening_pid(directory) == pid:  # the pidfd is open now, so the id cannot be reused
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        watch = select.poll()
        watch.register(handle, select.POLLIN)  # readable once the process has ended, reaped or not
        if not watch.poll(timeout_s * 1000):
            raise Unavailable(f"the engine (process {pid}) did not stop within {timeout_s:g} s")
    finally:
        os.close(handle)
    return pid
