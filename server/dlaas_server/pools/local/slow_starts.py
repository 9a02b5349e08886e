"""Guardians whose Python takes long to start: a cold disk, a large environment, a busy machine."""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass
from typing import Final

from dlaas_server.pools.base import WAITING, Changed
from jupyter_dlaas.wire.waiting import WaitingReason

__all__ = ["SLOW_START_S", "SlowStarts", "is_temporary"]

SLOW_START_S: Final = 1.0
"""Time after which a start is shown as slow. Most take a tenth of it."""
_TEMPORARY: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


def is_temporary(error: BaseException) -> bool:
    """Return whether a process could not be started because the machine is short of processes, memory or files."""
    origin = error if isinstance(error, OSError) else error.__cause__
    return isinstance(origin, OSError) and origin.errno in _TEMPORARY


@dataclass(frozen=True, slots=True)
class _Start:
    interpreter: str
    at_s: float
    timer: asyncio.TimerHandle


class SlowStarts:
    """Starts of guardians, reported through `changed` once they are slow."""

    def __init__(self, changed: Changed, slow_s: float = SLOW_START_S) -> None:
        self._changed = changed
        self._slow_s = slow_s
        self._starts: dict[str, _Start] = {}

    def began(self, job: str, interpreter: str) -> None:
        """Note the start of the job's guardian."""
        self.forget(job)
        timer = asyncio.get_running_loop().call_later(self._slow_s, self._changed, job, WAITING)
        self._starts[job] = _Start(interpreter, time.time(), timer)

    def reasons(self, job: str) -> tuple[WaitingReason, ...]:
        """Return the reason if the start is slow. The caller knows that the guardian has not begun to work."""
        start = self._starts.get(job)
        if start is None or time.time() - start.at_s < self._slow_s:
            return ()
        return (
            WaitingReason(
                code="starting",
                object=start.interpreter,
                what=f"Python is starting: {start.interpreter}.",
                advice="The first start from a slow disk takes long. The job's guardian.log shows problems.",
                since_s=start.at_s,
            ),
        )

    def forget(self, job: str) -> None:
        """Drop what is known of the job's start."""
        start = self._starts.pop(job, None)
        if start is not None:
            start.timer.cancel()

    def close(self) -> None:
        """Cancel all timers."""
        for job in list(self._starts):
            self.forget(job)
