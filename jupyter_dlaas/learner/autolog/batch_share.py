"""Frameworks' batches in a job that may change its size: the batch of all learners together is the one asked for.

Their own way is a batch of that size for each learner, so that another size would train another way, with other steps,
schedules and epochs. Here a step takes the same samples at any size, as with `run.batches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

__all__ = ["Shares", "share"]


def share(batch: Sequence[T], rank: int, learners: int) -> list[T]:
    """The part of one learner: all are of one size, and where that leaves gaps the batch's first samples fill them.

    Equal parts, because the frameworks give each learner's gradient the same weight.
    """
    size = -(-len(batch) // learners)
    return [batch[place % len(batch)] for place in range(rank * size, (rank + 1) * size)]


class Shares:
    """A batch sampler: this learner's part of each batch of another one, of which it has all else."""

    def __init__(self, batches: Any, rank: int, learners: int) -> None:
        self._batches, self._rank, self._learners = batches, rank, learners

    def __iter__(self) -> Iterator[list[Any]]:
        batches: Iterable[Sequence[Any]] = self._batches
        return (share(batch, self._rank, self._learners) for batch in batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
