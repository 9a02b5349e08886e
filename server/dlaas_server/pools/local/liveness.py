"""Liveness probe of guardians: one that lives and answers nothing is hung, and its learners wait for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import connect
from jupyter_dlaas.runtime.fencing.lock import SOCKET
from jupyter_dlaas.runtime.system.process import Identity, activity_of

__all__ = ["HUNG_LOOKS", "LivenessProbe"]

PERIOD_LOOKS: Final = 10
"""Looks between two probes of a guardian."""
HUNG_LOOKS: Final = 60
"""Looks without an answer after which a guardian is hung. It may be busy for 30 s while it ends a job's processes."""
_UCRED: Final = struct.Struct("3i")
_PROBE: Final = b'{"t":"probe"}\n'
"""A guardian of any version answers a caller that it does not know, and closes the connection."""


@dataclass(slots=True)
class _Guardian:
    who: Identity
    next_look: int
    unanswered: int = 0
    """Looks since the probe was sent."""
    sock: socket.socket | None = None


class LivenessProbe:
    """Probe of several guardians, driven by `look`, about once a second. Never blocks.

    Time is counted in looks: while the machine sleeps or this process is stopped, there are none.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._guardians: dict[str, _Guardian] = {}

    def look(self, guardians: Mapping[str, tuple[Identity, Path]]) -> list[str]:
        """Probe guardians, given with the directory of their jobs. Return the jobs whose guardians are hung."""
        self._looks += 1
        for job in self._guardians.keys() - guardians.keys():
            self._forget(job)
        hung = []
        for job, (who, root) in guardians.items():
            one = self._guardians.get(job)
            if one is None or one.who != who:
                self._forget(job)
                self._guardians[job] = _Guardian(who, self._looks + PERIOD_LOOKS)
            elif self._is_hung(one, root):
                hung.append(job)
        return hung

    def close(self) -> None:
        """Close all connections."""
        for job in list(self._guardians):
            self._forget(job)

    def _forget(self, job: str) -> None:
        one = self._guardians.pop(job, None)
        if one is not None and one.sock is not None:
            one.sock.close()

    def _is_hung(self, one: _Guardian, root: Path) -> bool:
        if self._looks < one.next_look:
            return False
        if one.sock is None and not _begin(one, root):
            return self._answered(one)
        if one.sock is not None and _has_answered(one.sock):
            return self._answered(one)
        activity = activity_of(one.who)
        if activity is None or not activity.is_out_of_reach:  # one that waits for a disk cannot be ended anyway
            one.unanswered += 1
        return one.unanswered > HUNG_LOOKS

    def _answered(self, one: _Guardian) -> bool:
        if one.sock is not None:
            one.sock.close()
        one.sock, one.unanswered, one.next_look = None, 0, self._looks + PERIOD_LOOKS
        return False


def _begin(one: _Guardian, root: Path) -> bool:
    """Send a probe. Return False if this guardian does not listen now: it starts, closes the job, or was replaced."""
    try:
        sock = connect(socket.SOCK_STREAM, root / SOCKET, timeout_s=0.0)
    except BlockingIOError:
        return True  # so many others wait for an answer that no more may
    except OSError:
        return False
    try:
        pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        sock.send(_PROBE)
    except OSError:
        pid = 0
    if pid != one.who.pid:
        sock.close()
        return False
    one.sock = sock
    return True


def _has_answered(sock: socket.socket) -> bool:
    try:
        sock.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True  # it closed the connection
    return True
