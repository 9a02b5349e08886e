"""A gang's meeting place: a process of its own that hosts torch's TCPStore, so that no learner and no guardian must.

`python -m jupyter_dlaas.runtime.store FD JOB_DIR`: FD listens already, so learners may connect before torch is loaded.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Final

__all__ = ["listen", "main"]

_LONELY_S: Final = 60.0


def listen(host: str = "127.0.0.1") -> socket.socket:
    """A listening socket on a free port: bound before anybody is told the port, so nobody can take it away."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((host, 0))
    sock.listen(1024)
    return sock


def main(arguments: list[str]) -> None:
    """Host the store until killed, or until no guardian has held the job for a minute."""
    fd, job_dir = int(arguments[0]), arguments[1]
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
    lonely_s = 0.0
    while lonely_s < _LONELY_S:
        time.sleep(5.0)
        lonely_s = 0.0 if _is_guarded(job_dir) else lonely_s + 5.0
    del store


def _is_guarded(job_dir: str) -> bool:
    try:
        lock = os.open(f"{job_dir}/guardian.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
