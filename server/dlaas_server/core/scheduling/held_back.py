"""Who of those that wait is promised a time, and who was held back for it.

Between `lines`, which says who waits, and `scheduler`, which decides who starts.
"""

from __future__ import annotations

from heapq import heappop

from dlaas_server.core.placement.gang_placement import Frees
from dlaas_server.core.scheduling.backfill import could_fit
from dlaas_server.core.scheduling.equivalence_class import Group
from dlaas_server.core.scheduling.gang_request import Ask, Key
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.waiting_queue import LAST, Lines

__all__ = ["Promises"]


class Promises(Lines):
    """One at a time: in `fifo-skip` the first that does not fit, else the first that is late."""

    def __init__(self, frees: Frees) -> None:
        super().__init__(frees)
        self.running: dict[int, Ask] = {}
        """In the order in which they got their seats."""

    def begin(self, policy: Policy, order: Order) -> None:
        """Nobody waits, nobody is promised a time, and the order is this one."""
        super().begin(policy, order)
        self._promises_first = policy.order == "fifo-skip"
        self._first: tuple[Key, Ask] | None = None
        """In `fifo-skip`: the first of those that were tried and do not fit; it is promised a time."""
        self._kept_for: Key | None = None
        """The key for whose reservation others were told not to make themselves room."""

    def reopen(self) -> None:
        """Something became possible: every head is tried again."""
        self._kept_for = None
        self._is_open = True
        for group in self._groups.values():
            group.is_shut = False

    def _holder(self, key: Key) -> Ask | None:
        """Who is ahead of this key, waits, and is promised a time: the head of `fifo-skip`; else the first late one."""
        if self._promises_first:
            return self._first[1] if self._first is not None and self._first[0] < key else None
        lates = self._lates
        while lates and lates[0][0] < key:
            _, stamp, ask = lates[0]
            if stamp == ask.stamp and self.could_fit(ask):
                return ask
            entry = heappop(lates)
            if stamp == ask.stamp:
                self._without_room.append(entry)
        return None

    def _promised(self) -> Key | None:
        """The key of who is promised a time."""
        if self._promises_first:
            return None if self._first is None else self._first[0]
        return None if self._holder(LAST) is None else self._lates[0][0]

    def _note_promised(self) -> bool:
        """Whether nothing is kept any more for whom it was: those that were refused for it are tried again."""
        if self._kept_for is None or self._kept_for == self._promised():
            return False
        self.reopen()
        return True

    def could_fit(self, ask: Ask) -> bool:
        """Whether one that waits would have room if nobody ran. Who would not keeps nobody waiting."""
        return self._could_fit(self._groups[ask.shape, ask.learners, ask.queue])

    def _could_fit(self, group: Group) -> bool:
        if group.could_fit is None:
            group.could_fit = could_fit(group.shape, group.learners, self.frees, self.running.values())
        return group.could_fit
