"""Gang request: a job as the scheduler sees it, with its resources, service so far and expected length."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.scheduling.lateness import Lateness

__all__ = ["GangRequest", "Key", "length_level", "level"]

Key = tuple[int, int, float, float, int]
"""Sort key of waiting jobs; the smallest goes first."""

_LOG4: Final = log(4)


def level(amount: float) -> int:
    """Return floor(log4(amount)), 0 for amounts up to 1. Jobs within a factor of four count as equally long."""
    return int(log(amount) / _LOG4) if amount > 1 else 0


def length_level(length_s: float | None) -> int:
    """Return the level of an expected length, 0 if unknown. Backfill tries the first job of each level in a class."""
    return 0 if length_s is None else level(length_s)


def _doubled(total_s: float, executed_s: float) -> float:
    """Return the expected total run time, doubled until it exceeds the run time so far."""
    while total_s <= executed_s:
        total_s *= 2
    return total_s


@dataclass(slots=True, eq=False)
class GangRequest:
    """A waiting or running job. Only the scheduler changes it."""

    number: int
    """Unique number, ascending by age."""
    shape: Shape
    learners: int
    submitted_s: float
    estimate_s: float | None = None
    """Expected run time in all; None if unknown."""
    batch_s: float = 0.0
    """Expected run time of the rest of its batch: tasks that only count together are ranked by their total."""
    usual_s: float | None = None
    """Estimate shrunk towards the pool's usual length.

    With an estimate that is far too short the job would be late at once.
    """
    priority: int = 0
    queue: str = "default"
    restart_s: float = 0.0
    """Cost of stopping and restoring the job."""
    is_spot: bool = False
    """True if it runs on lent devices; see `spot_scheduler.py`."""
    is_preemptible: bool = True
    """True if it can be stopped and resumed later."""
    id: str = ""
    spread: float | None = None
    """Standard deviation of the logarithm of the estimate's error; None: that of the pool's estimates."""
    mean_s: float | None = None
    """Mean run time of jobs in this pool with such an estimate; None: the estimate itself."""
    executed_s: float = 0.0
    """Run time up to its last start or stop."""
    since_s: float | None = None
    """Start of the present run, without the restart; None while it waits."""
    began_s: float = 0.0
    """Time at which it last got its seats."""
    queued_s: float = 0.0
    """Time at which it last began to wait."""
    ends_s: float | None = None
    """Expected end; None while it waits, and if its length is unknown. See `running_set.ExpectedEnds`."""
    seats: tuple[Seat, ...] = ()
    starts: int = 0
    rank: int = 0
    lateness: Lateness = Lateness.ON_TIME
    is_victim: bool = False
    """True if it runs and is among the jobs that may be preempted."""
    patience_s: float = -1.0
    """End of its patience, noted at the first attempt: until then it does not preempt for its rank.

    While it runs: it is not moved before this time, since it is about to end.
    """
    version: int = 0
    """Version number. It rises with each change, and entries with an older one are outdated."""
    weight: int = field(init=False)
    """Devices of the whole gang; number of learners if no devices are requested."""

    def __post_init__(self) -> None:
        self.weight = self.learners * (self.shape.gpus or 1)

    @property
    def waits(self) -> bool:
        """True if the job waits for devices; False if it runs."""
        return self.since_s is None

    @property
    def class_key(self) -> tuple[Shape, int, str]:
        """Key of the equivalence class: jobs with equal keys fit on the same seats and share a queue."""
        return self.shape, self.learners, self.queue

    def executed(self, now_s: float) -> float:
        """Return the run time until now."""
        since_s = self.since_s
        return self.executed_s if since_s is None or now_s <= since_s else self.executed_s + now_s - since_s

    def total_s(self, executed_s: float) -> float | None:
        """Return the expected total run time after it ran so long: doubled on overrun; None if unknown."""
        return None if self.estimate_s is None else _doubled(self.estimate_s, executed_s)

    def mean_total_s(self, executed_s: float) -> float | None:
        """Return the expected total run time, based on `mean_s`."""
        mean_s = self.estimate_s if self.mean_s is None else self.mean_s
        return None if mean_s is None else _doubled(mean_s, executed_s)

    @property
    def log_error(self) -> float | None:
        """Logarithm of actual over expected run time, once the job has ended; None if unknown."""
        return log(self.executed_s / self.estimate_s) if self.estimate_s and self.executed_s > 0 else None

    def end_s(self, now_s: float) -> float | None:
        """Return the expected end of a running job, or of a waiting one if it started now; None if unknown."""
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
            total_s = _doubled(total_s, executed_s)
        return now_s + total_s - executed_s

    def bound_s(self, bound_min_s: float, factor: float) -> float:
        """Return the bound on its wait: `bound_min_s`, or `factor` times its length by the longer estimate."""
        estimate_s, usual_s = self.estimate_s, self.usual_s
        longer_s = usual_s if estimate_s is None or (usual_s is not None and usual_s > estimate_s) else estimate_s
        return bound_min_s if longer_s is None else max(bound_min_s, factor * longer_s)
