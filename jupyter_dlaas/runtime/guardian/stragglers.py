"""Straggler detection and communication cost of a gang.

Pure: the reports of all members and the time are inputs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["Profile", "Slow", "Stragglers"]

SLOW: Final = 0.8
"""Share of the median speed below which a learner is slow."""
WORTH: Final = 0.1
"""Minimum gain, as a share of its step time, for which replacing a slow learner is worthwhile."""
PATIENCE_S: Final = 10.0
"""Seconds for which a learner must be slow before it is reported: a page cache or a compiler next to it slows it
briefly."""
STEPS: Final = 20
"""Minimum number of steps in a report."""
FRESH_S: Final = 5.0
"""Maximum age of a report in seconds."""
MOVED: Final = 0.02
"""Minimum change of the communication share for which a profile is reported again."""
AGAIN_S: Final = 60.0
"""Minimum time in seconds between two profiles."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Straggler that the others wait for, and its speed as a share of the median speed."""

    member: int
    speed: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Communication profile: how much a gang's placement matters (Gu et al., "Tiresias", NSDI 2019)."""

    communication: float
    """Share of a step's time that even the last learner waits for all-reduces."""
    skew: float | None
    """Share of the largest tensor in all exchanged bytes."""


@dataclass(slots=True)
class _Report:
    seconds: float
    wait_s: float
    step_s: float
    skew: float | None
    at_s: float


class Stragglers:
    """Reports of all members, and the member that is suspected to be a straggler."""

    def __init__(self) -> None:
        self._reports: dict[int, _Report] = {}
        self._suspect: tuple[int, float] | None = None
        """Slow member, and the time since which it is slow."""
        self._together: tuple[frozenset[int], float] | None = None
        """Members that all reported recently, and the time since which they do."""
        self._profile: Profile | None = None
        self._profiled_s = 0.0

    def receive(
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
        """Record a member's report: seconds of its own work per step, waiting time, and step time.

        All are means over `steps` steps of its gang.
        """
        if steps >= STEPS and seconds > 0:
            self._reports[member] = _Report(seconds, wait_s, step_s, skew, now_s)
        else:
            self._reports.pop(member, None)

    def slow(self, members: Collection[int], now_s: float) -> Slow | None:
        """Return the straggler once it was slow for `PATIENCE_S`. All of `members` must have reported recently."""
        found = self._slowest(members, now_s)
        if found is None:
            self._suspect = None
            return None
        member, share = found
        if self._suspect is None or self._suspect[0] != member:
            self._suspect = member, now_s
        return Slow(member, share) if now_s - self._suspect[1] >= PATIENCE_S else None

    def profile(self, members: Collection[int], now_s: float) -> Profile | None:
        """Return the communication profile of a gang that has trained for a while; None if there is nothing new."""
        reports = self._lately(members, now_s)
        if not reports:
            self._together = None
            return None
        if self._together is None or self._together[0] != reports.keys():
            self._together, self._profile = (frozenset(reports), now_s), None  # another gang may be placed differently
        before = self._profile
        if now_s < (self._together[1] + PATIENCE_S if before is None else self._profiled_s + AGAIN_S):
            return None
        step_s = median(one.step_s for one in reports.values())
        share = min(min(one.wait_s for one in reports.values()) / step_s, 1.0) if step_s > 0 else 0.0
        found = Profile(round(share, 3), next(iter(reports.values())).skew)
        if before is not None and abs(found.communication - before.communication) < MOVED:
            return None
        self._profile, self._profiled_s = found, now_s
        return found

    def _lately(self, members: Collection[int], now_s: float) -> dict[int, _Report]:
        """Return the recent reports of `members`, or nothing if one is missing or there are fewer than two members."""
        reports = {m: one for m in members if (one := self._reports.get(m)) is not None and now_s - one.at_s <= FRESH_S}
        return reports if len(reports) >= max(2, len(members)) else {}

    def _slowest(self, members: Collection[int], now_s: float) -> tuple[int, float] | None:
        """Return the member that is slow now, and its speed as a share of the median speed."""
        reports = self._lately(members, now_s)
        if not reports:
            return None
        speeds = {m: 1 / one.seconds for m, one in reports.items()}
        usual = median(speeds.values())
        member = min(speeds, key=lambda m: (speeds[m], m))
        saved_s = reports[member].seconds - 1 / usual
        share = speeds[member] / usual
        return None if share >= SLOW or saved_s < WORTH * reports[member].step_s else (member, share)
