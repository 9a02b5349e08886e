"""Waiting queue: waiting jobs in equivalence classes, in queue order.

Jobs with the same shape, number of learners and queue form one class. Only the heads of the classes are tried, so the
cost of an event grows with the number of classes, not with the number of waiting jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity
from dlaas_server.core.scheduling.equivalence_class import Entry, EquivalenceClass
from dlaas_server.core.scheduling.fit import relaxation_times
from dlaas_server.core.scheduling.gang_request import GangRequest, Key
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import Order, Slices, is_by_age
from dlaas_server.core.scheduling.timers import RETRY, Timers

__all__ = ["FIRST", "LAST", "WaitingQueue"]

FIRST: Final = -3
"""Rank of an overdue job, below all other ranks."""
ABOVE: Final = -(1 << 60)
"""First component of the key of a job that goes before all priorities."""
LAST: Final[Key] = (-ABOVE, 0, 0, 0.0, 0)
"""Key behind those of all waiting jobs."""
MAX_CLASSES: Final = 64
"""Number of equivalence classes above which empty ones are deleted."""


class WaitingQueue:
    """Waiting jobs. Mutable, but without clock or randomness."""

    def __init__(self, capacity: FreeCapacity, order: Order, timers: Timers) -> None:
        self._capacity, self._order, self._timers = capacity, order, timers
        self._is_by_age = is_by_age(order)
        self._is_by_turn = isinstance(order, Slices)
        self.classes: dict[tuple[Shape, int, str], EquivalenceClass] = {}
        """Equivalence classes by `GangRequest.class_key`, empty ones included."""
        self.count = 0
        """Number of waiting jobs."""
        self.relaxes = False
        """True if some job accepts seats further apart with time."""
        self.is_open = True
        """True if some class may be open, that is, its head is worth a try."""

    def insert(self, request: GangRequest) -> Key:
        """Insert a job at the place that its priority, lateness, rank and age give it. Return its key."""
        self.count += 1
        class_key = request.class_key
        alike = self.classes.get(class_key)
        if alike is None:
            alike = self.classes[class_key] = EquivalenceClass(request.shape, request.learners)
        key = self.key_of(request)
        if alike.push(key, request):
            alike.is_blocked, self.is_open = False, True
        for relaxes_s in relaxation_times(self._capacity, request) if request.weight > 1 else ():
            self.relaxes = True
            self._timers.add(relaxes_s, RETRY, request)
        return key

    def take_out(self, request: GangRequest) -> None:
        """Remove a job whose place changes, to be inserted again. Its class is reopened."""
        self.count -= 1
        alike = self.class_of(request)
        request.version += 1
        request.patience_s = -1.0
        alike.is_blocked, self.is_open = False, True
        if alike.head is request:
            alike.refresh()

    def withdraw(self, request: GangRequest) -> None:
        """Remove a job that no longer waits for devices."""
        self.count -= 1
        request.version += 1
        alike = self.class_of(request)
        if alike.head is request:
            alike.refresh()
            alike.is_blocked, self.is_open = False, True

    def remove_started(self, request: GangRequest, alike: EquivalenceClass) -> None:
        """Remove a job of this class that started. Its version has risen already."""
        self.count -= 1
        alike.refresh()
        if alike.key is None and len(self.classes) > MAX_CLASSES:
            del self.classes[request.class_key]

    def reopen(self) -> None:
        """Reopen every class, so that its head is tried again."""
        self.is_open = True
        for alike in self.classes.values():
            alike.is_blocked = False

    def key_of(self, request: GangRequest) -> Key:
        """Return the sort key of a job, by priority, lateness, rank and age."""
        lateness = request.lateness
        if lateness is Lateness.STARVING:
            return (ABOVE, FIRST, -1, request.submitted_s, request.number)
        if self._is_by_age:
            return (-request.priority, request.rank, 0, request.submitted_s, request.number)
        if lateness:
            if lateness is Lateness.OVERDUE:
                return (-request.priority, FIRST, -1, request.submitted_s, request.number)
            lifted = self._order.lifted
            assert lifted is not None
            return (-request.priority, min(request.rank, lifted), -1, request.submitted_s, request.number)
        since_s = request.queued_s if self._is_by_turn else request.submitted_s
        return (-request.priority, request.rank, 0, since_s, request.number)

    def class_of(self, request: GangRequest) -> EquivalenceClass:
        """Return the equivalence class of a waiting job."""
        return self.classes[request.class_key]

    def _entries(self) -> Iterator[Entry]:
        return chain.from_iterable(alike.waiting() for alike in self.classes.values())

    def jobs(self) -> list[GangRequest]:
        """Return all waiting jobs, unsorted."""
        return [entry[6] for entry in self._entries()]

    def in_order(self) -> list[GangRequest]:
        """Return all waiting jobs in queue order."""
        return [entry[6] for entry in sorted(self._entries())]

    @property
    def head(self) -> GangRequest | None:
        """First job in queue order."""
        first: EquivalenceClass | None = None
        for alike in self.classes.values():
            if alike.key is not None and (first is None or first.key is None or alike.key < first.key):
                first = alike
        return None if first is None else first.head
