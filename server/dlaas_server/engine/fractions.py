"""Time left by the part that is done, and how fast that grows: for programs that count no steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from jupyter_dlaas.protocol import Progress

__all__ = ["Fractions"]

SPREAD: Final = 0.15
"""Half width of the range, as for steps."""


@dataclass(slots=True)
class _Seen:
    first_s: float
    first: float
    last_s: float
    last: float


class Fractions:
    """The fractions that each job reported since it was last (re)started."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def timed(self, job: str, progress: Progress) -> Progress:
        """The report with a range for the time left, where its fraction has grown."""
        fraction, at_s = progress.fraction, progress.at_s
        if fraction is None:
            return progress
        seen = self._seen.get(job)
        if seen is None or fraction < seen.last or at_s < seen.last_s:  # started again, or another loop
            seen = self._seen[job] = _Seen(at_s, fraction, at_s, fraction)
        if fraction > seen.last:
            seen.last_s, seen.last = at_s, fraction
        if seen.last <= seen.first or seen.last_s <= seen.first_s:
            return progress
        per_s = (seen.last - seen.first) / (seen.last_s - seen.first_s)
        left_s = max((1 - fraction) / per_s - (at_s - seen.last_s), 0.0)
        return replace(progress, left_s_low=left_s * (1 - SPREAD), left_s_high=left_s * (1 + SPREAD))

    def forget(self, job: str) -> None:
        """The job was deleted."""
        self._seen.pop(job, None)
