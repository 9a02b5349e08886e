"""Who goes first among jobs of one priority. A rank is a whole number: lower goes first, equal ranks go by age.

The rank of a job that waits does not change; that of one that runs changes at times that are known in advance.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from math import log2, sqrt
from typing import Final, Protocol

from dlaas_server.core.scheduling.gang_request import Ask, level
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
    "made",
]

STEP: Final = 1.5
"""A class of `shortest` is a factor of √8, this many octaves."""
UNKNOWN: Final = 8
"""The rank of a job of unknown length: as if an hour on one GPU (√8^8 GPU-seconds)."""
LEAST: Final = 5
"""Below √8^6 GPU-seconds (eight minutes) all are equally short: stopping one for another never pays."""
BRIEF_S: Final = 16.0
SHARERS: Final = 4
EARLY: Final = 0.1
AGAIN: Final = 2.0
SLACK_S: Final = 5e-4
"""Ranks are those of so long ago, and change at times in the middle of it: rounding never decides."""
USUAL: Final = 12
"""Where half of the work lies, as long as fewer than fifty jobs have ended: √8^12 GPU-seconds, three days."""


class Learnt(IntEnum):
    """What an order has learnt just now."""

    NOTHING = 0
    LIFTED = 1
    """The rank of jobs that are lifted."""
    RANKS = 2
    """The ranks of all."""


class Order(Protocol):
    """How waiting jobs are ordered, and who may be preempted for whom."""

    gap: int
    """How many ranks a newcomer must be ahead of what it preempts; 0: nobody is preempted for a rank."""
    lifted: int | None
    """The rank of a job that waited past its bound; in it, it goes first. None: nobody is lifted."""
    needs_lengths: bool
    """Whether nobody is preempted for a job of unknown length."""
    age_factor: float
    """The bound in terms of the job's own expected length."""

    def rank(self, ask: Ask, now_s: float) -> int:
        """The rank of a job now."""
        ...

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        """When the rank of this running job will be another, if nothing else happens; None: never."""
        ...

    def learn(self, gpu_s: float, wrong: float | None = None) -> Learnt:
        """A job ended after so many GPU-seconds. What is different now for others.

        `wrong`: the logarithm of how many times longer it ran than was guessed; None: nobody had guessed.
        """
        ...


def _executed_s(ask: Ask, now_s: float) -> float:
    return ask.executed(now_s) - SLACK_S


def _left_s(ask: Ask, now_s: float) -> float | None:
    """How long it and the rest of its batch are expected to go on."""
    executed_s = _executed_s(ask, now_s)
    total_s = ask.total_s(executed_s)
    return None if total_s is None else total_s - executed_s + ask.batch_s


def _after(ask: Ask, now_s: float, in_s: float) -> float:
    """When a job that runs has run so much longer, on the safe side."""
    assert ask.since_s is not None
    return max(ask.since_s, now_s) + max(in_s, 0.0) + SLACK_S


@dataclass(slots=True)
class _Unlearned:
    """Nothing is learnt from jobs that end. Who waited past its bound goes first of all."""

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

    def rank(self, ask: Ask, now_s: float) -> int:
        return 0

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        return None


@dataclass(slots=True)
class Fair(Age):
    """`fair`: the queue that has the least of its share goes first; within a queue, by age."""


def _class(gpu_s: float) -> int:
    """floor(log√8)."""
    return int(log2(gpu_s) / STEP) if gpu_s > 1 else 0


@dataclass(slots=True)
class Shortest:
    """`shortest`: by the class of the GPU-seconds that are left in the mean of what the guess may mean, floor(log√8).

    That is not the guess: a very long one is mostly too long, and is drawn to how long such jobs run in this pool.
    A job that waited past its bound goes first in the class that half of the pool's work lies below: the many that are
    shorter than that still pass, and cost it little, since together they are little work.
    """

    gap: int = 3
    lifted: int | None = USUAL
    needs_lengths: bool = True
    age_factor: float = 10.0
    _work: dict[int, float] = field(default_factory=dict)
    _ended: int = 0
    _learnt: int = 0

    def learn(self, gpu_s: float, wrong: float | None = None) -> Learnt:
        """Where half of the work lies."""
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

    def rank(self, ask: Ask, now_s: float) -> int:
        left_s = self._left_s(ask, now_s)
        return UNKNOWN if left_s is None else max(_class(left_s * ask.weight), LEAST)

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        """When it falls to the next class; in the last class, when it overruns."""
        left_s = self._left_s(ask, now_s)
        if left_s is None or ask.since_s is None:
            return None
        here = _class(left_s * ask.weight)
        next_s = max(2.0 ** (STEP * here) / ask.weight, ask.batch_s) if here > LEAST else ask.batch_s
        return _after(ask, now_s, left_s - next_s)

    @staticmethod
    def _left_s(ask: Ask, now_s: float) -> float | None:
        executed_s = _executed_s(ask, now_s)
        total_s = ask.likely_s(executed_s)
        return None if total_s is None else total_s - executed_s + ask.batch_s


@dataclass(slots=True)
class Remaining(_Unlearned):
    """`srtf`: by the time that is expected to be left, whatever the size, to a tenth; twice as short may preempt."""

    gap: int = 8
    needs_lengths: bool = True

    def rank(self, ask: Ask, now_s: float) -> int:
        """In eighths of a halving; one that runs counts as the shortest within its halving."""
        left_s = _left_s(ask, now_s)
        halvings = log2(max(3600.0 if left_s is None else left_s, BRIEF_S))
        return int(8 * halvings) if ask.since_s is None else 8 * int(halvings)

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        """At the next power of two of what is left; when it overruns."""
        left_s = _left_s(ask, now_s)
        if left_s is None or ask.since_s is None:
            return None
        here_s = 2.0 ** int(log2(max(left_s, BRIEF_S)))
        return _after(ask, now_s, left_s - (max(here_s, ask.batch_s) if here_s > BRIEF_S else ask.batch_s))


@dataclass(slots=True)
class Attained(_Unlearned):
    """`las`: least attained service in GPU-seconds, in discrete queues: the first hour, then by factors of four.

    Source: Gu et al., "Tiresias", NSDI 2019 (2-D LAS).
    """

    quantum_gpu_s: float = 3600.0

    def rank(self, ask: Ask, now_s: float) -> int:
        served = _executed_s(ask, now_s) * ask.weight / self.quantum_gpu_s
        return 0 if served < 1 else 1 + level(served * (1 + 1e-12))

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        limit_s = self.quantum_gpu_s * 4.0 ** self.rank(ask, now_s) / ask.weight
        return None if ask.since_s is None else _after(ask, now_s, limit_s - _executed_s(ask, now_s))


@dataclass(slots=True)
class Gittins:
    """`gittins`: by the 2-D Gittins index, learnt from the jobs that ended in this very pool; `las` until 50 have.

    Index at attained service a: the largest over horizons d of P(ends within d) / E(service used of d). Its inverse is
    what is expected to be spent per job that ends: ranked by factors of four.
    Source: Gu et al., "Tiresias", NSDI 2019, section 3.3; an index from another cluster lost to `las`.
    """

    gap: int = 1
    lifted: int | None = -1
    needs_lengths: bool = False
    age_factor: float = 10.0
    least: int = 50
    history: list[float] = field(default_factory=list)
    """GPU-seconds of jobs that ended, sorted."""
    _bounds: list[float] = field(default_factory=list)
    _ranks: list[int] = field(default_factory=list)
    _learnt: int = 0
    _las: Attained = field(default_factory=Attained)

    def rank(self, ask: Ask, now_s: float) -> int:
        if not self._ranks:
            return self._las.rank(ask, now_s)
        return self._ranks[bisect_right(self._bounds, _executed_s(ask, now_s) * ask.weight) - 1]

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        if ask.since_s is None:
            return None
        if not self._ranks:
            return self._las.changes_s(ask, now_s)
        executed_s = _executed_s(ask, now_s)
        place = bisect_right(self._bounds, executed_s * ask.weight)
        return _after(ask, now_s, self._bounds[place] / ask.weight - executed_s) if place < len(self._bounds) else None

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
            return level(max(attained, 1.0)) + 1  # beyond what was seen: as if as much again
        best = 0.0
        for horizon in [attained + 900.0 * 2**i for i in range(24)]:
            last = bisect_right(data, horizon)
            used = sums[last] - sums[first] - attained * (last - first) + (horizon - attained) * (count - last)
            best = max(best, (last - first) / used)
        return level(1 / best) if best else level(attained) + 1


@dataclass(slots=True)
class Slices(_Unlearned):
    """`time-slice`: in turns. Who ran for a slice goes behind those who wait, at the next end of an epoch."""

    slice_s: float = 600.0

    def rank(self, ask: Ask, now_s: float) -> int:
        return int(ask.since_s is not None and now_s - ask.since_s >= self.slice_s - SLACK_S)

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        if ask.since_s is None or self.rank(ask, now_s):
            return None
        return ask.since_s + self.slice_s


@dataclass(slots=True)
class FairFinish(_Unlearned):
    """`fair-finish`: by when a job has to end, should it be among the shortest that such a guess may mean.

    On a fair share of the pool from its submission on, for SHARERS jobs on each device, a job of length l has ended l x
    SHARERS after it. l is the time within which EARLY of the jobs end about which so was guessed and that ran so long,
    by how wrong guesses have been in this pool, or such a guess is (a job that counts its steps is taken at its word):
    so one that was guessed too long is found out in time, and where guesses are good it is the guess. Rank: the minute;
    who waits comes closer to it.
    How many share is not critical: between 2 and 8 the outcome is the same, as all deadlines move alike.
    Source: finish-time fairness, Mahajan et al., "Themis", NSDI 2020; here by earliest deadline, with guessed lengths.
    """

    gap: int = 10
    spread: float = UNSURE
    """How wrong guesses are: σ of the logarithm, learnt from the jobs that ended."""
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

    def _early_s(self, ask: Ask, executed_s: float) -> float:
        """The length that it is taken to have: again at least twice as much once it ran longer."""
        guess_s = 3600.0 if ask.estimate_s is None else ask.estimate_s
        spread = self.spread if ask.spread is None else ask.spread
        total_s = length_s(guess_s, 0.0, spread, EARLY)
        while total_s <= executed_s:
            total_s = max(length_s(guess_s, total_s, spread, EARLY), AGAIN * total_s)
        return total_s

    def rank(self, ask: Ask, now_s: float) -> int:
        return int((ask.submitted_s + SHARERS * self._early_s(ask, _executed_s(ask, now_s))) // 60)

    def changes_s(self, ask: Ask, now_s: float) -> float | None:
        """When it runs longer than it was taken to."""
        if ask.since_s is None:
            return None
        executed_s = _executed_s(ask, now_s)
        return _after(ask, now_s, self._early_s(ask, executed_s) - executed_s)


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
    """First come, first served, whatever is known of the jobs."""
    return isinstance(order, Age) and not isinstance(order, Fair)


def length_counts(order: Order) -> float:
    """How many times its own length a job's bound is, where others may go before it: where all go by age, none."""
    return 0.0 if is_by_age(order) else order.age_factor


def made(name: str) -> Order:
    """The order of this name, which has learnt nothing yet."""
    order: Order = ORDERS[name]()
    return order
