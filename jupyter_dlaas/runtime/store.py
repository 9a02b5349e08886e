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

from jupyter_dlaas.runtime.orphans import last_s, ttl_s
from jupyter_dlaas.runtime.process import kill_round

__all__ = ["listen", "main"]

_LOOK_S: Final = 5.0


def listen(host: str = "127.0.0.1") -> socket.socket:
    """A listening socket on a free port: bound before anybody is told the port, so nobody can take it away."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((host, 0))
    sock.listen(1024)
    return sock


def main(arguments: list[str]) -> None:
    """Host the store until killed, or until no guardian has held the job for so long that nobody of it should be left.

    Who is there all the same (stopped, or in native code that lets no thread of Python run) is killed then.
    """
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
    lonely_s, look_s, most_s = 0.0, min(_LOOK_S, ttl_s() / 4), last_s()
    while lonely_s < most_s:
        time.sleep(look_s)
        lonely_s = 0.0 if _is_guarded(job_dir) else lonely_s + look_s
    kill_round(job_dir)
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
