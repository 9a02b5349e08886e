"""Log files of a job as its guardian follows them: indexed, masked and capped when they grow."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.jobdir.log_cap import LogCap
from jupyter_dlaas.jobdir.log_index import LOG, LogIndex, LogMask
from jupyter_dlaas.runtime.system.inotify import Watch
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask

__all__ = ["Following"]

GATHER_S: Final = 0.02
"""Seconds between looks at logs that keep growing."""
_POLL_S: Final = 0.1


class Following:
    """Followed log files and the time of the next look at them."""

    def __init__(self, job_dir: Path, mask: Mask = NO_MASK) -> None:
        self._job_dir, self._mask = job_dir, mask
        self._masks: dict[int, LogMask] = {}
        self._caps: dict[int, LogCap] = {}
        self._indices: dict[int, LogIndex] = {}
        self._watch = Watch()
        self._gather_at = 0.0

    def begin(self, member: int) -> None:
        """Follow the log of a learner."""
        folder = learner_folder(self._job_dir, member)
        self._caps[member] = LogCap(folder)
        with suppress(OSError):
            self._indices[member] = LogIndex(folder)
            self._watch.add(folder)
            self._indices[member].look()
        if self._mask.forms:
            self._masks[member] = LogMask(folder, self._mask)
            self._masks[member].look()

    def end(self, member: int) -> None:
        """Process the end of an ended learner's log and stop following it."""
        if member in self._masks:
            self._masks.pop(member).look()
        if member in self._indices:
            self._indices.pop(member).look()
            self._watch.remove(learner_folder(self._job_dir, member))
        cap = self._caps.pop(member, None) or LogCap(learner_folder(self._job_dir, member))
        cap.finish()

    def fd(self, now: float) -> int | None:
        """Return a descriptor that becomes readable when a log grows; None while the next look is not due."""
        return self._watch.fd if now >= self._gather_at else None

    def due(self, now: float) -> float | None:
        """Return the time of the next look if no descriptor becomes readable."""
        times = [self._gather_at] if now < self._gather_at else []
        return min([*times, now + _POLL_S] if self._watch.must_poll else times, default=None)

    def look(self, ready: set[int]) -> None:
        """Process new log data if a look is due."""
        if not (self._watch.fd in ready or self._watch.must_poll) or time.monotonic() < self._gather_at:
            return
        names = {path.parent.name for path in self._watch.read() if path.name == LOG}
        for member, index in self._indices.items():
            if f"learner-{member}" in names and index.look():
                self._gather_at = time.monotonic() + GATHER_S
                if member in self._masks:
                    self._masks[member].look()
                self._caps[member].look()
