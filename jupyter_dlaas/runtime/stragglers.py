"""Which learner holds the others up. Pure: what each tells of its own part of a step comes in, with the time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["Slow", "Stragglers"]

SLOW: Final = 0.8
"""A learner below this part of the median speed is slow."""
PATIENCE_S: Final = 10.0
"""It is so for that long before anything is said: a page cache, a neighbour's compiler."""
STEPS: Final = 20
"""What fewer steps tell does not count."""
FRESH_S: Final = 5.0
"""What was told longer ago does not count."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A member that the others wait for, and its speed as a part of theirs (the median's)."""

    member: int
    speed: float


@dataclass(slots=True)
class _Told:
    seconds: float
    at_s: float


class Stragglers:
    """What was told, and who has been slow since when."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}
        self._suspect: tuple[int, float] | None = None
        """Who is slow, and since when."""

    def hear(self, member: int, seconds: float, steps: int, now_s: float) -> None:
        """A member's own part of a step takes so long in the mean, over so many steps of the gang it is in."""
        if steps >= STEPS and seconds > 0:
            self._told[member] = _Told(seconds, now_s)
        else:
            self._told.pop(member, None)

    def slow(self, members: Collection[int], now_s: float) -> Slow | None:
        """The slowest of these, if it has been slow for a while. Only where all of them told of themselves lately."""
        told = {member: self._told.get(member) for member in members}
        speeds = {m: 1 / one.seconds for m, one in told.items() if one is not None and now_s - one.at_s <= FRESH_S}
        if len(speeds) < len(told) or len(speeds) < 2:
            self._suspect = None
            return None
        usual = median(speeds.values())
        member = min(speeds, key=lambda m: (speeds[m], m))
        share = speeds[member] / usual
        if share >= SLOW:
            self._suspect = None
            return None
        if self._suspect is None or self._suspect[0] != member:
            self._suspect = member, now_s
        return Slow(member, share) if now_s - self._suspect[1] >= PATIENCE_S else None
