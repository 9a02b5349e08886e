"""Starvation guard: a job that waited too long goes before all others once, whatever its priority.

Only one job has this turn at a time. Otherwise a pool that is overloaded for days would schedule by age, and priorities
would have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from dlaas_server.core.scheduling.gang_request import GangRequest

__all__ = ["StarvationGuard"]


class StarvationGuard:
    """Starving jobs, which reached `Lateness.STARVING`, and the one whose turn it is."""

    def __init__(self) -> None:
        self.turn: GangRequest | None = None
        """Waiting job whose turn it is; everything that it needs is kept for it."""
        self.waiting: dict[int, GangRequest] = {}
        """Starving jobs by number. Mostly empty: callers check this first, to save a method call at each event."""
        self.running: set[int] = set()
        self._by_age: list[tuple[float, int]] = []

    def waits(self, request: GangRequest) -> None:
        """Add a waiting job that reached `Lateness.STARVING`."""
        if request.number not in self.waiting:
            self.waiting[request.number] = request
            heappush(self._by_age, (request.submitted_s, request.number))

    def leaves(self, request: GangRequest) -> bool:
        """Remove a job that no longer waits. Return whether it was starving."""
        if self.turn is request:
            self.turn = None
        return self.waiting.pop(request.number, None) is not None

    def runs(self, request: GangRequest) -> None:
        """Record that a job runs that starved before. Until it ends, no other job gets the turn."""
        self.running.add(request.number)

    def ends(self, request: GangRequest) -> None:
        """Record that the job no longer runs."""
        self.running.discard(request.number)

    def changed(self, could_fit: Callable[[GangRequest], bool]) -> list[GangRequest]:
        """Give the turn to the oldest job that could fit, if none of them runs. Return the jobs whose place changed."""
        before, self.turn = self.turn, None if self.running else self._oldest(could_fit)
        return [request for request in (before, self.turn) if request is not None and before is not self.turn]

    def _oldest(self, could_fit: Callable[[GangRequest], bool]) -> GangRequest | None:
        by_age, without_room = self._by_age, []
        found: GangRequest | None = None
        while by_age and found is None:
            request = self.waiting.get(by_age[0][1])
            if request is not None and could_fit(request):
                found = request
            else:
                entry = heappop(by_age)
                if request is not None:
                    without_room.append(entry)
        for entry in without_room:
            heappush(by_age, entry)
        return found
