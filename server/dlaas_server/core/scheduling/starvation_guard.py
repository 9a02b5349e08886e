"""Starvation guard: a job that waited too long goes before all others once, whatever its priority.

Only one job has this turn at a time. Otherwise a pool that is overloaded for days would schedule by age, and priorities
would have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from dlaas_server.core.scheduling.gang_request import Ask

__all__ = ["Forgotten"]


class Forgotten:
    """Starving jobs, which reached `Late.FORGOTTEN`, and the one whose turn it is."""

    def __init__(self) -> None:
        self.turn: Ask | None = None
        """Waiting job whose turn it is; everything that it needs is kept for it."""
        self.waiting: dict[int, Ask] = {}
        """Starving jobs by number. Mostly empty: callers check this first, to save a method call at each event."""
        self.running: set[int] = set()
        self._by_age: list[tuple[float, int]] = []

    def waits(self, ask: Ask) -> None:
        """Add a waiting job that reached `Late.FORGOTTEN`."""
        if ask.number not in self.waiting:
            self.waiting[ask.number] = ask
            heappush(self._by_age, (ask.submitted_s, ask.number))

    def leaves(self, ask: Ask) -> bool:
        """Remove a job that no longer waits. Return whether it was starving."""
        if self.turn is ask:
            self.turn = None
        return self.waiting.pop(ask.number, None) is not None

    def runs(self, ask: Ask) -> None:
        """Record that a job runs that starved before. Until it ends, no other job gets the turn."""
        self.running.add(ask.number)

    def ends(self, ask: Ask) -> None:
        """Record that the job no longer runs."""
        self.running.discard(ask.number)

    def changed(self, could_fit: Callable[[Ask], bool]) -> list[Ask]:
        """Give the turn to the oldest job that could fit, if none of them runs. Return the jobs whose place changed."""
        before, self.turn = self.turn, None if self.running else self._oldest(could_fit)
        return [ask for ask in (before, self.turn) if ask is not None and before is not self.turn]

    def _oldest(self, could_fit: Callable[[Ask], bool]) -> Ask | None:
        by_age, without_room = self._by_age, []
        found: Ask | None = None
        while by_age and found is None:
            ask = self.waiting.get(by_age[0][1])
            if ask is not None and could_fit(ask):
                found = ask
            else:
                entry = heappop(by_age)
                if ask is not None:
                    without_room.append(entry)
        for entry in without_room:
            heappush(by_age, entry)
        return found
