"""Rendezvous store of a gang: a process of its own that hosts torch's TCPStore, so that no learner or guardian has to.

`python -m jupyter_dlaas.runtime.guardian.rendezvous_store FD JOB_DIR`: the socket FD already listens, so learners can
connect before torch is loaded.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from datetime import timedelta

__all__ = ["listen", "main"]


def listen(host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that listens on a free port, bound before the port is announced so that none can take it."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((host, 0))
    sock.listen(1024)
    return sock


def main(arguments: list[str]) -> None:
    """Host the store until the process is killed."""
    fd = int(arguments[0])
    port = socket.socket(fileno=os.dup(fd)).getsockname()[1]
    distributed = importlib.import_module("torch.distributed")
    store = distributed.TCPStore(
        host_name="127.0.0.1",
        port=port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
        master_listen_fd=fd,
        use_libuv=True,
    )
    while store is not None:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
