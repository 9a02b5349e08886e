"""Queue of waiting jobs, in equivalence classes, with the lateness of each job.

The base of `backfill` and `scheduler`, which decide which jobs start.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import Final

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity
from dlaas_server.core.scheduling.equivalence_class import EquivalenceClass
from dlaas_server.core.scheduling.fit import relaxes_s
from dlaas_server.core.scheduling.gang_request import GangRequest, Key
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import SLACK_S, Fair, Order, Slices, is_by_age, length_counts
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard

__all__ = ["FIRST", "LAST", "LIFT", "RANK", "READY", "VICTIM", "WaitingQueue"]

FIRST: Final = -3
"""Rank of an overdue job, below all other ranks."""
ABOVE: Final = -(1 << 60)
"""First component of the key of a job that goes before all priorities."""
LAST: Final[Key] = (-ABOVE, 0, 0, 0.0, 0)
"""Key behind those of all waiting jobs."""
LIFT, VICTIM, RANK, READY = range(4)


class WaitingQueue:
    """Waiting jobs. Mutable, but without clock or randomness."""

    def __init__(self, capacity: FreeCapacity) -> None:
        self.capacity = capacity

    def begin(self, policy: Policy, order: Order) -> None:
        """Reset to an empty queue under this policy and order."""
        self.policy = policy
        self.order = order
        self.waiting = 0
        self._is_fair = isinstance(order, Fair)
        self._is_by_age = is_by_age(order)
        self._length_counts = length_counts(order)
        self._by_turn = isinstance(order, Slices)
        self._forgotten_after_s = Lateness.STARVING * policy.age_s
        self._steps: tuple[Lateness, ...] = (
            (Lateness.OVERDUE, Lateness.STARVING) if self._is_fair else (Lateness.STARVING,)
        )
        if order.lifted is not None:
            self._steps = (Lateness.LIFTED, Lateness.LATE, Lateness.OVERDUE, Lateness.STARVING)
        self._groups: dict[tuple[Shape, int, str], EquivalenceClass] = {}
        self._timers: list[tuple[float, int, int, int, GangRequest]] = []
        self._forgotten = StarvationGuard()
        self._ages: deque[tuple[float, int, GangRequest]] = deque()
        """(earliest time of reaching `Lateness.STARVING`, stamp, job), by time. Only used in orders by age."""
        self._lates: list[tuple[Key, int, GangRequest]] = []
        """Heap of waiting jobs that are late, with their stamps. The first one holds the reservation."""
        self._without_room: list[tuple[Key, int, GangRequest]] = []
        """Late jobs that would not fit even if nothing ran."""
        self._relaxes = False
        self._is_open = True
        """True if some class may be open, that is, its head is worth a try."""

    def queue_order(self) -> list[GangRequest]:
        """Return all waiting jobs in queue order."""
        return [request for _, request in sorted(self._entries(), key=lambda entry: entry[0])]

    def _entries(self) -> list[tuple[Key, GangRequest]]:
        return [entry for group in self._groups.values() for entry in group.waiting()]

    @property
    def head(self) -> GangRequest | None:
        """First job in queue order."""
        first: EquivalenceClass | None = None
        for group in self._groups.values():
            if group.key is not None and (first is None or first.key is None or group.key < first.key):
                first = group
        return None if first is None else first.head

    def _late(self, request: GangRequest, at_s: float) -> tuple[Lateness, float | None]:
        """Return the lateness that the job reaches if it waits until `at_s`, and the time of the next step."""
        return request.lateness_at(self.policy.age_s, self._length_counts, self._steps, at_s)

    def _note_bound(self, request: GangRequest, now_s: float) -> None:
        request.lateness, next_s = self._late(request, now_s)
        if request.lateness is Lateness.STARVING:
            self._forgotten.waits(request)
            if request is not self._forgotten.turn:
                request.lateness = self._behind_turn()
        if next_s is not None:
            heappush(self._timers, (next_s, request.number, LIFT, request.version, request))

    def _age(self, request: GangRequest, now_s: float) -> None:
        """Record lateness in orders by age, where `Lateness.STARVING` is the first step.

        A timer per job would cost too much.
        """
        request.lateness = Lateness.ON_TIME
        at_s, ages = request.queued_s + self._forgotten_after_s, self._ages
        if ages and at_s < ages[-1][0]:
            self._note_bound(request, now_s)
        else:
            ages.append((at_s, request.version, request))

    def _grow_old(self, now_s: float) -> None:
        while self._ages and self._ages[0][0] <= now_s:
            _, stamp, request = self._ages.popleft()
            if request.version == stamp:
                self._note_bound(request, now_s)

    def would_be(self, request: GangRequest, now_s: float) -> tuple[Key, bool]:
        """Return the key that this job would have in this queue, and whether it could get the starvation guard's turn.

        Assumes that the turn is not its own. Changes only the rank and the lateness of `request`.
        """
        request.rank = self.order.rank(request, now_s)
        late, _ = self._late(request, now_s)
        is_forgotten = late is Lateness.STARVING
        request.lateness = self._behind_turn() if is_forgotten else late
        return self._key(request), is_forgotten

    def _behind_turn(self) -> Lateness:
        """Return the lateness that a starving job counts as while the turn is another job's."""
        return self._steps[-2] if len(self._steps) > 1 else Lateness.ON_TIME

    def _bound_s(self, request: GangRequest) -> float:
        return request.bound_s(self.policy.age_s, self.order.age_factor)

    def _is_overdue(self, request: GangRequest, now_s: float) -> bool:
        if self._is_by_age:  # no job is lifted, so no timer marks the step
            return self._overdue_s(request) <= now_s
        return request.lateness >= Lateness.OVERDUE

    def _overdue_s(self, request: GangRequest) -> float:
        return request.queued_s + Lateness.OVERDUE * self._bound_s(request)

    def _note_start(self, request: GangRequest) -> None:
        """Record the lateness that the job had when it got its seats."""
        request.lateness, _ = self._late(request, request.began_s + SLACK_S)
        if request.lateness is Lateness.STARVING:
            self._forgotten.runs(request)

    def _line_up(self, request: GangRequest) -> None:
        named = (request.shape, request.learners, request.queue)
        group = self._groups.get(named)
        if group is None:
            group = self._groups[named] = EquivalenceClass(request.shape, request.learners)
        key = self._key(request)
        if group.push(key, request):
            group.is_shut, self._is_open = False, True
        if request.lateness and request.lateness >= Lateness.LATE:
            heappush(self._lates, (key, request.version, request))
        for relax_s in relaxes_s(self.capacity, request) if request.weight > 1 else ():
            self._relaxes = True
            heappush(self._timers, (relax_s, request.number, READY, request.version, request))

    def _key(self, request: GangRequest) -> Key:
        if request.lateness is Lateness.STARVING:
            return (ABOVE, FIRST, -1, request.submitted_s, request.number)
        if self._is_by_age:
            return (-request.priority, request.rank, 0, request.submitted_s, request.number)
        if request.lateness:
            if request.lateness is Lateness.OVERDUE:
                return (-request.priority, FIRST, -1, request.submitted_s, request.number)
            assert self.order.lifted is not None
            return (-request.priority, min(request.rank, self.order.lifted), -1, request.submitted_s, request.number)
        return (
            -request.priority,
            request.rank,
            0,
            request.queued_s if self._by_turn else request.submitted_s,
            request.number,
        )

    def _move(self, request: GangRequest, now_s: float) -> None:
        group = self._groups[request.shape, request.learners, request.queue]
        request.version += 1
        request.patience_s = -1.0
        group.is_shut, self._is_open = False, True
        if group.head is request:
            group.refresh()
        self._note_bound(request, now_s)
        self._line_up(request)
