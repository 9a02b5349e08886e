"""Decisions of a plan, as records."""

from __future__ import annotations

from dataclasses import dataclass

from dlaas_server.core.model.cluster import Seat

__all__ = ["Plan", "Preempt", "Resized", "Start", "Wait"]


@dataclass(frozen=True, slots=True)
class Start:
    """Start this job on these seats, one per learner in rank order."""

    job: str
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Resized:
    """Change the job to these seats; learners that stay keep theirs."""

    job: str
    seats: tuple[Seat, ...]
    by: str
    why: str = ""
    """A sentence for the owner, where somebody else is the reason."""
    notice_s: float | None = None
    """As for `Preempt`."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take the seats of this job back, at its next checkpoint, for that one."""

    job: str
    winner: str
    reason: str
    notice_s: float | None = None
    """How long its checkpoint may take, whether it has one or not: of a spot job."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The job waits (or stays smaller than wished): `reason` is shown as it stands. `place` 0: not in the queue."""

    job: str
    reason: str
    place: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be done now, and what is told to those for whom nothing can be done."""

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    """Who starts in their place is planned anew when they are gone."""
    resizes: tuple[Resized, ...] = ()
    waits: tuple[Wait, ...] = ()
    wake_s: float | None = None
    """When to plan again at the latest, though nothing else happens."""
