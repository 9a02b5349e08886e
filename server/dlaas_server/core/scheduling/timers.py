"""Timers: times at which the place or the protection of a job changes although no event occurs."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from dlaas_server.core.scheduling.gang_request import GangRequest

__all__ = ["LATENESS", "RANK", "RETRY", "VICTIM", "Timers"]

LATENESS, VICTIM, RANK, RETRY = range(4)
"""Kinds of timers: next step of lateness, end of the protection from preemption, new rank, another try."""


class Timers:
    """Heap of timers. A timer is void once the version of its job has changed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int, GangRequest]] = []
        """(time, job number, kind, version, job); sorts by time, and the rest makes equal times deterministic."""
        self.first_s = inf
        """Time of the first timer, possibly a void one; infinity if there is none."""

    def add(self, at_s: float, kind: int, request: GangRequest) -> None:
        """Set a timer for the present version of the job."""
        heappush(self._heap, (at_s, request.number, kind, request.version, request))
        if at_s < self.first_s:
            self.first_s = at_s

    def due(self, now_s: float) -> Iterator[tuple[int, GangRequest]]:
        """Remove the timers that are due, also those set meanwhile, and yield their kinds and jobs."""
        heap = self._heap
        while heap and heap[0][0] <= now_s:
            _, _, kind, version, request = heappop(heap)
            if version == request.version:
                yield kind, request
        self.first_s = heap[0][0] if heap else inf

    def next_s(self) -> float | None:
        """Return the time of the next timer; None if there is none."""
        heap = self._heap
        while heap and heap[0][3] != heap[0][4].version:
            heappop(heap)
        self.first_s = heap[0][0] if heap else inf
        return heap[0][0] if heap else None
