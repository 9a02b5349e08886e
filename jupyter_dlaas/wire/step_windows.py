"""Measurement of step times: windows of steps, and their robust mean. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

__all__ = ["DROPPED", "STEPS", "WINDOW_S", "Windows", "middle"]

STEPS: Final = 20
WINDOW_S: Final = 1.0
"""Minimum number of steps in a window, and its minimum duration in seconds."""
DROPPED: Final = 2
"""Number of steps after a membership change that are not measured."""
QUICK: Final = ((5, 0.25), (5, 0.25), (10, 0.5))
"""(steps, seconds) of the first windows of a size if decisions depend on them. Together they equal a usual window."""
FIRST: Final = 4
"""Number of short windows per size; then each window is twice as long as the one before."""
OFF: Final = 0.08
"""Relative change from the last window at which a window ends early, if it also exceeds three standard errors."""
_KEPT: Final = 2000
_PARTS: Final = 4
"""Minimum number of measurements per window, so that one with a checkpoint stands out from the others."""
_SIGMA: Final = 1.4826
"""Ratio of a normal distribution's standard deviation to its median absolute deviation."""
_FAR: Final = 3.0


class Windows:
    """Windows of the steps at one size: short at first, then longer, up to `most_s` seconds.

    `is_quick` says that decisions depend on them. Then the first windows are shorter still, and a long window ends as
    soon as its last steps show another speed.
    """

    def __init__(self, most_s: float, *, is_quick: bool) -> None:
        self._most_s, self._is_quick = most_s, is_quick
        self.steps = 0
        """Number of steps in the window that ended last."""
        self.again()

    def again(self) -> None:
        """Start over for another size."""
        self._windows = 0
        self._window_s = WINDOW_S
        self._last: tuple[float, float] | None = None
        self._begin()

    def _begin(self) -> None:
        self._times_s: list[float] = []
        self._counts: list[int] = []
        self._steps = 0
        self._took_s = 0.0
        self._chunk = self._chunk_steps = 0
        self._chunk_s = 0.0

    def step(self, took_s: float, count: int = 1) -> Sequence[float]:
        """Record one step, or `count` steps that took `took_s` seconds each.

        Return the times of the window's measurements, newest last, if the window ends here; otherwise an empty
        sequence.
        """
        self._times_s.append(took_s)
        self._counts.append(count)
        self._steps += count
        self._took_s += took_s * count
        self._chunk += 1
        self._chunk_steps += count
        self._chunk_s += took_s * count
        steps, least_s = STEPS, self._window_s
        if self._is_quick and self._windows < len(QUICK):
            steps, least_s = QUICK[self._windows]
        parts = len(self._times_s)
        if self._steps >= steps and parts >= _PARTS and (self._took_s >= least_s or parts >= _KEPT):
            return self._ended(parts)
        if self._is_quick and self._chunk_steps >= STEPS and self._chunk >= _PARTS and self._chunk_s >= WINDOW_S:
            chunk, self._chunk, self._chunk_steps, self._chunk_s = self._chunk, 0, 0, 0.0
            if self._is_off(self._times_s[-chunk:]):
                self._windows, self._window_s = len(QUICK), WINDOW_S
                return self._ended(chunk)
        return ()

    def _ended(self, parts: int) -> Sequence[float]:
        self._windows += 1
        if self._windows >= FIRST + (len(QUICK) if self._is_quick else 0):
            self._window_s = min(2 * self._window_s, self._most_s)
        times_s, self.steps = self._times_s[-parts:], sum(self._counts[-parts:])
        self._last = middle(times_s)
        self._begin()
        return times_s

    def _is_off(self, times_s: Sequence[float]) -> bool:
        if self._last is None:
            return False
        (before_s, _), (now_s, spread) = self._last, middle(times_s)
        return bool(abs(now_s / before_s - 1) > max(OFF, 3 * spread / len(times_s) ** 0.5))


def middle(times_s: Sequence[float]) -> tuple[float, float]:
    """Return (mean, relative spread) of step times without outliers.

    The mean covers values within three standard deviations of the median; the deviation is estimated from the median
    absolute deviation. A step that wrote a checkpoint affects it no more than it affects a median, and it is more
    precise than a median. For few steps that deviation is too small by n / (n - 0.8) (Croux and Rousseeuw,
    "Time-efficient algorithms for two highly robust estimators of scale", 1992).
    """
    centre = median(times_s)
    if centre <= 0:
        return 1e-9, 0.0
    sigma = _SIGMA * median(abs(one - centre) for one in times_s) * len(times_s) / (len(times_s) - 0.8)
    near = [one for one in times_s if abs(one - centre) <= _FAR * sigma] or [centre]
    return sum(near) / len(near), sigma / centre
