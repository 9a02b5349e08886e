"""Decisions of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlaas_server.core.model.cluster import Seat

__all__ = ["Plan", "Preempt", "Resized", "Start", "Wait", "in_queue"]


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a job on these seats, one per learner in rank order."""

    job: str
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Resized:
    """Change of a job to these seats; learners that stay keep theirs."""

    job: str
    seats: tuple[Seat, ...]
    by: str
    why: str = ""
    """Sentence for the owner if another job is the reason."""
    notice_s: float | None = None
    """Seconds that a spot job has for its checkpoint, as in `Preempt`."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Preemption of `job` at its next checkpoint, for `winner`."""

    job: str
    winner: str
    reason: str
    notice_s: float | None = None
    """Seconds that a spot job has for its checkpoint, even if it has none yet."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of a job, in the queue or below its wished size (`place` 0). `reason` is shown as it stands."""

    job: str
    reason: str
    place: int = 0
    of: int = 0

    @property
    def is_queued(self) -> bool:
        """True if the job waits in the queue; False if it runs below its wished size."""
        return self.place > 0


def in_queue(waits: Iterable[Wait]) -> list[Wait]:
    """Return the waits of queued jobs, in queue order."""
    return sorted((wait for wait in waits if wait.is_queued), key=lambda wait: wait.place)


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions to carry out now, and the reasons of jobs that have to wait."""

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    """Preempted jobs. Starts on their devices are planned after they have left."""
    resizes: tuple[Resized, ...] = ()
    waits: tuple[Wait, ...] = ()
    wake_s: float | None = None
    """Time of the next pass if no event occurs before."""
