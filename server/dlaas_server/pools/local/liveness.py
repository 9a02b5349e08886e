"""Liveness probe of guardians: a guardian that is alive but does not answer is hung, and its learners wait for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import connect
from jupyter_dlaas.runtime.fencing.lock import PROBE, SOCKET
from jupyter_dlaas.runtime.system.process import Identity, activity_of

__all__ = ["HUNG_CHECKS", "LivenessProbe"]

PERIOD_CHECKS: Final = 10
"""Checks between two probes of a guardian."""
HUNG_CHECKS: Final = 60
"""Checks without an answer after which a guardian is hung. It may be busy for 30 s while it ends a job's processes."""
_UCRED: Final = struct.Struct("3i")


@dataclass(slots=True)
class _Guardian:
    identity: Identity
    next_check: int
    unanswered: int = 0
    """Checks since the probe was sent."""
    sock: socket.socket | None = None


class LivenessProbe:
    """Probe of several guardians, driven by `check`, about once a second. Never blocks.

    Time is counted in checks: while the machine sleeps or this process is stopped, there are none.
    """

    def __init__(self) -> None:
        self._checks = 0
        self._guardians: dict[str, _Guardian] = {}

    def check(self, guardians: Mapping[str, tuple[Identity, Path]]) -> list[str]:
        """Probe guardians, given with the directory of their jobs. Return the jobs whose guardians are hung."""
        self._checks += 1
        for job in self._guardians.keys() - guardians.keys():
            self._forget(job)
        hung = []
        for job, (identity, root) in guardians.items():
            guardian = self._guardians.get(job)
            if guardian is None or guardian.identity != identity:
                self._forget(job)
                self._guardians[job] = _Guardian(identity, self._checks + PERIOD_CHECKS)
            elif self._is_hung(guardian, root):
                hung.append(job)
        return hung

    def close(self) -> None:
        """Close all connections."""
        for job in list(self._guardians):
            self._forget(job)

    def _forget(self, job: str) -> None:
        guardian = self._guardians.pop(job, None)
        if guardian is not None and guardian.sock is not None:
            guardian.sock.close()

    def _is_hung(self, guardian: _Guardian, root: Path) -> bool:
        if self._checks < guardian.next_check:
            return False
        if guardian.sock is None and not _begin(guardian, root):
            return self._answered(guardian)
        if guardian.sock is not None and _has_answered(guardian.sock):
            return self._answered(guardian)
        activity = activity_of(guardian.identity)
        if activity is None or not activity.is_out_of_reach:  # a process that waits for a disk cannot be killed anyway
            guardian.unanswered += 1
        return guardian.unanswered > HUNG_CHECKS

    def _answered(self, guardian: _Guardian) -> bool:
        if guardian.sock is not None:
            guardian.sock.close()
        guardian.sock, guardian.unanswered, guardian.next_check = None, 0, self._checks + PERIOD_CHECKS
        return False


def _begin(guardian: _Guardian, root: Path) -> bool:
    """Send a probe. Return False if this guardian does not listen now: it is starting, ending, or was replaced."""
    try:
        sock = connect(socket.SOCK_STREAM, root / SOCKET, timeout_s=0.0)
    except BlockingIOError:
        return True  # its queue of connections is full: other probes wait for an answer
    except OSError:
        return False
    try:
        pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        sock.send(PROBE + b"\n")  # a guardian of any version closes the connection of an unknown caller
    except OSError:
        pid = 0
    if pid != guardian.identity.pid:
        sock.close()
        return False
    guardian.sock = sock
    return True


def _has_answered(sock: socket.socket) -> bool:
    try:
        sock.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True  # it closed the connection
    return True
