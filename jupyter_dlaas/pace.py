"""The middle of step times: what a learner tells of a window of steps. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

__all__ = ["middle"]

_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_FAR: Final = 3.0


def middle(times_s: Sequence[float]) -> tuple[float, float]:
    """(middle, spread relative to it) of step times; what lies far from the median does not count.

    The mean of what is within three standard deviations of the median, these from the median absolute deviation: one
    step that wrote a checkpoint moves it no more than it moves a median, and it knows more than a median does.
    """
    centre = median(times_s)
    if centre <= 0:
        return 1e-9, 0.0
    sigma = _SIGMA * median(abs(one - centre) for one in times_s)
    near = [one for one in times_s if abs(one - centre) <= _FAR * sigma] or [centre]
    return sum(near) / len(near), sigma / centre
