"""Backfill: jobs behind a reservation start only where they do not delay it.

One job at a time holds a reservation: in `fifo-skip` the first waiting job, else the first late one. The reservation is
the earliest start of its gang if running jobs end as expected. A job that fits now is admitted past it if it ends
before, or if the reservation can spare its seats.
Source: Lifka, "The ANL/IBM SP scheduling system", 1995 (EASY backfilling), computed per node instead of by counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.placement.future_capacity import (
    NodeResources,
    add_seat,
    could_fit,
    free_resources,
    learners_gained,
    learners_that_fit,
)
from dlaas_server.core.scheduling.equivalence_class import EquivalenceClass
from dlaas_server.core.scheduling.fit import take_seats
from dlaas_server.core.scheduling.gang_request import GangRequest, Key
from dlaas_server.core.scheduling.ordering import SLACK_S, Order, is_by_age
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.running_set import RunningSet, by_start_time
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.waiting_queue import LAST, WaitingQueue

__all__ = ["Backfill", "Reservation", "reserve"]


@dataclass(slots=True)
class Reservation:
    """Reserved start of a gang at `at_s`. `spare`: number of its learners that fit then beyond those it needs."""

    request: GangRequest
    at_s: float
    spare: int
    then: dict[str, NodeResources] = field(default_factory=dict)
    """Free resources at `at_s`, for the nodes on which they exceed the present ones."""
    is_strict: bool = False
    """True if expected ends are not trusted: only jobs that take nothing from the reservation are admitted."""

    def first_admitted(
        self, requests: Iterable[GangRequest], seats: Sequence[Seat], capacity: FreeCapacity, now_s: float
    ) -> GangRequest | None:
        """Return the first job that ends before the reservation or leaves enough capacity for it; None if none does.

        All of `requests` have the same shape. The seats are taken already.
        """
        is_spared: bool | None = None
        for request in requests:
            end_s = None if self.is_strict else request.end_s(now_s)
            if end_s is not None and end_s <= self.at_s:
                if is_spared is None:
                    self._note_nodes(request.shape, seats, capacity)
                return request
            if is_spared is None:
                is_spared = self._spares(request.shape, seats, capacity)
            if is_spared:
                return request
        return None

    def _note_nodes(self, held: Shape, seats: Sequence[Seat], capacity: FreeCapacity) -> None:
        """Add the future resources of these nodes where they are unknown: those before these seats were taken."""
        for seat in seats:
            if seat.node not in self.then:
                node = capacity.named(seat.node)
                assert node is not None
                resources = self.then[seat.node] = free_resources(node, self.request.shape)
                for other in seats:
                    if other.node == seat.node:
                        add_seat(resources, node, self.request.shape, other, held)

    def _spares(self, held: Shape, seats: Sequence[Seat], capacity: FreeCapacity) -> bool:
        """Return whether the reserved gang still fits while these seats stay taken. If so, subtract them."""
        self._note_nodes(held, seats, capacity)
        shape, touched = self.request.shape, {seat.node: list(self.then[seat.node]) for seat in seats}
        loss = sum(learners_that_fit(resources, shape) for resources in touched.values())
        for seat in seats:
            node = capacity.named(seat.node)
            assert node is not None
            add_seat(touched[seat.node], node, shape, seat, held, -1)
        loss -= sum(learners_that_fit(resources, shape) for resources in touched.values())
        if loss > self.spare:
            return False
        self.spare -= loss
        self.then.update(touched)
        return True


def reserve(
    request: GangRequest,
    capacity: FreeCapacity,
    releases: Iterable[tuple[float, GangRequest]],
    now_s: float,
    *,
    is_strict: bool = False,
) -> Reservation:
    """Return the earliest reservation for this gang if no other job starts and running jobs end as expected.

    `releases` lists running jobs with their expected ends. `is_strict`: it is not sorted by time, and ending before the
    reservation does not admit a job.
    """
    shape = request.shape
    fitting = capacity.fit_count(shape, request.learners)
    then: dict[str, NodeResources] = {}
    at_s = now_s
    for end_s, running in releases:
        if fitting >= request.learners and (is_strict or end_s > at_s):
            break
        at_s = max(at_s, end_s)
        fitting += learners_gained(then, capacity, shape, running.shape, running.seats)
    return Reservation(request, at_s, max(fitting - request.learners, 0), then, is_strict)


class Backfill:
    """Holder of the reservation, and admission of other jobs past it."""

    def __init__(
        self,
        capacity: FreeCapacity,
        policy: Policy,
        order: Order,
        queue: WaitingQueue,
        running: RunningSet,
        guard: StarvationGuard,
    ) -> None:
        self._capacity, self._queue, self._running, self._guard = capacity, queue, running, guard
        self._is_by_age = is_by_age(order)
        self.reserves_first = policy.order == "fifo-skip"
        """True if the first waiting job that does not fit holds the reservation, late or not."""
        self._first: tuple[Key, GangRequest] | None = None
        """Holder in `fifo-skip`, and its key."""
        self._late: list[tuple[Key, int, GangRequest]] = []
        """Heap of waiting jobs that are late, with their versions. The first one holds the reservation."""
        self._never_fitting: list[tuple[Key, int, GangRequest]] = []
        """Late jobs that would not fit even if nothing ran."""
        self._reservation: Reservation | None = None
        """Last reservation, valid as long as every job ends at its expected time."""
        self.is_for_one_pass = False
        """True if the last reservation is valid in the present pass only."""
        self._held_back_for: Key | None = None
        """Key of the holder for which other jobs were refused preemption."""
        self.refused: list[EquivalenceClass] = []
        """Classes that fit in this pass but would have delayed the reservation."""

    # -- holder -------------------------------------------------------------------------------------------------------

    def add_late(self, key: Key, request: GangRequest) -> None:
        """Add a waiting job that became late."""
        heappush(self._late, (key, request.version, request))

    def holder(self, key: Key) -> GangRequest | None:
        """Return the holder of the reservation if it is ahead of this key."""
        if self.reserves_first:
            return self._first[1] if self._first is not None and self._first[0] < key else None
        late = self._late
        while late and late[0][0] < key:
            _, version, request = late[0]
            if version == request.version and self.could_fit(self._queue.class_of(request)):
                return request
            entry = heappop(late)
            if version == request.version:
                self._never_fitting.append(entry)
        return None

    def _holder_key(self) -> Key | None:
        if self.reserves_first:
            return None if self._first is None else self._first[0]
        return None if self.holder(LAST) is None else self._late[0][0]

    def set_first(self, first: tuple[Key, GangRequest] | None) -> bool:
        """Set the first waiting job that does not fit, the holder in `fifo-skip`. Return whether that reopened all."""
        self._first = first
        return self._held_back_for is not None and self.retry_if_holder_changed()

    def is_before_first(self, key: Key) -> bool:
        """Return whether this key is ahead of the first waiting job known not to fit."""
        return self._first is None or key < self._first[0]

    def hold_back(self) -> None:
        """Record that a job was refused preemption because of the present holder."""
        self._held_back_for = self._holder_key()

    def retry_if_holder_changed(self) -> bool:
        """Reopen all classes if the holder changed since jobs were held back for it. Return whether it did."""
        if self._held_back_for is None or self._held_back_for == self._holder_key():
            return False
        self.retry_all()
        return True

    def retry_all(self) -> None:
        """Reopen every class, so that its head is tried again."""
        self._held_back_for = None
        self._queue.reopen()

    def could_fit(self, alike: EquivalenceClass) -> bool:
        """Return whether jobs of this class would fit if nothing ran. Others hold no reservation."""
        if alike.could_fit is None:
            held = ((request.shape, request.seats) for request in self._running.jobs.values())
            alike.could_fit = could_fit(alike.shape, alike.learners, self._capacity, held)
        return alike.could_fit

    def capacity_changed(self) -> None:
        """Reconsider every job after the capacity changed without a job of this scheduler starting or ending."""
        self._reservation = None
        for alike in self._queue.classes.values():
            alike.could_fit = None
        for entry in self._never_fitting:
            heappush(self._late, entry)
        self._never_fitting = []
        self.retry_all()

    # -- reservation --------------------------------------------------------------------------------------------------

    def discard_reservation(self) -> None:
        """Discard the last reservation, since running jobs do not end as it assumed."""
        self._reservation, self.is_for_one_pass = None, False

    def reserve(self, request: GangRequest, now_s: float) -> Reservation:
        """Return the reservation of this holder: the last one, if it still holds."""
        last, is_strict = self._reservation, self._guard.is_overdue(request, now_s)
        holds = last is not None and last.request is request and now_s < last.at_s and not is_strict
        ends = self._running.ends
        if last is not None and holds and not ends.is_behind(now_s):
            return last
        running = self._running.jobs.values()
        releases = by_start_time(running) if is_strict else ends.in_order(running, now_s)
        self._reservation = reserve(request, self._capacity, releases, now_s, is_strict=is_strict)
        return self._reservation

    def admit(self, alike: EquivalenceClass, reservation: Reservation, now_s: float) -> GangRequest | None:
        """Return the first job of a class that fits now and does not delay the reservation; its seats are taken.

        All jobs of a class get the same seats. A job without a known end counts against a reservation without a known
        time in this pass only. From the next pass on, it is among the running jobs that end before it.
        """
        assert alike.head is not None
        seats = take_seats(self._capacity, alike.head, now_s)
        if seats is None:
            return None
        admitted = reservation.first_admitted(alike.heads(), seats, self._capacity, now_s)
        if admitted is None:
            self._capacity.give(alike.shape, seats)
        else:
            admitted.seats = seats
            self.is_for_one_pass |= reservation.at_s == inf and admitted.estimate_s is None
        return admitted

    def refuse(self, alike: EquivalenceClass) -> None:
        """Record that a class fits but would delay the reservation."""
        self.refused.append(alike)

    def reopen_refused(self, reservation: Reservation | None, now_s: float) -> Reservation | None:
        """Reopen the refused classes: jobs that start meanwhile may leave seats free that delay no other job.

        Return the reservation, recomputed if a job started after it was made.
        """
        for alike in self.refused:
            alike.is_blocked = False
            if reservation is None and alike.key is not None and (holder := self.holder(alike.key)):
                reservation = self.reserve(holder, now_s)
        self.refused, self._queue.is_open = [], True
        return reservation

    def next_admission_s(self, reservation: Reservation | None, now_s: float, next_s: float) -> float | None:
        """Return the earliest time, at most `next_s`, at which other jobs may be admitted.

        A job that has not ended by its expected end delays the reservation. In orders by age the holder also becomes
        overdue.
        """
        end_s = self._running.ends.first_s()
        if now_s < end_s:
            next_s = min(next_s, end_s + SLACK_S / 2)
        if reservation is not None and self._is_by_age and not reservation.is_strict:
            next_s = min(next_s, self._guard.overdue_s(reservation.request))
        return next_s if next_s < inf else None
