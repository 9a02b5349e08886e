"""The training position, and the assignment of samples to learners: pure arithmetic, identical in every learner.

Each sample is used exactly once by construction: the order of an epoch depends only on seed and epoch, global step i
takes slice [iB, (i+1)B) of it, and the slice is divided among the current learners.
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
    """The next step: batch `index` of the `call`-th `run.batches` in `epoch`; `step` steps were begun before.

    Never modified. It is not frozen, since one is created in each step, and a frozen one takes four times as long.
    """

    epoch: int = 0
    call: int = 0
    index: int = 0
    step: int = 0
    sample: int = 0
    """The number of samples of the pass that come before it."""


def cut(batch: Sequence[T], rank: int, learners: int) -> Sequence[T]:
    """Return one learner's share: consecutive samples; sizes differ by at most one, and a short tail may leave none.

    All shares in rank order make up the batch.
    """
    size, longer = divmod(len(batch), learners)
    first = rank * size + min(rank, longer)
    return batch[first : first + size + (rank < longer)]


def permutation(samples: int, seed: int) -> array[int]:
    """Return a permutation that depends only on the seed, by sorting random keys; identical with and without NumPy."""
    keys = array("Q", random.Random(seed).randbytes(8 * samples))  # noqa: S311 - not for secrets
    if sys.byteorder == "big":
        keys.byteswap()
    if (numpy := sys.modules.get("numpy")) is not None:
        # Takes a third of the time, which counts in the short steps of a small epoch.
        return array("q", numpy.frombuffer(keys, "u8").argsort(kind="stable").astype("i8").tobytes())
    return array("q", sorted(range(samples), key=keys.__getitem__))
