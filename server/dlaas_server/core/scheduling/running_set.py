"""Running set: running jobs, by expected end, by start time, and by node."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import Final

from dlaas_server.core.scheduling.gang_request import GangRequest

__all__ = ["ExpectedEnds", "RunningSet", "by_start_time"]

MAX_INSERTED: Final = 64
"""Maximum number of new ends that are inserted one by one; a longer list is sorted as a whole."""
MAX_UNSORTED: Final = 4096
"""Maximum number of unsorted ends."""
SAME_S: Final = 1e-6
"""Times that differ by less are equal."""


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
            if len(new) > MAX_UNSORTED:
                self._sort()

    def _sort(self) -> None:
        ends = self._sorted
        if len(self._new) <= MAX_INSERTED:
            for entry in self._new:
                insort(ends, entry)
        else:
            self._sorted = ends = sorted({entry for entry in ends + self._new if entry[2].ends_s == entry[0]})
        self._new.clear()
        outdated = 0
        while outdated < len(ends) and ends[outdated][2].ends_s != ends[outdated][0]:
            outdated += 1
        del ends[:outdated]

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


def by_start_time(running: Iterable[GangRequest]) -> Iterator[tuple[float, GangRequest]]:
    """Yield running jobs by start time, with their expected ends.

    An overdue job waits for these in this order: their number only shrinks, whatever their estimates. `running` is in
    the order in which jobs got their seats.
    """
    for _, alike in groupby(running, lambda request: request.began_s):
        for request in sorted(alike, key=lambda request: request.number):
            yield inf if request.ends_s is None else request.ends_s, request


class RunningSet:
    """Running jobs. A job's run time, expected end and seats are kept in its request."""

    def __init__(self, *, tracks_nodes: bool) -> None:
        self.jobs: dict[int, GangRequest] = {}
        """Running jobs by number, in the order in which they got their seats."""
        self.ends = ExpectedEnds()
        self.by_node: dict[str, dict[int, GangRequest]] = {}
        """Node -> running jobs with one learner there, by number. Empty unless `tracks_nodes`."""
        self._tracks_nodes = tracks_nodes

    def add(self, request: GangRequest, now_s: float) -> None:
        """Add a job that holds its seats."""
        self.jobs[request.number] = request
        self.ends.add(request, now_s)
        if self._tracks_nodes and request.learners == 1 and request.seats:
            self.by_node.setdefault(request.seats[0].node, {})[request.number] = request

    def remove(self, request: GangRequest, now_s: float) -> bool:
        """Remove a job that gave back its seats. Return whether it ends at its expected time."""
        request.executed_s = request.executed(now_s)
        request.since_s = None
        request.version += 1
        del self.jobs[request.number]
        if self._tracks_nodes and request.learners == 1 and request.seats:
            del self.by_node[request.seats[0].node][request.number]
        end_s, request.ends_s = request.ends_s, None
        request.seats = ()
        return end_s is not None and abs(end_s - now_s) <= SAME_S
