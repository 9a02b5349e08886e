"""Where training is, and who takes which samples: pure arithmetic, the same in every learner.

Exactly once by construction: the order of an epoch depends on seed and epoch alone, global step i takes slice
[iB, (i+1)B) of it, and the slice is cut among the learners that are present.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

__all__ = ["Position", "cut", "permutation"]


@dataclass(slots=True, kw_only=True)
class Position:
    """The step that comes next: batch `index` of the `call`-th `run.batches` in `epoch`; `step` were begun before.

    Never changed; not frozen, since one is made in each step and that takes four times as long.
    """

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


def permutation(samples: int, seed: int) -> array[int]:
    """All samples in an order that depends on the seed alone, on any machine, with NumPy or without: by random keys."""
    keys = array("Q", random.Random(seed).randbytes(8 * samples))  # noqa: S311 - not for secrets
    if sys.byteorder == "big":
        keys.byteswap()
    if (numpy := sys.modules.get("numpy")) is not None:
        # A third of the time; a small epoch's steps are short.
        return array("q", numpy.frombuffer(keys, "u8").argsort(kind="stable").astype("i8").tobytes())
    return array("q", sorted(range(samples), key=keys.__getitem__))
