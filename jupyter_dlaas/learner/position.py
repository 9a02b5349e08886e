"""Where training is, and who takes which samples: pure arithmetic, the same in every learner.

Exactly once by construction: the order of an epoch depends on seed and epoch alone, global step i takes slice
[iB, (i+1)B) of it, and the slice is cut among the learners that are present.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

__all__ = ["Position", "cut", "permutation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The step that comes next: batch `index` of the `call`-th `run.batches` in `epoch`; `step` were begun before."""

    epoch: int = 0
    call: int = 0
    index: int = 0
    step: int = 0
    sample: int = 0
    """How many samples of the pass come before it."""


def cut(batch: Sequence[T], rank: int, learners: int) -> Sequence[T]:
    """The share of one learner: consecutive samples, sizes differ by one at most; may be empty for a short tail.

    All shares in rank order are the batch.
    """
    size, longer = divmod(len(batch), learners)
    first = rank * size + min(rank, longer)
    return batch[first : first + size + (rank < longer)]


def permutation(samples: int, seed: int) -> list[int]:
    """All samples in an order that depends on the seed alone, on any machine and in any version of Python ≥ 3.2."""
    order = list(range(samples))
    random.Random(seed).shuffle(order)  # noqa: S311 - not for secrets
    return order
