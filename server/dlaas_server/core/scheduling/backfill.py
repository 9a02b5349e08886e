"""Backfill and reservations: free capacity after running jobs end as expected, or after some are preempted.

Source: Lifka, "The ANL/IBM SP scheduling system", 1995 (EASY backfilling), computed per node instead of by counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import WHOLE, Shape, is_kind
from dlaas_server.core.placement.gang_placement import FreeCapacity, NodeCapacity
from dlaas_server.core.scheduling.equivalence_class import EquivalenceClass
from dlaas_server.core.scheduling.gang_request import GangRequest, Key
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.waiting_queue import LAST, WaitingQueue

__all__ = ["Backfill", "Reservation", "Room", "could_fit", "learners_that_fit", "reserve", "room_gained"]

Room = list[float]
"""Free capacity of a node: devices of the requested kind, CPUs, memory (bytes), disk (MB/s), network (Mbit/s).

Fractions of shared devices are summed as if they could be combined. A reservation that is too early because of that is
recomputed when it is due.
"""


def _room_of(node: NodeCapacity, shape: Shape) -> Room:
    devices: float = len(node.devices)
    if shape.gpu_kind is not None:
        devices = sum(is_kind(kind, shape.gpu_kind) for kind, _ in node.devices)
    if shape.is_share:
        devices += sum(milli for device, milli in node.parts.items() if node.takes(shape, device)) / WHOLE
    return [devices, node.cpus, node.memory_bytes, node.disk_mbps, node.net_mbps]


def learners_that_fit(room: Room, shape: Shape) -> int:
    count = room[0] // shape.gpus if shape.gpus else 1e9
    if shape.is_share:
        count = (room[0] + 1e-9) * WHOLE // shape.milli
    if shape.cpus:
        count = min(count, (room[1] + 1e-9) // shape.cpus)
    if shape.memory_bytes:
        count = min(count, room[2] // shape.memory_bytes)
    if shape.disk_mbps:
        count = min(count, (room[3] + 1e-9) // shape.disk_mbps)
    if shape.net_mbps:
        count = min(count, (room[4] + 1e-9) // shape.net_mbps)
    return int(count) if count > 0 else 0


def _add(room: Room, node: NodeCapacity, shape: Shape, seat: Seat, held: Shape, sign: int) -> None:
    devices = len(seat.devices)
    if shape.gpu_kind is not None:
        devices = sum(d in node.order and is_kind(node.order[d][1], shape.gpu_kind) for d in seat.devices)
    room[0] += sign * devices * (held.milli / WHOLE if held.is_share else 1)
    if not held.is_plain:
        for i, amount in enumerate((held.cpus, held.memory_bytes, held.disk_mbps, held.net_mbps), start=1):
            room[i] += sign * amount


@dataclass(slots=True)
class Reservation:
    """Reserved start of a gang at `at_s`. `spare`: number of its learners that fit then beyond those it needs."""

    request: GangRequest
    at_s: float
    spare: int
    then: dict[str, Room] = field(default_factory=dict)
    """Free capacity at `at_s`, for the nodes on which it exceeds the present one."""
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
            if self._ends_before(request, now_s):
                if is_spared is None:
                    self._note_rooms(request.shape, seats, capacity)
                return request
            if is_spared is None:
                is_spared = self._spares(request.shape, seats, capacity)
            if is_spared:
                return request
        return None

    def _ends_before(self, request: GangRequest, now_s: float) -> bool:
        end_s = request.end_s(now_s)
        return end_s is not None and end_s <= self.at_s and not self.is_strict

    def _note_rooms(self, held: Shape, seats: Sequence[Seat], capacity: FreeCapacity) -> None:
        """Add the future capacity of these nodes where it is unknown: the capacity before these seats were taken."""
        for seat in seats:
            if seat.node not in self.then:
                node = capacity.named(seat.node)
                assert node is not None
                room = self.then[seat.node] = _room_of(node, self.request.shape)
                for other in seats:
                    if other.node == seat.node:
                        _add(room, node, self.request.shape, other, held, 1)

    def _spares(self, held: Shape, seats: Sequence[Seat], capacity: FreeCapacity) -> bool:
        """Return whether the reserved gang still fits while these seats stay taken. If so, subtract them."""
        self._note_rooms(held, seats, capacity)
        shape, touched = self.request.shape, {seat.node: list(self.then[seat.node]) for seat in seats}
        loss = sum(learners_that_fit(room, shape) for room in touched.values())
        for seat in seats:
            node = capacity.named(seat.node)
            assert node is not None
            _add(touched[seat.node], node, shape, seat, held, -1)
        loss -= sum(learners_that_fit(room, shape) for room in touched.values())
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
    fits = capacity.room(shape, request.learners)
    then: dict[str, Room] = {}
    at_s = now_s
    for end_s, running in releases:
        if fits >= request.learners and (is_strict or end_s > at_s):
            break
        at_s = max(at_s, end_s)
        fits += room_gained(then, capacity, shape, running)
    return Reservation(request, at_s, max(fits - request.learners, 0), then, is_strict)


def room_gained(rooms: dict[str, Room], capacity: FreeCapacity, shape: Shape, leaving: GangRequest) -> int:
    """Return how many more learners of this shape fit once a running job frees its seats; update `rooms`."""
    gained = 0
    for seat in leaving.seats:
        node = capacity.named(seat.node)
        if node is None:
            continue
        room = rooms.get(seat.node)
        if room is None:
            room = rooms[seat.node] = _room_of(node, shape)
        before = learners_that_fit(room, shape)
        _add(room, node, shape, seat, leaving.shape, 1)
        gained += learners_that_fit(room, shape) - before
    return gained


def could_fit(shape: Shape, learners: int, capacity: FreeCapacity, running: Iterable[GangRequest]) -> bool:
    """Return whether a gang of this size would fit if all running jobs ended."""
    fits = capacity.room(shape, learners)
    rooms: dict[str, Room] = {}
    for one in running if fits < learners else ():
        fits += room_gained(rooms, capacity, shape, one)
        if fits >= learners:
            break
    return fits >= learners


class Backfill(WaitingQueue):
    """Backfill with one reservation at a time: for `fifo-skip`'s first waiting job, else the first late one."""

    def __init__(self, capacity: FreeCapacity) -> None:
        super().__init__(capacity)
        self.running: dict[int, GangRequest] = {}
        """Running jobs by number, in the order in which they got their seats."""

    def begin(self, policy: Policy, order: Order) -> None:
        """Reset to an empty queue without reservation, under this policy and order."""
        super().begin(policy, order)
        self._promises_first = policy.order == "fifo-skip"
        self._first: tuple[Key, GangRequest] | None = None
        """Reservation holder in `fifo-skip`: the first job that was tried and does not fit, and its key."""
        self._kept_for: Key | None = None
        """Key of the reservation holder for which other jobs were refused preemption."""

    def reopen(self) -> None:
        """Reopen every class, so that its head is tried again."""
        self._kept_for = None
        self._is_open = True
        for group in self._groups.values():
            group.is_shut = False

    def _holder(self, key: Key) -> GangRequest | None:
        """Return the reservation holder ahead of this key: `fifo-skip`'s first job, else the first late one."""
        if self._promises_first:
            return self._first[1] if self._first is not None and self._first[0] < key else None
        lates = self._lates
        while lates and lates[0][0] < key:
            _, stamp, request = lates[0]
            if stamp == request.version and self.could_fit(request):
                return request
            entry = heappop(lates)
            if stamp == request.version:
                self._without_room.append(entry)
        return None

    def _promised(self) -> Key | None:
        """Return the key of the job that holds the reservation."""
        if self._promises_first:
            return None if self._first is None else self._first[0]
        return None if self._holder(LAST) is None else self._lates[0][0]

    def _note_promised(self) -> bool:
        """Return whether the holder changed since others were refused for it. If so, reopen all classes."""
        if self._kept_for is None or self._kept_for == self._promised():
            return False
        self.reopen()
        return True

    def could_fit(self, request: GangRequest) -> bool:
        """Return whether a waiting job would fit if nothing ran. A job that would not fit holds no reservation."""
        return self._could_fit(self._groups[request.shape, request.learners, request.queue])

    def _could_fit(self, group: EquivalenceClass) -> bool:
        if group.could_fit is None:
            group.could_fit = could_fit(group.shape, group.learners, self.capacity, self.running.values())
        return group.could_fit
