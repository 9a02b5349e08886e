"""How exact mode cuts a batch and in which order it adds: pure arithmetic, the same for any number of learners.

A batch is cut into shards by its length alone. What the shards give is added in a fixed binary tree over them, so that
sums have the same last bit whoever computed which shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from jupyter_dlaas.learner.data.position import cut

__all__ = ["Node", "add_up", "cover", "nodes_of_all", "number_of_shards", "owned"]

Node = tuple[int, int]
"""The shards [first, end), added up."""
T = TypeVar("T")


def number_of_shards(samples: int, batch_size: int, shards: int) -> int:
    """Into how many shards a batch of so many samples is cut: a short one into fewer, of the usual size at least.

    (BatchNorm cannot normalise one sample.)
    """
    return max(1, min(shards, samples * shards // max(batch_size, 1), samples))


def owned(shards: int, rank: int, learners: int) -> range:
    """The shards that one learner computes: consecutive ones, none where there are more learners than shards."""
    found = cut(range(shards), rank, learners)
    assert isinstance(found, range)
    return found


def cover(shards: int, first: int, end: int) -> list[Node]:
    """The largest nodes of the tree over all shards that lie within [first, end), from left to right."""

    def walk(low: int, high: int) -> list[Node]:
        if high <= first or low >= end:
            return []
        if first <= low and high <= end:
            return [(low, high)]
        middle = _middle(low, high)
        return walk(low, middle) + walk(middle, high)

    return walk(0, shards) if shards else []


def add_up(node: Node, leaf: Callable[[int], T], add: Callable[[T, T], T], known: Mapping[Node, T]) -> T:
    """The value of a node: of `known`, or of a leaf, or the sum of its two halves, always in this order."""
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
    """What each learner has added up by itself, in rank order."""
    runs = [owned(shards, rank, learners) for rank in range(learners)]
    return [cover(shards, run.start, run.stop) if len(run) else [] for run in runs]
