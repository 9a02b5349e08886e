"""Remaining run time of a job: one rule for forecasts and for what `why` says of running jobs."""

from __future__ import annotations

from math import inf
from typing import Final

from dlaas_server.core.model.pool import Known

__all__ = ["has_overrun", "left_s"]

BELIEVED: Final = 3.0
"""Overrun factor from which the estimate is ignored: such a job differs from those that it was derived from."""


def has_overrun(known: Known) -> bool:
    """Return whether the job has run longer than expected."""
    return known.length_s is not None and known.length_s <= known.executed_s


def left_s(known: Known | None) -> float:
    """Return the remaining run time in seconds: doubled total on overrun, infinite on a large one or if unknown."""
    if known is None or known.length_s is None or known.length_s <= 0:
        return inf
    total_s = known.length_s
    if known.executed_s >= BELIEVED * total_s:
        return inf
    while total_s <= known.executed_s:
        total_s *= 2
    return total_s - known.executed_s
