"""Sharding and order of summation in exact mode: pure arithmetic, identical for any number of learners.

The shards of a batch depend only on its length. Their results are summed in a fixed binary tree, so sums are bitwise
identical no matter which learner computed which shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from jupyter_dlaas.learner.data.position import cut

__all__ = ["Node", "add_up", "cover", "nodes_of_all", "number_of_shards", "owned"]

Node = tuple[int, int]
"""The sum over the shards [first, end)."""
T = TypeVar("T")


def number_of_shards(samples: int, batch_size: int, shards: int) -> int:
    """Return the number of shards for a batch: a short batch has fewer shards, each of at least the usual size.

    (BatchNorm cannot normalise a single sample.)
    """
    return max(1, min(shards, samples * shards // max(batch_size, 1), samples))


def owned(shards: int, rank: int, learners: int) -> range:
    """Return the shards of one learner: consecutive, and none for learners beyond the number of shards."""
    found = cut(range(shards), rank, learners)
    assert isinstance(found, range)
    return found


def cover(shards: int, first: int, end: int) -> list[Node]:
    """Return the largest tree nodes within [first, end), from left to right."""

    def walk(low: int, high: int) -> list[Node]:
        if high <= first or low >= end:
            return []
        if first <= low and high <= end:
            return [(low, high)]
        middle = _middle(low, high)
        return walk(low, middle) + walk(middle, high)

    return walk(0, shards) if shards else []


def add_up(node: Node, leaf: Callable[[int], T], add: Callable[[T, T], T], known: Mapping[Node, T]) -> T:
    """Return the value of a node: from `known`, from a leaf, or the sum of its halves, always in this order."""
    if node in known:
        return known[node]
    low, high = node
    if high - low == 1:
        return leaf(low)
    middle = _middle(low, high)
    left = add_up((low, middle), leaf, add, known)
    return add(left, add_up((middle, high), leaf, add, known))


def _middle(low: int, high: int) -> int:
    return low + (high - low + 1) // 2


def nodes_of_all(shards: int, learners: int) -> Sequence[list[Node]]:
    """Return the nodes that each learner sums by itself, in rank order."""
    runs = [owned(shards, rank, learners) for rank in range(learners)]
    return [cover(shards, run.start, run.stop) if len(run) else [] for run in runs]
