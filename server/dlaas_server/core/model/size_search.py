"""State of the autoscaler's search for a job's size."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

__all__ = ["PATIENCE_S", "Point", "Search", "Window"]

PATIENCE_S: Final = 300.0
"""Seconds that a result is trusted before its neighbours are tried again; doubled each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measurement of some steps at one size, without the first ones after a change."""

    learners: int
    at_s: float
    steps: int
    rate: float
    """Samples per second: batch size over the mean step time without outliers (`step_windows.middle`)."""
    spread: float
    """Relative spread: standard deviation of step times (from the median absolute deviation) over their median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """State of the size search: measured throughput and progress."""

    points: tuple[Point, ...] = ()
    """Measurements by size; the newest windows of each weigh most."""
    is_settled: bool = False
    refines: int = 0
    off: int = 0
    """Number of windows in a row that contradict earlier measurements."""
    patience_s: float = PATIENCE_S
    again_s: float = 0.0
    """Time at which the neighbours are tried again."""
    not_granted: int = 0
    cap: int | None = None
    """Largest size to request until `cap_until_s`, since the pool did not grant more."""
    cap_until_s: float = 0.0
    idle_s: float = 0.1
    """Pause per change of size, averaged exponentially over the last ones."""

    def at(self, learners: int) -> Point | None:
        """Return the measurement at this size; None if there is none."""
        return next((p for p in self.points if p.learners == learners), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Measurement at one size: samples per second, relative spread of step times, number of steps."""

    learners: int
    rate: float
    spread: float
    steps: float
    at_s: float

    @property
    def error(self) -> float:
        """Relative standard error of the rate.

        The factor 1.1 accounts for the lower efficiency of a mean without outliers.
        """
        return max(1.1 * max(self.spread, 0.01) / sqrt(max(self.steps, 1.0)), 0.002)
