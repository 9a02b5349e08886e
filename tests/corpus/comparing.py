"""Two sets of figures held against each other: to the last bit, and by how much they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.corpus.figures import Leaf

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between the figures of a job and those of its notebook."""

    compared: int
    differing: tuple[str, ...]
    """Paths whose bytes differ, or that only one of both has."""
    largest: float
    """Largest difference relative to numbers above 1, absolute below; infinite where shapes or texts differ."""
    has_torch: bool

    @property
    def is_identical(self) -> bool:
        return self.compared > 0 and not self.differing

    @property
    def is_same(self) -> bool:
        """PyTorch: to the last bit. All else within 1e-6."""
        return self.is_identical or (self.compared > 0 and not self.has_torch and self.largest <= 1e-6)


def compare(one: Mapping[str, Leaf], other: Mapping[str, Leaf]) -> Comparison:
    paths = sorted({*one, *other})
    differing = [path for path in paths if one.get(path) != other.get(path)]
    largest = max((_difference(one.get(path), other.get(path)) for path in differing), default=0.0)
    has_torch = any(leaf[0] == "torch" for leaf in (*one.values(), *other.values()))
    return Comparison(len(paths), tuple(differing), largest, has_torch)


def _difference(one: Leaf | None, other: Leaf | None) -> float:
    if one is None or other is None or one[1:3] != other[1:3] or "text" in (one[0], other[0]):
        return math.inf
    if one[1] == "int":
        return math.inf  # a count is right or wrong
    first, second = (np.frombuffer(leaf[3], leaf[1]).astype(np.complex128) for leaf in (one, other))
    if not np.array_equal(np.isnan(first), np.isnan(second)):
        return math.inf
    apart = np.abs(np.nan_to_num(first) - np.nan_to_num(second)) / np.maximum(1.0, np.abs(np.nan_to_num(first)))
    return float(np.max(apart, initial=0.0))
