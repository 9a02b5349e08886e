"""What was said of a job's start, and how it turned out: the track record of start estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.model import Said
from dlaas_server.core.words import duration

__all__ = ["SHOWN", "Forecast", "outcome", "track_record"]

SHOWN: Final = 50
"""The track record speaks of so many of the newest."""
CLOSE_S: Final = 60.0
CLOSE: Final = 0.25
"""A start within a minute, or a quarter of the wait, of the range counts as close: `BARS.md`, start estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """An estimate of a job that has started since."""

    job: str
    said: Said
    started_s: float

    @property
    def held(self) -> bool:
        """It started within the range that was shown."""
        return self.said.low_s <= self.started_s <= self.said.high_s

    @property
    def is_close(self) -> bool:
        """It started within the range, or no further from it than a minute or a quarter of its wait."""
        slack_s = max(CLOSE_S, CLOSE * (self.started_s - self.said.at_s))
        return self.said.low_s - slack_s <= self.started_s <= self.said.high_s + slack_s


def outcome(forecast: Forecast) -> str:
    """`It was told 2 min to 5 min, and waited 3 min 10 s.`"""
    said, waited_s = forecast.said, forecast.started_s - forecast.said.at_s
    low, high = duration(max(said.low_s - said.at_s, 0.0)), duration(max(said.high_s - said.at_s, 0.0))
    told = f"about {high}" if low == high else f"{low} to {high}"
    return f"It was told {told}, and waited {duration(max(waited_s, 0.0))}."


def track_record(forecasts: Sequence[Forecast]) -> str:
    """One sentence on the newest estimates; "" where none has been put to the test yet."""
    newest = forecasts[-SHOWN:]
    if not newest:
        return ""
    if len(newest) == 1:
        return f"The last start estimate {'held' if newest[0].held else 'did not hold'}."
    held, close = sum(f.held for f in newest), sum(f.is_close for f in newest)
    return (
        f"Of the last {len(newest)} start estimates {held} held; {close} were right to within a minute or a quarter of "
        "the wait."
    )
