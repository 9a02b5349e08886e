"""Batches of frameworks in a job of changing size: the requested batch size is the total over all learners.

By default, each learner has a batch of that size, so another number of learners would change the training: steps,
schedules and epochs. Here a step uses the same samples at any size, as with `run.batches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

__all__ = ["Shares", "share", "share_loader"]


def share(batch: Sequence[T], rank: int, learners: int) -> list[T]:
    """Return one learner's part of a batch. All parts have one size; the batch's first samples fill up the last ones.

    Parts are equal because frameworks give each learner's gradient the same weight.
    """
    size = -(-len(batch) // learners)
    return [batch[place % len(batch)] for place in range(rank * size, (rank + 1) * size)]


def share_loader(loader: Any, rank: int, learners: int) -> Any:
    """Make a loader that accelerate divides among learners by whole batches divide each batch instead.

    Returns the same loader. Loaders that accelerate does not divide, or that divide each batch already, are unchanged.
    """
    batches: Any = getattr(loader, "batch_sampler", None)
    if hasattr(batches, "_iter_with_split") and not batches.split_batches:
        batches.split_batches = True  # then it has as many batches as with one learner
        batches._iter_with_split = lambda: (share(batch, rank, learners) for batch in batches.batch_sampler)
    return loader


class Shares:
    """A batch sampler that yields this learner's part of each batch of another one, and delegates all else to it."""

    def __init__(self, batches: Any, rank: int, learners: int) -> None:
        self._batches, self._rank, self._learners = batches, rank, learners

    def __iter__(self) -> Iterator[list[Any]]:
        batches: Iterable[Sequence[Any]] = self._batches
        return (share(batch, self._rank, self._learners) for batch in batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
