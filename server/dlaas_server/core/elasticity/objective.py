"""Scaling objectives: each condition gives (learners, samples per second) a value, and the largest value is best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

__all__ = ["NOTHING", "Condition", "Deadline", "Efficiency", "Goodput", "Utility", "Work", "best_size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Job properties that a condition may use; None means unknown."""

    samples_left: float | None = None
    left_s: float | None = None
    """Seconds until the deadline."""
    batch: float | None = None
    """Samples per step with one learner, if batches grow with the gang."""


Condition = Callable[[int, float, Work], float]
"""(learners, samples per second, work) -> value, which increases with the samples per second."""
NOTHING: Final = Work()


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Growth while each added learner brings more than `least` of the throughput per learner before.

    s = ((R_new - R_old) / (k_new - k_old)) / (R_old / k_old) > S. One step from k to k + 1 passes exactly if R(k + 1) >
    R(k) (1 + S / k), so R(k) / prod(1 + S / j, j < k) is largest where the rule stops. Unlike the rule it also gives
    the best size where throughput falls and rises again.
    Source: Or, Zhang, Freedman, "Resource Elasticity in Distributed Deep Learning", MLSys 2020; S = 0.1 is theirs.
    """

    least: float = 0.1

    def __call__(self, learners: int, rate: float, work: Work) -> float:
        return rate / _discount(self.least, learners)


@dataclass(frozen=True, slots=True)
class Utility:
    """Growth while an hour saved is worth more than the devices cost.

    `worth_per_h`: value of having the result an hour sooner; `price_per_h`: price of one learner. The objective is to
    minimize (worth + price k) T(k). T(k) is proportional to 1 / R(k), so the remaining work does not matter.
    """

    worth_per_h: float
    price_per_h: float = 1.0

    def __call__(self, learners: int, rate: float, work: Work) -> float:
        return rate / (self.worth_per_h + self.price_per_h * learners)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Smallest size that meets the deadline; the fastest size if none does or nothing is known."""

    reserve: float = 0.1

    def __call__(self, learners: int, rate: float, work: Work) -> float:
        if work.samples_left is None or work.left_s is None or work.left_s <= 0:
            return rate / _discount(0.02, learners)
        share = rate / (work.samples_left / work.left_s * (1 + self.reserve))
        return share if share < 1 else 1 + 1 / learners


@dataclass(frozen=True, slots=True)
class Goodput:
    """Largest progress per second: samples per second × statistical efficiency of the batch size.

    (noise + B_1) / (noise + B_k), for batches that grow with the gang (B_k = k B_1); with a fixed batch the efficiency
    is constant. An added learner must bring at least `least`, since beyond a limit all sizes are equally fast.
    Source: Qiao et al., "Pollux", OSDI 2021, equation 5; `noise` is the gradient noise scale in samples.
    """

    noise: float | None = None
    least: float = 0.02

    def __call__(self, learners: int, rate: float, work: Work) -> float:
        worth = 1.0
        if self.noise is not None and work.batch is not None:
            worth = (self.noise + work.batch) / (self.noise + work.batch * learners)
        return rate * worth / _discount(self.least, learners)


@lru_cache(maxsize=4096)
def _discount(least: float, learners: int) -> float:
    product = 1.0
    for j in range(1, learners):
        product *= 1 + least / j
    return product


def best_size(curve: Mapping[int, float], condition: Condition, work: Work = NOTHING) -> int:
    """Return the size of this curve (learners -> samples per second) with the best value; the smallest of equals."""
    return max(sorted(curve), key=lambda k: (condition(k, curve[k], work), -k))
