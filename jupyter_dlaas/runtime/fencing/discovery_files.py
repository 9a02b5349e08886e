"""Discovery files of a guardian: lock, sockets and status.json. The guardian restores each one that is lost."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import bind, write_whole
from jupyter_dlaas.runtime.fencing.callers import Callers
from jupyter_dlaas.runtime.fencing.lock import SOCKET, Lock
from jupyter_dlaas.runtime.system.process import Identity

__all__ = ["STATUS", "WAKE", "Presence"]

STATUS: Final = "status.json"
WAKE: Final = "guardian.wake"
LOOK_S: Final = 5.0
"""Seconds between checks of the files. They may be slow, because an engine finds a guardian by its lock too."""
RETRY_S: Final = 1.0


class Presence:
    """Discovery files by which engine and learners find a guardian."""

    def __init__(self, job_dir: Path, lock: Lock, now: float) -> None:
        self._job_dir, self._lock = job_dir, lock
        self._inodes: dict[str, int] = {}
        self.wake = self._bind(WAKE)
        self.callers = Callers(self._bind(SOCKET))
        self._status = b""
        self._is_written = True
        self._look_s = now + LOOK_S

    def _bind(self, name: str) -> socket.socket:
        path = self._job_dir / name
        is_stream = name == SOCKET
        sock = bind(socket.SOCK_STREAM if is_stream else socket.SOCK_DGRAM, path, listen=128 if is_stream else None)
        sock.setblocking(False)
        self._inodes[name] = path.lstat().st_ino
        return sock

    def _is_lost(self, name: str) -> bool:
        try:
            return (self._job_dir / name).lstat().st_ino != self._inodes[name]
        except OSError:
            return True

    def due(self, now: float) -> float:
        """Return the time of the next `look`, by the monotonic clock."""
        return self._look_s if self._is_written else min(self._look_s, now + RETRY_S)

    def look(self, now: float) -> bool:
        """Restore lost files and retry failed writes. Return False if another guardian holds the job's lock."""
        is_due = now >= self._look_s
        if is_due:
            self._look_s = now + LOOK_S
            if not self._lock.renew():
                return False
            with suppress(OSError):  # no directory or no space: the next look tries again
                self._bind_again()
        if not self._is_written or (is_due and not (self._job_dir / STATUS).exists()):
            self._write()
        return True

    def _bind_again(self) -> None:
        if self._is_lost(WAKE):
            lost, self.wake = self.wake, self._bind(WAKE)
            lost.close()
        if self._is_lost(SOCKET):
            lost, self.callers.listener = self.callers.listener, self._bind(SOCKET)
            lost.close()

    def write_status(
        self,
        me: Identity,
        learners: Mapping[int, Identity],
        store: Identity | None,
        port: int | None = None,
        **under_way: list[int],
    ) -> None:
        """Write the processes of the job, and the port of the rendezvous store.

        `starting` and `joining` list members that may appear at any moment.
        """
        body: dict[str, object] = {"pid": me.pid, "start": me.start, "boot": me.boot}
        body["learners"] = {str(member): {"pid": who.pid, "start": who.start} for member, who in learners.items()}
        if store is not None:
            body["store"] = {"pid": store.pid, "start": store.start, "port": port}
        self._status = json.dumps(body | under_way).encode()
        self._write()

    def _write(self) -> None:
        self._is_written = False
        with suppress(OSError):  # full disk: the journal is authoritative, this file only a shortcut
            write_whole(self._job_dir / STATUS, self._status)
            self._is_written = True

    def close(self) -> None:
        """Close the sockets and remove their files: an engine that finds no socket starts the next guardian."""
        for shut, name in ((self.wake.close, WAKE), (self.callers.close, SOCKET)):
            with suppress(OSError):
                (self._job_dir / name).unlink(missing_ok=True)
            shut()
