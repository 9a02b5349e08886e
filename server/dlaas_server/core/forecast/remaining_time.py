"""How much longer a job is expected to run: one rule for forecasts and for what `why` says of holders."""

from __future__ import annotations

from math import inf
from typing import Final

from dlaas_server.core.model.pool import Known

__all__ = ["has_overrun", "left_s"]

BELIEVED: Final = 3.0
"""A job that has run this many times longer than expected is not like those that the expectation came from."""


def has_overrun(known: Known) -> bool:
    """It has run longer than expected."""
    return known.length_s is not None and known.length_s <= known.executed_s


def left_s(known: Known | None) -> float:
    """How long it still runs; after an overrun as long again, after a large one nobody knows: infinite."""
    if known is None or known.length_s is None or known.length_s <= 0:
        return inf
    total_s = known.length_s
    if known.executed_s >= BELIEVED * total_s:
        return inf
    while total_s <= known.executed_s:
        total_s *= 2
    return total_s - known.executed_s
