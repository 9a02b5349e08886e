"""State of the autoscaler's search for a job's size."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

__all__ = ["PATIENCE_S", "Point", "Search", "Window"]

PATIENCE_S: Final = 300.0
"""How long a result is trusted before its neighbours are tried anew; doubled each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What some steps at one size showed; the first ones after a change are left out."""

    learners: int
    at_s: float
    steps: int
    rate: float
    """Samples per second: batch over the middle of the step times."""
    spread: float
    """Standard deviation of the step times over their middle, outliers left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is known of a job's speed, and how far the search is."""

    points: tuple[Point, ...] = ()
    """By size; of each the newest windows count most."""
    is_settled: bool = False
    refines: int = 0
    off: int = 0
    """Windows in a row that did not fit what was known."""
    patience_s: float = PATIENCE_S
    again_s: float = 0.0
    """When the neighbours are tried anew."""
    not_granted: int = 0
    cap: int | None = None
    """More was not to be had."""
    cap_until_s: float = 0.0
    idle_s: float = 0.1
    """What a change costs: as measured at the last ones."""

    def at(self, learners: int) -> Point | None:
        """What is known of this size."""
        return next((p for p in self.points if p.learners == learners), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was measured at one size: samples per second, relative spread of the steps, how many steps it rests on."""

    learners: int
    rate: float
    spread: float
    steps: float
    at_s: float

    @property
    def error(self) -> float:
        """Relative standard error of the rate. (1.1: what a mean without outliers knows less than a plain one.)"""
        return max(1.1 * max(self.spread, 0.01) / sqrt(max(self.steps, 1.0)), 0.002)
