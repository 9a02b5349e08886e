"""Track record of start estimates: estimates shown, and actual starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.forecast.start_time import CLOSE, CLOSE_S
from dlaas_server.core.model.job import StartEstimate
from dlaas_server.core.model.phrases import duration

__all__ = ["SHOWN", "Forecast", "outcome", "soon", "track_record"]

FAR: Final = 3.0
"""Factor by which a wrong estimate counts as a miss, however short the wait."""
LEAST_S: Final = 5.0
"""Shortest wait used in this comparison."""
SHOWN: Final = 50
"""Number of newest estimates in the track record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Start estimate of a job that has started since."""

    job: str
    estimate: StartEstimate
    started_s: float

    @property
    def held(self) -> bool:
        """True if the job started within the range shown."""
        return self.estimate.low_s <= self.started_s <= self.estimate.high_s

    @property
    def is_close(self) -> bool:
        """True if the start was in the range, or off by at most a minute or a quarter of the wait."""
        slack_s = max(CLOSE_S, CLOSE * (self.started_s - self.estimate.at_s))
        if self.is_far:
            return False
        return self.estimate.low_s - slack_s <= self.started_s <= self.estimate.high_s + slack_s

    @property
    def is_far(self) -> bool:
        """True if the wait was more than FAR times longer or shorter than the range shown."""
        waited_s, low_s, high_s = (
            max(at_s - self.estimate.at_s, LEAST_S)
            for at_s in (self.started_s, self.estimate.low_s, self.estimate.high_s)
        )
        return waited_s > FAR * high_s or FAR * waited_s < low_s


def outcome(forecast: Forecast) -> str:
    """Return `Its start estimate was 2 min to 5 min; it waited 3 min 10 s.`"""
    first, waited_s = forecast.estimate, forecast.started_s - forecast.estimate.at_s
    estimate = soon((first.low_s, first.high_s), first.at_s).removeprefix("in ")
    return f"Its start estimate was {estimate}; it waited {duration(max(waited_s, 0.0))}."


def soon(expected: tuple[float, float], now_s: float) -> str:
    """Return `in 2 to 5 min`, `in 50 s to 2 min`, `in about 10 s`."""
    low, high = (duration(_rounded(max(at_s - now_s, 0.0))) for at_s in expected)
    if low == high:
        return f"in about {high}"
    (number, *units), (_, *units_high) = low.split(), high.split()
    return f"in {number if units == units_high and len(units) == 1 else low} to {high}"


def _rounded(seconds: float) -> float:
    """Round to the precision of an estimate: 5 s, from 2 minutes on 1 minute, from 2 hours on 10 minutes."""
    unit = 5 if seconds < 120 else 60 if seconds < 7200 else 600
    return max(round(seconds / unit), 1) * unit


def track_record(forecasts: Sequence[Forecast]) -> str:
    """Return a sentence on the newest estimates; "" if none of these jobs has started yet."""
    newest = forecasts[-SHOWN:]
    if not newest:
        return ""
    if len(newest) == 1:
        return f"The last start estimate was {'correct' if newest[0].held else 'wrong'}."
    held, close = sum(f.held for f in newest), sum(f.is_close for f in newest)
    far = sum(f.is_far for f in newest)
    more = f", {close - held} more within a minute or a quarter of the wait" if close > held else ""
    missed = f", {far} wrong by more than a factor of three" if far else ""
    return f"Of the last {len(newest)} start estimates, {_were(held)} correct{more}{missed}."


def _were(n: int) -> str:
    return f"{n} {'was' if n == 1 else 'were'}"
