"""Time left by the completed fraction and its growth, for programs that count no steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from jupyter_dlaas.wire.protocol import Progress

__all__ = ["Fractions"]

SPREAD: Final = 0.15
"""Half width of the range, relative, as for steps."""
WINDOW_S: Final = 60.0
"""Seconds over which the pace is measured, so that it follows a change of size; at least the last two increases."""
MIN_MARKS: Final = 3
MAX_MARKS: Final = 60

Mark = tuple[float, float]
"""Time and fraction of a report."""


class Fractions:
    """Increases of the fraction that each job reported since it was last started."""

    def __init__(self) -> None:
        self._marks: dict[str, list[Mark]] = {}

    def timed(self, job: str, progress: Progress) -> Progress:
        """Return the report with a range for the time left, if its fraction has grown."""
        fraction, at_s = progress.fraction, progress.at_s
        if fraction is None:
            return progress
        marks = self._marks.get(job, [])
        if not marks or fraction < marks[-1][1] or at_s < marks[-1][0]:  # started again, or another loop
            self._marks[job] = marks = [(at_s, fraction)]
        elif fraction > marks[-1][1]:
            marks.append((at_s, fraction))
            while len(marks) > MIN_MARKS and (at_s - marks[0][0] > WINDOW_S or len(marks) > MAX_MARKS):
                del marks[0]
        (first_s, first), (last_s, last) = marks[0], marks[-1]
        if last <= first or last_s <= first_s:
            return progress
        interval_s = (last_s - first_s) / (len(marks) - 1)
        overdue_s = max(at_s - last_s - interval_s, 0.0)  # the next increase does not come: the pace has dropped
        left_s = (1 - fraction) * (last_s - first_s + overdue_s) / (last - first) - min(at_s - last_s, interval_s)
        left_s = max(left_s, 0.0)
        return replace(progress, left_s_low=left_s * (1 - SPREAD), left_s_high=left_s * (1 + SPREAD))

    def forget(self, job: str) -> None:
        """Drop the data of a deleted job."""
        self._marks.pop(job, None)
