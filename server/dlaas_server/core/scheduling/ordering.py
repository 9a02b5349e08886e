"""Orders: rank of jobs of one priority. A rank is an integer: lower goes first, and equal ranks go by age.

The rank of a waiting job is constant. That of a running job changes at times known in advance.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from math import log2, sqrt
from typing import Final, Protocol

from dlaas_server.core.scheduling.gang_request import GangRequest, level
from dlaas_server.core.scheduling.run_length import AS_MANY, UNSURE, length_s

__all__ = [
    "ORDERS",
    "Age",
    "Attained",
    "FairFinish",
    "Gittins",
    "Learnt",
    "Order",
    "Remaining",
    "Shortest",
    "Slices",
    "is_by_age",
    "length_counts",
    "new_order",
]

STEP: Final = 1.5
"""Octaves per class of `shortest`: a class is a factor of √8."""
UNKNOWN: Final = 8
"""Rank of a job of unknown length: that of an hour on one GPU (√8^8 GPU-seconds)."""
LEAST: Final = 5
"""Lowest class: below √8^6 GPU-seconds (eight minutes) preempting one job for another never pays."""
BRIEF_S: Final = 16.0
SHARERS: Final = 4
EARLY: Final = 0.1
AGAIN: Final = 2.0
SLACK_S: Final = 5e-4
"""Tolerance: ranks refer to this much earlier, and change in the middle of it, so that rounding never decides."""
USUAL: Final = 12
"""Class that half of the pool's work lies below, until fifty jobs have ended: √8^12 GPU-seconds, three days."""


class Learnt(IntEnum):
    """Kind of change after an order learned from a finished job."""

    NOTHING = 0
    LIFTED = 1
    """Changed rank of lifted jobs."""
    RANKS = 2
    """Changed ranks of all jobs."""


class Order(Protocol):
    """Order of waiting jobs, and rule for preemption by rank."""

    gap: int
    """Number of ranks a job must be ahead of its victim; 0: no preemption by rank."""
    lifted: int | None
    """Rank of a job that waited past its bound, where it goes first; None: no job is lifted."""
    needs_lengths: bool
    """True if a job needs a known length to preempt by rank."""
    age_factor: float
    """Bound on the wait, as a multiple of the job's expected length."""

    def rank(self, request: GangRequest, now_s: float) -> int:
        """Return the rank of a job now."""
        ...

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        """Return the rank of this running job, and the time at which it changes if nothing else happens; None: never.

        In one call, since both need the same remaining time and a replay asks for them at every start.
        """
        ...

    def learn(self, gpu_s: float, wrong: float | None = None) -> Learnt:
        """Learn from a job that ended after `gpu_s` GPU-seconds. Return the kind of change.

        `wrong`: logarithm of actual over estimated run time; None: it had no estimate.
        """
        ...


def _executed_s(request: GangRequest, now_s: float) -> float:
    return request.executed(now_s) - SLACK_S


def _left_s(request: GangRequest, now_s: float) -> float | None:
    """Return the expected remaining time of the job and the rest of its batch."""
    executed_s = _executed_s(request, now_s)
    total_s = request.total_s(executed_s)
    return None if total_s is None else total_s - executed_s + request.batch_s


def _after(request: GangRequest, now_s: float, in_s: float) -> float:
    """Return the time at which a running job has run `in_s` longer, rounded up by the tolerance."""
    assert request.since_s is not None
    return max(request.since_s, now_s) + max(in_s, 0.0) + SLACK_S


@dataclass(slots=True)
class _Unlearned:
    """Order that learns nothing from finished jobs. A job that waited past its bound goes before all others."""

    gap: int = 1
    lifted: int | None = -1
    needs_lengths: bool = False
    age_factor: float = 10.0

    def learn(self, gpu_s: float, wrong: float | None = None) -> Learnt:
        return Learnt.NOTHING


@dataclass(slots=True)
class Age(_Unlearned):
    """`fifo`, `fifo-skip`: first come, first served."""

    gap: int = 0
    lifted: int | None = None

    def rank(self, request: GangRequest, now_s: float) -> int:
        return 0

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        return 0, None


@dataclass(slots=True)
class Fair(Age):
    """`fair`: the queue with the lowest share in use goes first; by age within a queue."""


def _class(gpu_s: float) -> int:
    """Return floor(log_√8(gpu_s)), 0 up to 1 GPU-second."""
    return int(log2(gpu_s) / STEP) if gpu_s > 1 else 0


@dataclass(slots=True)
class Shortest:
    """`shortest`: by the class floor(log_√8) of the expected remaining GPU-seconds.

    The expectation is the mean over jobs with such an estimate, not the estimate: a very long estimate is mostly too
    long, and is shrunk towards the lengths that occur in this pool. A job that waited past its bound goes first in the
    class that half of the pool's work lies below. The many shorter jobs still pass, and delay it little, since they are
    little work.
    """

    gap: int = 3
    lifted: int | None = USUAL
    needs_lengths: bool = True
    age_factor: float = 10.0
    _work: dict[int, float] = field(default_factory=dict)
    _ended: int = 0
    _learnt: int = 0

    def learn(self, gpu_s: float, wrong: float | None = None) -> Learnt:
        """Update the class that half of the work lies below."""
        here, before = _class(gpu_s), self.lifted
        self._work[here] = self._work.get(here, 0.0) + gpu_s
        self._ended += 1
        if self._ended >= max(50, self._learnt * 5 // 4):
            self._learnt = self._ended
            half, below = sum(self._work.values()) / 2, 0.0
            for here in sorted(self._work):
                below += self._work[here]
                if below >= half:
                    self.lifted = here
                    break
        return Learnt.LIFTED if self.lifted != before else Learnt.NOTHING

    def rank(self, request: GangRequest, now_s: float) -> int:
        left_s = self._left_s(request, now_s)
        return UNKNOWN if left_s is None else max(_class(left_s * request.weight), LEAST)

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        """Return the class, and the time at which it falls to the next one; in the lowest class, when it overruns."""
        left_s = self._left_s(request, now_s)
        if left_s is None:
            return UNKNOWN, None
        weight, next_s = request.weight, request.batch_s
        here = _class(left_s * weight)
        if here <= LEAST:
            return LEAST, _after(request, now_s, left_s - next_s)
        return here, _after(request, now_s, left_s - max(2.0 ** (STEP * here) / weight, next_s))

    @staticmethod
    def _left_s(request: GangRequest, now_s: float) -> float | None:
        executed_s = _executed_s(request, now_s)
        total_s = request.mean_total_s(executed_s)
        return None if total_s is None else total_s - executed_s + request.batch_s


@dataclass(slots=True)
class Remaining(_Unlearned):
    """`srtf`: by expected remaining time, whatever the size, to a tenth. A job half as long may preempt."""

    gap: int = 8
    needs_lengths: bool = True

    def rank(self, request: GangRequest, now_s: float) -> int:
        """Return the rank in eighths of an octave. A running job counts as the shortest within its octave."""
        left_s = _left_s(request, now_s)
        halvings = log2(max(3600.0 if left_s is None else left_s, BRIEF_S))
        return int(8 * halvings) if request.waits else 8 * int(halvings)

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        """Return the rank, and the time at which the remaining time reaches the next power of two or is exceeded."""
        left_s = _left_s(request, now_s)
        if left_s is None:
            return 8 * int(log2(3600.0)), None
        halvings = int(log2(max(left_s, BRIEF_S)))
        here_s = 2.0**halvings
        next_s = max(here_s, request.batch_s) if here_s > BRIEF_S else request.batch_s
        return 8 * halvings, _after(request, now_s, left_s - next_s)


@dataclass(slots=True)
class Attained(_Unlearned):
    """`las`: least attained service in GPU-seconds, in discrete queues: the first hour, then by factors of four.

    Source: Gu et al., "Tiresias", NSDI 2019 (2-D LAS).
    """

    quantum_gpu_s: float = 3600.0

    def rank(self, request: GangRequest, now_s: float) -> int:
        served = _executed_s(request, now_s) * request.weight / self.quantum_gpu_s
        return 0 if served < 1 else 1 + level(served * (1 + 1e-12))

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        rank = self.rank(request, now_s)
        limit_s = self.quantum_gpu_s * 4.0**rank / request.weight
        return rank, _after(request, now_s, limit_s - _executed_s(request, now_s))


@dataclass(slots=True)
class Gittins:
    """`gittins`: by the 2-D Gittins index, learned from the jobs that ended in this pool; `las` until 50 have ended.

    Index at attained service a: the maximum over horizons d of P(ends within d) / E(service used of d). Its inverse is
    the expected service per job that ends; ranks are factors of four of it.
    Source: Gu et al., "Tiresias", NSDI 2019, section 3.3. An index learned from another cluster did worse than `las`.
    """

    gap: int = 1
    lifted: int | None = -1
    needs_lengths: bool = False
    age_factor: float = 10.0
    least: int = 50
    history: list[float] = field(default_factory=list)
    """GPU-seconds of finished jobs, sorted."""
    _bounds: list[float] = field(default_factory=list)
    _ranks: list[int] = field(default_factory=list)
    _learnt: int = 0
    _las: Attained = field(default_factory=Attained)

    def rank(self, request: GangRequest, now_s: float) -> int:
        if not self._ranks:
            return self._las.rank(request, now_s)
        return self._ranks[bisect_right(self._bounds, _executed_s(request, now_s) * request.weight) - 1]

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        if not self._ranks:
            return self._las.rank_until(request, now_s)
        executed_s = _executed_s(request, now_s)
        place = bisect_right(self._bounds, executed_s * request.weight)
        rank = self._ranks[place - 1]
        if place == len(self._bounds):
            return rank, None
        return rank, _after(request, now_s, self._bounds[place] / request.weight - executed_s)

    def learn(self, gpu_s: float, wrong: float | None = None) -> Learnt:
        insort(self.history, gpu_s)
        if len(self.history) < max(self.least, self._learnt * 5 // 4):
            return Learnt.NOTHING
        self._learn()
        return Learnt.RANKS

    def _learn(self) -> None:
        self._learnt = len(self.history)
        sums = [0.0, *accumulate(self.history)]
        self._bounds = [0.0, *(900.0 * 2**i for i in range(24))]
        self._ranks = [self._rank_at(attained, sums) for attained in self._bounds]

    def _rank_at(self, attained: float, sums: list[float]) -> int:
        data, count = self.history, len(self.history)
        first = bisect_right(data, attained)
        if count - first < 3:
            return level(max(attained, 1.0)) + 1  # beyond the observed range: assume as much again
        best = 0.0
        for horizon in [attained + 900.0 * 2**i for i in range(24)]:
            last = bisect_right(data, horizon)
            used = sums[last] - sums[first] - attained * (last - first) + (horizon - attained) * (count - last)
            best = max(best, (last - first) / used)
        return level(1 / best) if best else level(attained) + 1


@dataclass(slots=True)
class Slices(_Unlearned):
    """`time-slice`: round robin. A job that ran for a slice goes behind waiting jobs, at the next end of an epoch."""

    slice_s: float = 600.0

    def rank(self, request: GangRequest, now_s: float) -> int:
        return int(request.since_s is not None and now_s - request.since_s >= self.slice_s - SLACK_S)

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        rank = self.rank(request, now_s)
        return rank, None if rank or request.since_s is None else request.since_s + self.slice_s


@dataclass(slots=True)
class FairFinish(_Unlearned):
    """`fair-finish`: by deadline, computed from an early quantile of the job's length.

    With a fair share of the pool from its submission on, SHARERS jobs per device, a job of length l ends l x SHARERS
    after its submission. l is the EARLY quantile of the lengths of jobs with such an estimate that ran so long already.
    It uses the spread of estimates in this pool, or that of this estimate (small for a job that counts its steps). So
    an estimate that is too long is detected in time, and where estimates are good l is the estimate. The rank is the
    deadline's minute: a waiting job comes closer to it. The value of SHARERS is not critical: between 2 and 8 the
    outcome is the same, as all deadlines move alike.
    Source: finish-time fairness, Mahajan et al., "Themis", NSDI 2020; here by earliest deadline, with estimated
    lengths.
    """

    gap: int = 10
    spread: float = UNSURE
    """Standard deviation of the logarithm of estimate errors, learned from finished jobs."""
    _ended: int = 0
    _squares: float = 0.0
    _learnt: int = 0

    def learn(self, gpu_s: float, wrong: float | None = None) -> Learnt:
        if wrong is None:
            return Learnt.NOTHING
        self._ended += 1
        self._squares += wrong * wrong
        if self._ended < self._learnt * 5 // 4:
            return Learnt.NOTHING
        self._learnt = self._ended
        self.spread = sqrt((self._squares + AS_MANY * UNSURE**2) / (self._ended + AS_MANY))
        return Learnt.RANKS

    def _early_s(self, request: GangRequest, executed_s: float) -> float:
        """Return the length assumed for the job: at least doubled each time it ran longer."""
        guess_s = 3600.0 if request.estimate_s is None else request.estimate_s
        spread = self.spread if request.spread is None else request.spread
        total_s = length_s(guess_s, 0.0, spread, EARLY)
        while total_s <= executed_s:
            total_s = max(length_s(guess_s, total_s, spread, EARLY), AGAIN * total_s)
        return total_s

    def rank(self, request: GangRequest, now_s: float) -> int:
        return int((request.submitted_s + SHARERS * self._early_s(request, _executed_s(request, now_s))) // 60)

    def rank_until(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        """Return the rank, and the time at which it has run longer than assumed."""
        executed_s = _executed_s(request, now_s)
        early_s = self._early_s(request, executed_s)
        return int((request.submitted_s + SHARERS * early_s) // 60), _after(request, now_s, early_s - executed_s)


ORDERS: Final[Mapping[str, type]] = {
    "fifo": Age,
    "fifo-skip": Age,
    "shortest": Shortest,
    "srtf": Remaining,
    "las": Attained,
    "gittins": Gittins,
    "time-slice": Slices,
    "fair": Fair,
    "fair-finish": FairFinish,
}


def is_by_age(order: Order) -> bool:
    """Return whether the order is first come, first served, whatever is known of the jobs."""
    return isinstance(order, Age) and not isinstance(order, Fair)


def length_counts(order: Order) -> float:
    """Return the factor of a job's own length in its bound for lateness: 0 where all jobs go by age."""
    return 0.0 if is_by_age(order) else order.age_factor


def new_order(name: str) -> Order:
    """Return a new order of this name, which has learned nothing yet."""
    order: Order = ORDERS[name]()
    return order
