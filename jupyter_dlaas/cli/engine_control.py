"""Looking at a running engine, and stopping it, from outside. Standard library only."""

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


def _pid_behind(directory: Path) -> int | None:
    """The process that listens on the pool's socket, told by the kernel: a file could name one that is long gone."""
    try:
        with discovery.connect_unix(directory / discovery.SOCKET, 2.0) as one:
            pid, _uid, _gid = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        return None
    return int(pid)


def state(directory: Path) -> dict[str, Any] | None:
    """What the running engine wrote about itself; None where none runs."""
    pid = _pid_behind(directory)
    return None if pid is None else discovery.engine_record(directory) | {"pid": pid}


def stop(directory: Path, timeout_s: float = 20.0) -> int | None:
    """End the engine in good order and wait until it is gone; its process id, None where none ran. Jobs go on."""
    pid = _pid_behind(directory)
    if pid is None:
        return None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        if _pid_behind(directory) == pid:  # asked again with the process held, so that the number cannot mean another
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        watch = select.poll()
        watch.register(handle, select.POLLIN)  # readable once the process has ended, collected by its parent or not
        if not watch.poll(timeout_s * 1000):
            raise Unavailable(f"the engine (process {pid}) has not ended after {timeout_s:g} s")
    finally:
        os.close(handle)
    return pid
