"""How fast steps are: windows of steps, and their middle. What a learner tells of its gang. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

__all__ = ["DROPPED", "STEPS", "WINDOW_S", "Windows", "middle"]

STEPS: Final = 20
WINDOW_S: Final = 1.0
"""A window has so many steps at least, and takes so long."""
DROPPED: Final = 2
"""Steps after a change that tell nothing yet."""
QUICK: Final = ((5, 0.25), (5, 0.25), (10, 0.5))
"""The first windows of a size, where somebody decides by them; together they are one of the usual ones."""
FIRST: Final = 4
"""So many windows of a size are short; then each is twice as long as the one before."""
OFF: Final = 0.08
"""Steps that are so far from the last window, and beyond three standard errors, are told at once."""
_KEPT: Final = 2000
_PARTS: Final = 4
"""So many stretches belong to a window, so that one that wrote a checkpoint can be told from the others."""
_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_FAR: Final = 3.0


class Windows:
    """Cuts the steps of one size into windows: the first ones short, later ones ever longer, up to `most_s` seconds.

    `is_quick`: somebody decides by them. Then the first ones are shorter still, and a long one ends as soon as its last
    steps show another speed.
    """

    def __init__(self, most_s: float, *, is_quick: bool) -> None:
        self._most_s, self._is_quick = most_s, is_quick
        self.steps = 0
        """How many steps made the window that ended last."""
        self.again()

    def again(self) -> None:
        """Another size begins."""
        self._told = 0
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
        """One more step, or a stretch of so many that took this long each.

        The times of the window's steps or stretches, newest last, if it ends here; else none.
        """
        self._times_s.append(took_s)
        self._counts.append(count)
        self._steps += count
        self._took_s += took_s * count
        self._chunk += 1
        self._chunk_steps += count
        self._chunk_s += took_s * count
        steps, least_s = STEPS, self._window_s
        if self._is_quick and self._told < len(QUICK):
            steps, least_s = QUICK[self._told]
        parts = len(self._times_s)
        if self._steps >= steps and parts >= _PARTS and (self._took_s >= least_s or parts >= _KEPT):
            return self._ended(parts)
        if self._is_quick and self._chunk_steps >= STEPS and self._chunk >= _PARTS and self._chunk_s >= WINDOW_S:
            chunk, self._chunk, self._chunk_steps, self._chunk_s = self._chunk, 0, 0, 0.0
            if self._is_off(self._times_s[-chunk:]):
                self._told, self._window_s = len(QUICK), WINDOW_S
                return self._ended(chunk)
        return ()

    def _ended(self, parts: int) -> Sequence[float]:
        self._told += 1
        if self._told >= FIRST + (len(QUICK) if self._is_quick else 0):
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
    """(middle, spread relative to it) of step times; what lies far from the median does not count.

    The mean of what is within three standard deviations of the median, these from the median absolute deviation: one
    step that wrote a checkpoint moves it no more than it moves a median, and it knows more than a median does. Of few
    steps that deviation is too small by n / (n - 0.8) (Croux and Rousseeuw, "Time-efficient algorithms for two highly
    robust estimators of scale", 1992).
    """
    centre = median(times_s)
    if centre <= 0:
        return 1e-9, 0.0
    sigma = _SIGMA * median(abs(one - centre) for one in times_s) * len(times_s) / (len(times_s) - 0.8)
    near = [one for one in times_s if abs(one - centre) <= _FAR * sigma] or [centre]
    return sum(near) / len(near), sigma / centre
