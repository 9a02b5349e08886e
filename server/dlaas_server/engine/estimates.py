"""How long it will still take, from what was measured."""

from __future__ import annotations

from dataclasses import replace

from jupyter_dlaas.protocol import Progress

__all__ = ["with_time_left"]

SPREAD = 0.15
"""Half width of the range around steps left / measured rate: the first version; a measured spread replaces it."""


def with_time_left(progress: Progress) -> Progress:
    """The report with a range for the time left, where total steps and rate are known."""
    if progress.steps is None or not progress.steps_per_s:
        return progress
    left = max(progress.steps - progress.step, 0) / progress.steps_per_s
    return replace(progress, left_s_low=left * (1 - SPREAD), left_s_high=left * (1 + SPREAD))
