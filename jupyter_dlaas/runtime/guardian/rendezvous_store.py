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
from typing import Final

__all__ = ["LOOPBACK", "listen", "main"]


LOOPBACK: Final = "127.0.0.1"


def listen(port: int = 0, *, is_public: bool = False) -> socket.socket:
    """Return a socket that listens on a free port, bound before the port is announced so that none can take it.

    `port` asks for that port. Raise OSError if it is taken.

    `is_public` says that it serves other machines, at all addresses of all families that this one has.
    """
    if not is_public:
        return socket.create_server((LOOPBACK, port), backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)


def main(arguments: list[str]) -> None:
    """Host the store until the process is killed."""
    fd = int(arguments[0])
    port = socket.socket(fileno=os.dup(fd)).getsockname()[1]
    distributed = importlib.import_module("torch.distributed")
    store = distributed.TCPStore(
        host_name=LOOPBACK,
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
