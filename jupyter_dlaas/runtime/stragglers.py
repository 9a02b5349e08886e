"""Which learner holds the others up. Pure: what each tells of its own part of a step comes in, with the time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["Slow", "Stragglers"]

SLOW: Final = 0.8
"""A learner below this part of the median speed is slow."""
WORTH: Final = 0.1
"""… and worth a replacement if a step would take so much less of its time."""
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
    step_s: float
    at_s: float


class Stragglers:
    """What was told, and who has been slow since when."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}
        self._suspect: tuple[int, float] | None = None
        """Who is slow, and since when."""

    def hear(self, member: int, seconds: float, step_s: float, steps: int, now_s: float) -> None:
        """A member's own part of a step takes so long, and a step, in the mean over so many steps of its gang."""
        if steps >= STEPS and seconds > 0:
            self._told[member] = _Told(seconds, step_s, now_s)
        else:
            self._told.pop(member, None)

    def slow(self, members: Collection[int], now_s: float) -> Slow | None:
        """The slowest of these, if it has been slow for a while. Only where all of them told of themselves lately."""
        found = self._slowest(members, now_s)
        if found is None:
            self._suspect = None
            return None
        member, share = found
        if self._suspect is None or self._suspect[0] != member:
            self._suspect = member, now_s
        return Slow(member, share) if now_s - self._suspect[1] >= PATIENCE_S else None

    def _slowest(self, members: Collection[int], now_s: float) -> tuple[int, float] | None:
        """Who is slow at this moment, and its speed as a part of the median's."""
        told = {m: one for m in members if (one := self._told.get(m)) is not None and now_s - one.at_s <= FRESH_S}
        if len(told) < max(2, len(members)):
            return None
        speeds = {m: 1 / one.seconds for m, one in told.items()}
        usual = median(speeds.values())
        member = min(speeds, key=lambda m: (speeds[m], m))
        saved_s = told[member].seconds - 1 / usual
        share = speeds[member] / usual
        return None if share >= SLOW or saved_s < WORTH * told[member].step_s else (member, share)
