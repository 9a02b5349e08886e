"""A job as the orders see it: what it asks for, what it had, how long it is expected to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.scheduling.lateness import Late

__all__ = ["Ask", "Key", "length_level", "level"]

Key = tuple[int, int, float, float, int]
"""What waiting jobs are sorted by: the smallest goes first."""

_LOG4: Final = log(4)


def level(amount: float) -> int:
    """floor(log4(amount)): jobs within a factor of four count as equally long."""
    return int(log(amount) / _LOG4) if amount > 1 else 0


def length_level(length_s: float | None) -> int:
    """The level of an expected length: of those that wait for the same, the first of each level is tried."""
    return 0 if length_s is None else level(length_s)


def _again(total_s: float, executed_s: float) -> float:
    while total_s <= executed_s:
        total_s *= 2
    return total_s


@dataclass(slots=True, eq=False)
class Ask:
    """One job that waits or runs. Changed by the scheduler only."""

    number: int
    """By age; unique."""
    shape: Shape
    learners: int
    submitted_s: float
    estimate_s: float | None = None
    """How long it is expected to run in all; None: nobody knows."""
    batch_s: float = 0.0
    """What the others of its batch are expected to take: tasks that only count together go by what all of them take."""
    usual_s: float | None = None
    """The same, drawn to what is usual in this pool: by a guess that is much too short it would be late at once."""
    priority: int = 0
    queue: str = "default"
    restart_s: float = 0.0
    """What stopping and restoring it costs."""
    is_spot: bool = False
    """It runs on what is lent to it; see `spot_scheduler.py`."""
    may_stop: bool = True
    """Whether it can be stopped and go on later."""
    id: str = ""
    spread: float | None = None
    """How wrong the expected length may be, σ of its logarithm; None: as guesses in this pool usually are."""
    mean_s: float | None = None
    """The mean of what the guess about it may mean in this pool; None: the guess itself."""
    executed_s: float = 0.0
    """How long it had run when it was last started or stopped."""
    since_s: float | None = None
    """Since when it runs, restarts left out; None while it waits."""
    began_s: float = 0.0
    """When it last got its seats."""
    queued_s: float = 0.0
    """When it last began to wait."""
    ends_s: float | None = None
    """When it is expected to end; None while it waits, and where nobody knows. See `running.Ends`."""
    seats: tuple[Seat, ...] = ()
    starts: int = 0
    rank: int = 0
    late: Late = Late.NOT
    is_victim: bool = False
    """It runs and counts among those that may be preempted."""
    patience_s: float = -1.0
    """Until when it does not preempt for its rank, or, once it runs, does not move for it is about to end; noted once
    that was tried."""
    stamp: int = 0
    """Rises with each change: what was noted under an older one is outdated."""
    weight: int = field(init=False)
    """Devices of the whole gang; learners where no devices are asked for."""

    def __post_init__(self) -> None:
        self.weight = self.learners * (self.shape.gpus or 1)

    def executed(self, now_s: float) -> float:
        """How long it has run until now."""
        since_s = self.since_s
        return self.executed_s if since_s is None or now_s <= since_s else self.executed_s + now_s - since_s

    def total_s(self, executed_s: float) -> float | None:
        """How long it runs in all, by what is known after it ran so long: after an overrun, as much again."""
        return None if self.estimate_s is None else _again(self.estimate_s, executed_s)

    def likely_s(self, executed_s: float) -> float | None:
        """The same in the mean of what its guess may mean."""
        mean_s = self.estimate_s if self.mean_s is None else self.mean_s
        return None if mean_s is None else _again(mean_s, executed_s)

    @property
    def wrong(self) -> float | None:
        """The logarithm of how many times longer than expected it ran, once it ended."""
        return log(self.executed_s / self.estimate_s) if self.estimate_s and self.executed_s > 0 else None

    def end_s(self, now_s: float) -> float | None:
        """When it ends, if it runs (or were started now)."""
        total_s, since_s, executed_s = self.estimate_s, self.since_s, self.executed_s
        if total_s is None:
            return None
        if since_s is None:
            now_s += self.restart_s if self.starts else 0.0
        elif since_s > now_s:
            now_s = since_s
        else:
            executed_s = executed_s + now_s - since_s
        if total_s <= executed_s:
            total_s = _again(total_s, executed_s)
        return now_s + total_s - executed_s

    def bound_s(self, least_s: float, factor: float) -> float:
        """What waiting is measured by: this time, or so many times its length by the longer guess."""
        known = [guess_s for guess_s in (self.estimate_s, self.usual_s) if guess_s is not None]
        if not known:
            return least_s
        return max(least_s, factor * max(known))

    def lateness(self, least_s: float, factor: float, steps: Iterable[Late], at_s: float) -> tuple[Late, float | None]:
        """Which of these steps it has reached, if it waited until this time; and when it reaches the next.

        To be lifted costs others little: all its waiting counts. What comes then costs them much: only its waiting
        since it last ran counts.
        """
        late, bound_s = Late.NOT, self.bound_s(least_s, factor)
        for step in steps:
            waits_s = self.submitted_s + self.executed_s if step is Late.LIFTED else self.queued_s
            due_s = waits_s + step * bound_s
            if due_s > at_s:
                return late, due_s
            late = step
        return late, None
