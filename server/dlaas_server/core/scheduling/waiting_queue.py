"""Queue of waiting jobs, in equivalence classes, with the lateness of each job.

The base of `backfill` and `scheduler`, which decide which jobs start.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import Final

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Frees
from dlaas_server.core.scheduling.equivalence_class import Group
from dlaas_server.core.scheduling.fit import relaxes_s
from dlaas_server.core.scheduling.gang_request import Ask, Key
from dlaas_server.core.scheduling.lateness import Late
from dlaas_server.core.scheduling.ordering import SLACK_S, Fair, Order, Slices, is_by_age, length_counts
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.starvation_guard import Forgotten

__all__ = ["FIRST", "LAST", "LIFT", "RANK", "READY", "VICTIM", "Lines"]

FIRST: Final = -3
"""Rank of an overdue job, below all other ranks."""
ABOVE: Final = -(1 << 60)
"""First component of the key of a job that goes before all priorities."""
LAST: Final[Key] = (-ABOVE, 0, 0, 0.0, 0)
"""Key behind those of all waiting jobs."""
LIFT, VICTIM, RANK, READY = range(4)


class Lines:
    """Waiting jobs. Mutable, but without clock or randomness."""

    def __init__(self, frees: Frees) -> None:
        self.frees = frees

    def begin(self, policy: Policy, order: Order) -> None:
        """Reset to an empty queue under this policy and order."""
        self.policy = policy
        self.order = order
        self.waiting = 0
        self._is_fair = isinstance(order, Fair)
        self._is_by_age = is_by_age(order)
        self._length_counts = length_counts(order)
        self._by_turn = isinstance(order, Slices)
        self._forgotten_after_s = Late.FORGOTTEN * policy.age_s
        self._steps: tuple[Late, ...] = (Late.OVERDUE, Late.FORGOTTEN) if self._is_fair else (Late.FORGOTTEN,)
        if order.lifted is not None:
            self._steps = (Late.LIFTED, Late.LATE, Late.OVERDUE, Late.FORGOTTEN)
        self._groups: dict[tuple[Shape, int, str], Group] = {}
        self._timers: list[tuple[float, int, int, int, Ask]] = []
        self._forgotten = Forgotten()
        self._ages: deque[tuple[float, int, Ask]] = deque()
        """(earliest time of reaching `Late.FORGOTTEN`, stamp, job), by time. Only used in orders by age."""
        self._lates: list[tuple[Key, int, Ask]] = []
        """Heap of waiting jobs that are late, with their stamps. The first one holds the reservation."""
        self._without_room: list[tuple[Key, int, Ask]] = []
        """Late jobs that would not fit even if nothing ran."""
        self._relaxes = False
        self._is_open = True
        """True if some class may be open, that is, its head is worth a try."""

    def line(self) -> list[Ask]:
        """Return all waiting jobs in queue order."""
        return [ask for _, ask in sorted(self._entries(), key=lambda entry: entry[0])]

    def _entries(self) -> list[tuple[Key, Ask]]:
        return [entry for group in self._groups.values() for entry in group.waiting()]

    @property
    def head(self) -> Ask | None:
        """First job in queue order."""
        first: Group | None = None
        for group in self._groups.values():
            if group.key is not None and (first is None or first.key is None or group.key < first.key):
                first = group
        return None if first is None else first.head

    def _late(self, ask: Ask, at_s: float) -> tuple[Late, float | None]:
        """Return the lateness that the job reaches if it waits until `at_s`, and the time of the next step."""
        return ask.lateness(self.policy.age_s, self._length_counts, self._steps, at_s)

    def _note_bound(self, ask: Ask, now_s: float) -> None:
        ask.late, next_s = self._late(ask, now_s)
        if ask.late is Late.FORGOTTEN:
            self._forgotten.waits(ask)
            if ask is not self._forgotten.turn:
                ask.late = self._behind_turn()
        if next_s is not None:
            heappush(self._timers, (next_s, ask.number, LIFT, ask.stamp, ask))

    def _age(self, ask: Ask, now_s: float) -> None:
        """Record lateness in orders by age, where `Late.FORGOTTEN` is the first step.

        A timer per job would cost too much.
        """
        ask.late = Late.NOT
        at_s, ages = ask.queued_s + self._forgotten_after_s, self._ages
        if ages and at_s < ages[-1][0]:
            self._note_bound(ask, now_s)
        else:
            ages.append((at_s, ask.stamp, ask))

    def _grow_old(self, now_s: float) -> None:
        while self._ages and self._ages[0][0] <= now_s:
            _, stamp, ask = self._ages.popleft()
            if ask.stamp == stamp:
                self._note_bound(ask, now_s)

    def would_be(self, ask: Ask, now_s: float) -> tuple[Key, bool]:
        """Return the key that this job would have in this queue, and whether it could get the starvation guard's turn.

        Assumes that the turn is not its own. Changes only the rank and the lateness of `ask`.
        """
        ask.rank = self.order.rank(ask, now_s)
        late, _ = self._late(ask, now_s)
        is_forgotten = late is Late.FORGOTTEN
        ask.late = self._behind_turn() if is_forgotten else late
        return self._key(ask), is_forgotten

    def _behind_turn(self) -> Late:
        """Return the lateness that a starving job counts as while the turn is another job's."""
        return self._steps[-2] if len(self._steps) > 1 else Late.NOT

    def _bound_s(self, ask: Ask) -> float:
        return ask.bound_s(self.policy.age_s, self.order.age_factor)

    def _is_overdue(self, ask: Ask, now_s: float) -> bool:
        if self._is_by_age:  # no job is lifted, so no timer marks the step
            return self._overdue_s(ask) <= now_s
        return ask.late >= Late.OVERDUE

    def _overdue_s(self, ask: Ask) -> float:
        return ask.queued_s + Late.OVERDUE * self._bound_s(ask)

    def _note_start(self, ask: Ask) -> None:
        """Record the lateness that the job had when it got its seats."""
        ask.late, _ = self._late(ask, ask.began_s + SLACK_S)
        if ask.late is Late.FORGOTTEN:
            self._forgotten.runs(ask)

    def _line_up(self, ask: Ask) -> None:
        named = (ask.shape, ask.learners, ask.queue)
        group = self._groups.get(named)
        if group is None:
            group = self._groups[named] = Group(ask.shape, ask.learners)
        key = self._key(ask)
        if group.push(key, ask):
            group.is_shut, self._is_open = False, True
        if ask.late and ask.late >= Late.LATE:
            heappush(self._lates, (key, ask.stamp, ask))
        for relax_s in relaxes_s(self.frees, ask) if ask.weight > 1 else ():
            self._relaxes = True
            heappush(self._timers, (relax_s, ask.number, READY, ask.stamp, ask))

    def _key(self, ask: Ask) -> Key:
        if ask.late is Late.FORGOTTEN:
            return (ABOVE, FIRST, -1, ask.submitted_s, ask.number)
        if self._is_by_age:
            return (-ask.priority, ask.rank, 0, ask.submitted_s, ask.number)
        if ask.late:
            if ask.late is Late.OVERDUE:
                return (-ask.priority, FIRST, -1, ask.submitted_s, ask.number)
            assert self.order.lifted is not None
            return (-ask.priority, min(ask.rank, self.order.lifted), -1, ask.submitted_s, ask.number)
        return (-ask.priority, ask.rank, 0, ask.queued_s if self._by_turn else ask.submitted_s, ask.number)

    def _move(self, ask: Ask, now_s: float) -> None:
        group = self._groups[ask.shape, ask.learners, ask.queue]
        ask.stamp += 1
        ask.patience_s = -1.0
        group.is_shut, self._is_open = False, True
        if group.head is ask:
            group.refresh()
        self._note_bound(ask, now_s)
        self._line_up(ask)
