"""Running jobs, sorted by expected end."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import Final

from dlaas_server.core.scheduling.gang_request import GangRequest

__all__ = ["ExpectedEnds", "oldest"]

FEW: Final = 64
"""Maximum number of new ends that are inserted one by one; a longer list is sorted as a whole."""
NEW_MOST: Final = 4096
"""Maximum number of unsorted ends."""


_End = tuple[float, int, GangRequest]
"""Expected end, job number, job. Outdated once the job's expected end changes or the job stops running."""


@dataclass(slots=True)
class ExpectedEnds:
    """Expected ends of running jobs, earliest first. Jobs of unknown length have none."""

    _sorted: list[_End] = field(default_factory=list)
    _new: list[_End] = field(default_factory=list)
    """Ends added since the last sort; merged at the next read."""

    def add(self, request: GangRequest, now_s: float) -> None:
        """Add a job that starts to run, or update its expected end."""
        request.ends_s = end_s = request.end_s(now_s)
        if end_s is not None:
            new = self._new
            new.append((end_s, request.number, request))
            if len(new) > NEW_MOST:
                self._sort()

    def _sort(self) -> None:
        ends = self._sorted
        if len(self._new) <= FEW:
            for entry in self._new:
                insort(ends, entry)
        else:
            self._sorted = ends = sorted({entry for entry in ends + self._new if entry[2].ends_s == entry[0]})
        self._new.clear()
        gone = 0
        while gone < len(ends) and ends[gone][2].ends_s != ends[gone][0]:
            gone += 1
        del ends[:gone]

    def is_behind(self, now_s: float) -> bool:
        """Return whether a job was expected to have ended by now."""
        return self.first_s() <= now_s

    def first_s(self) -> float:
        """Return the first expected end; infinity if there is none."""
        self._sort()
        return self._sorted[0][0] if self._sorted else inf

    def in_order(self, running: Iterable[GangRequest], now_s: float) -> Iterator[tuple[float, GangRequest]]:
        """Yield running jobs by expected end. A job past its estimate is expected to run as long again."""
        while self.is_behind(now_s):
            request = self._sorted.pop(0)[2]
            end_s = request.end_s(now_s)
            assert end_s is not None
            request.ends_s = end_s = max(end_s, now_s + 1e-3)
            insort(self._sorted, (end_s, request.number, request))
        last = None
        for end_s, _, request in self._sorted:
            if request is not last and request.ends_s == end_s:
                last = request
                yield end_s, request
        for request in running:
            if request.ends_s is None:
                yield inf, request


def oldest(running: Iterable[GangRequest]) -> Iterator[tuple[float, GangRequest]]:
    """Yield running jobs by start time, with their expected ends.

    An overdue job waits for these in this order: their number only shrinks, whatever their estimates. `running` is in
    the order in which jobs got their seats.
    """
    for _, alike in groupby(running, lambda request: request.began_s):
        for request in sorted(alike, key=lambda request: request.number):
            yield inf if request.ends_s is None else request.ends_s, request
