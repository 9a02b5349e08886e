"""Which learner holds the others up, and what their talking costs.

Pure: what each tells of its steps comes in, with the time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["Profile", "Slow", "Stragglers"]

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
MOVED: Final = 0.02
"""A profile is told again when what is spent on talking has changed by so much of a step."""
AGAIN_S: Final = 60.0
"""… and not sooner."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A member that the others wait for, and its speed as a part of theirs (the median's)."""

    member: int
    speed: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Whether it matters how close together learners sit (Gu et al., "Tiresias", NSDI 2019)."""

    communication: float
    """Of a step's time, what even the last learner waits for the sums."""
    skew: float | None
    """Of all bytes that are exchanged, the largest tensor's."""


@dataclass(slots=True)
class _Told:
    seconds: float
    wait_s: float
    step_s: float
    skew: float | None
    at_s: float


class Stragglers:
    """What was told, and who has been slow since when."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}
        self._suspect: tuple[int, float] | None = None
        """Who is slow, and since when."""
        self._together: tuple[frozenset[int], float] | None = None
        """Who told of themselves together, and since when."""
        self._profile: Profile | None = None
        self._profiled_s = 0.0

    def hear(
        self,
        member: int,
        seconds: float,
        step_s: float,
        steps: int,
        now_s: float,
        *,
        wait_s: float = 0.0,
        skew: float | None = None,
    ) -> None:
        """How long a member's own part of a step takes, its wait for the others', and a step.

        In the mean over so many steps of its gang.
        """
        if steps >= STEPS and seconds > 0:
            self._told[member] = _Told(seconds, wait_s, step_s, skew, now_s)
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

    def profile(self, members: Collection[int], now_s: float) -> Profile | None:
        """What their talking costs, once these have trained together for a while; None where there is nothing new."""
        told = self._lately(members, now_s)
        if not told:
            self._together = None
            return None
        if self._together is None or self._together[0] != told.keys():
            self._together, self._profile = (frozenset(told), now_s), None  # another gang: it may sit elsewhere
        before = self._profile
        if now_s < (self._together[1] + PATIENCE_S if before is None else self._profiled_s + AGAIN_S):
            return None
        step_s = median(one.step_s for one in told.values())
        share = min(min(one.wait_s for one in told.values()) / step_s, 1.0) if step_s > 0 else 0.0
        found = Profile(round(share, 3), next(iter(told.values())).skew)
        if before is not None and abs(found.communication - before.communication) < MOVED:
            return None
        self._profile, self._profiled_s = found, now_s
        return found

    def _lately(self, members: Collection[int], now_s: float) -> dict[int, _Told]:
        """What these told of themselves, if all of them did so lately, and they are more than one."""
        told = {m: one for m in members if (one := self._told.get(m)) is not None and now_s - one.at_s <= FRESH_S}
        return told if len(told) >= max(2, len(members)) else {}

    def _slowest(self, members: Collection[int], now_s: float) -> tuple[int, float] | None:
        """Who is slow at this moment, and its speed as a part of the median's."""
        told = self._lately(members, now_s)
        if not told:
            return None
        speeds = {m: 1 / one.seconds for m, one in told.items()}
        usual = median(speeds.values())
        member = min(speeds, key=lambda m: (speeds[m], m))
        saved_s = told[member].seconds - 1 / usual
        share = speeds[member] / usual
        return None if share >= SLOW or saved_s < WORTH * told[member].step_s else (member, share)
