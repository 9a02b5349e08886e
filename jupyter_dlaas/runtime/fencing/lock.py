"""Exclusive lock of a job's guardian. The system releases it when the holder ends."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import connect
from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.jobdir.journal_replay import replay
from jupyter_dlaas.runtime.fencing.watchdog import keep
from jupyter_dlaas.runtime.system.process import JOB_MARK, Identity, environment_of, identity

__all__ = ["LOCK", "PROBE", "SOCKET", "Lock", "find_guardian", "hold"]

LOCK: Final = "guardian.lock"
SOCKET: Final = "guardian.sock"
PROBE: Final = b'{"t":"probe"}'
"""Line by which an engine checks that a guardian still reads its socket; the guardian closes the connection."""
_PATIENCE_S: Final = 5.0
_UCRED: Final = struct.Struct("3i")


class Lock:
    """Lock of a job, held until this process ends."""

    def __init__(self, path: Path, fd: int, watchdog: int | None = None) -> None:
        """Take over the descriptor of the lock, and the pidfd of the watchdog."""
        self._path, self._fd, self._watchdog = path, fd, watchdog

    def end_watchdog(self) -> None:
        """End the watchdog before the job's last processes are searched for, in which it would be found as one more."""
        if self._watchdog is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watchdog, signal.SIGKILL)
            select.select([self._watchdog], [], [], _PATIENCE_S)
            os.close(self._watchdog)
            self._watchdog = None

    def renew(self) -> bool:
        """Take the lock again if its file was removed or replaced. Return False if another guardian holds the new one.

        If the job directory is gone, no other process can hold it.
        """
        mine = os.fstat(self._fd)
        try:
            there = self._path.stat()
            if (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev):
                return True
        except OSError:
            if not self._path.parent.is_dir():
                return True
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        os.close(self._fd)
        self._fd = fd
        return True


def hold(job_dir: Path, start_watchdog: Callable[[Path], int] = keep) -> Lock | None:
    """Take a job's lock for the lifetime of this process. Return None if another guardian holds it.

    Wait up to 5 s for a guardian that has written its final fact and is about to exit. Taking the lock also starts a
    watchdog, whose pidfd `start_watchdog` returns.
    """
    path = job_dir / LOCK
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if replay(read_facts(job_dir / "journal.jsonl")[0]).closed_revision is None or time.monotonic() > deadline:
                os.close(fd)
                return None
        else:
            return Lock(path, fd, start_watchdog(job_dir))
        time.sleep(0.005)


def find_guardian(job_dir: Path) -> Identity | None:
    """Return the guardian of the job: the process that listens on its socket, otherwise the holder of its lock.

    The lock is not tried, because even a short hold would keep out a guardian that is starting. The kernel's list of
    locks comes last: reading it takes milliseconds, and stops all other changes of locks on the machine.
    """
    for find, name in ((_listener, SOCKET), (_lock_holders, LOCK)):
        for pid in find(job_dir / name):
            who = identity(pid)
            if who is not None and environment_of(pid).get(JOB_MARK) == str(job_dir):
                return who
    return None


def _lock_holders(path: Path) -> list[int]:
    """Return the pids that hold a `flock` on a file. Devices are not compared: some file systems report another."""
    try:
        inode, locks = path.stat().st_ino, Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return []
    found = []
    for line in locks.splitlines():
        fields = line.split()  # "3: FLOCK ADVISORY WRITE 5899 fe:00:9986154 0 EOF"; "->" marks waiters
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            with suppress(ValueError):
                found.append(int(fields[4]))
    return [pid for pid in found if pid > 0]


def _listener(path: Path) -> list[int]:
    """Return the pid that listens on a Unix socket, as the kernel reports it."""
    try:
        with connect(socket.SOCK_STREAM, path, timeout_s=0.2) as sock:
            pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    except OSError:
        return []
    return [pid] if pid > 0 else []
