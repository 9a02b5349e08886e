"""Who waited so long that it goes before all others once, whatever its priority: one such job at a time.

Only one, since else a pool that has had too much to do for days would go by age, and priorities would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from dlaas_server.core.scheduling.gang_request import Ask

__all__ = ["Forgotten"]


class Forgotten:
    """Jobs that reached `Late.FORGOTTEN`, and whose turn it is."""

    def __init__(self) -> None:
        self.turn: Ask | None = None
        """It waits, and everything that it needs is kept for it."""
        self.waiting: dict[int, Ask] = {}
        """Mostly nobody: looked at before a method is called, since that is done at each event."""
        self.running: set[int] = set()
        self._by_age: list[tuple[float, int]] = []

    def waits(self, ask: Ask) -> None:
        """It waited so long by now."""
        if ask.number not in self.waiting:
            self.waiting[ask.number] = ask
            heappush(self._by_age, (ask.submitted_s, ask.number))

    def leaves(self, ask: Ask) -> bool:
        """It waits no more; True if it was one of these."""
        if self.turn is ask:
            self.turn = None
        return self.waiting.pop(ask.number, None) is not None

    def runs(self, ask: Ask) -> None:
        """It runs, and waited so long before: until it ends it is nobody's turn."""
        self.running.add(ask.number)

    def ends(self, ask: Ask) -> None:
        """It runs no more."""
        self.running.discard(ask.number)

    def changed(self, could_fit: Callable[[Ask], bool]) -> list[Ask]:
        """Give the turn to the oldest that could fit, if none of them runs; whose place in line is another one now."""
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
