"""What would be free: when running jobs end as expected (reservations), or when some of them are preempted.

Source: Lifka, "The ANL/IBM SP scheduling system", 1995 (EASY backfilling), with places instead of counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dlaas_server.core.model.job import Seat
from dlaas_server.core.placement.gang_placement import Free, Frees, Shape, is_kind
from dlaas_server.core.placement.shape import WHOLE
from dlaas_server.core.scheduling.gang_request import Ask, Late
from dlaas_server.core.scheduling.policy import Share

__all__ = ["Reservation", "borrowers", "could_fit", "reserve", "victims_for"]

Room = list[float]
"""What is free on a node: devices of the kind that is asked for, CPUs, memory, disk, network.

Shares are added up as if they could be put together: a promise that is too early for that is made anew when it is due.
"""


def _room_of(node: Free, shape: Shape) -> Room:
    devices: float = len(node.devices)
    if shape.gpu_kind is not None:
        devices = sum(is_kind(kind, shape.gpu_kind) for kind, _ in node.devices)
    if shape.is_share:
        devices += sum(milli for device, milli in node.parts.items() if node.takes(shape, device)) / WHOLE
    return [devices, node.cpus, node.memory_bytes, node.disk_mbps, node.net_mbps]


def _fits(room: Room, shape: Shape) -> int:
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


def _add(room: Room, node: Free, shape: Shape, seat: Seat, held: Shape, sign: int) -> None:
    devices = len(seat.devices)
    if shape.gpu_kind is not None:
        devices = sum(d in node.order and is_kind(node.order[d][1], shape.gpu_kind) for d in seat.devices)
    room[0] += sign * devices * (held.milli / WHOLE if held.is_share else 1)
    if not held.is_plain:
        for i, amount in enumerate((held.cpus, held.memory_bytes, held.disk_mbps, held.net_mbps), start=1):
            room[i] += sign * amount


@dataclass(slots=True)
class Reservation:
    """A gang is promised to start at `at_s`; `spare`: how many learners more than it has would fit then."""

    ask: Ask
    at_s: float
    spare: int
    then: dict[str, Room] = field(default_factory=dict)
    """What will be free then on the nodes on which that is more than now."""
    is_strict: bool = False
    """Expected ends are not believed any more: only what takes nothing from it may pass."""

    def first_admitted(self, asks: Iterable[Ask], seats: Sequence[Seat], frees: Frees, now_s: float) -> Ask | None:
        """The first of these, all of one shape, that may start on these seats: it ends before, or leaves enough.

        The seats are taken already.
        """
        is_spared: bool | None = None
        for ask in asks:
            if self._ends_before(ask, now_s):
                if is_spared is None:
                    self._note_rooms(ask.shape, seats, frees)
                return ask
            if is_spared is None:
                is_spared = self._spares(ask.shape, seats, frees)
            if is_spared:
                return ask
        return None

    def _ends_before(self, ask: Ask, now_s: float) -> bool:
        end_s = ask.end_s(now_s)
        return end_s is not None and end_s <= self.at_s and not self.is_strict

    def _note_rooms(self, held: Shape, seats: Sequence[Seat], frees: Frees) -> None:
        """What will be free on these nodes: as before these seats were taken, where nothing else is known of them."""
        for seat in seats:
            if seat.node not in self.then:
                node = frees.named(seat.node)
                assert node is not None
                room = self.then[seat.node] = _room_of(node, self.ask.shape)
                for other in seats:
                    if other.node == seat.node:
                        _add(room, node, self.ask.shape, other, held, 1)

    def _spares(self, held: Shape, seats: Sequence[Seat], frees: Frees) -> bool:
        """Whether the gang that waits still fits if these seats stay taken; if so, they are."""
        self._note_rooms(held, seats, frees)
        shape, touched = self.ask.shape, {seat.node: list(self.then[seat.node]) for seat in seats}
        loss = sum(_fits(room, shape) for room in touched.values())
        for seat in seats:
            node = frees.named(seat.node)
            assert node is not None
            _add(touched[seat.node], node, shape, seat, held, -1)
        loss -= sum(_fits(room, shape) for room in touched.values())
        if loss > self.spare:
            return False
        self.spare -= loss
        self.then.update(touched)
        return True


def reserve(
    ask: Ask, frees: Frees, releases: Iterable[tuple[float, Ask]], now_s: float, *, is_strict: bool = False
) -> Reservation:
    """When this gang will fit, if nobody else starts and running jobs end as expected, in the order of `releases`.

    `is_strict`: that order is not by time, and nothing passes by ending before.
    """
    shape = ask.shape
    fits = frees.room(shape, ask.learners)
    then: dict[str, Room] = {}
    at_s = now_s
    for end_s, running in releases:
        if fits >= ask.learners and (is_strict or end_s > at_s):
            break
        at_s = max(at_s, end_s)
        fits += _gained(then, frees, shape, running)
    return Reservation(ask, at_s, max(fits - ask.learners, 0), then, is_strict)


def _gained(rooms: dict[str, Room], frees: Frees, shape: Shape, leaving: Ask) -> int:
    """How many more learners of this shape fit when a running job's seats are free; `rooms` takes them in."""
    gained = 0
    for seat in leaving.seats:
        node = frees.named(seat.node)
        if node is None:
            continue
        room = rooms.get(seat.node)
        if room is None:
            room = rooms[seat.node] = _room_of(node, shape)
        before = _fits(room, shape)
        _add(room, node, shape, seat, leaving.shape, 1)
        gained += _fits(room, shape) - before
    return gained


def could_fit(shape: Shape, learners: int, frees: Frees, running: Iterable[Ask]) -> bool:
    """Whether so many learners would have room if all that run ended."""
    fits = frees.room(shape, learners)
    rooms: dict[str, Room] = {}
    for one in running if fits < learners else ():
        fits += _gained(rooms, frees, shape, one)
        if fits >= learners:
            break
    return fits >= learners


def victims_for(ask: Ask, frees: Frees, candidates: Iterable[Ask]) -> list[Ask]:
    """The first of the candidates whose seats, with what is free, are enough for this gang; none if all are not.

    Those that free nothing on the nodes that take it are left out.
    """
    shape = ask.shape
    fits = frees.room(shape, ask.learners)
    rooms: dict[str, Room] = {}
    tried: list[Ask] = []
    for victim in candidates:
        tried.append(victim)
        fits += _gained(rooms, frees, shape, victim)
        if fits >= ask.learners:
            useful = {name for name, room in rooms.items() if _fits(room, shape)}
            return [one for one in tried if any(seat.node in useful for seat in one.seats)]
    return []


def borrowers(
    ask: Ask, running: Iterable[Ask], used: Mapping[str, int], share_of: Callable[[str], Share]
) -> Iterator[Ask]:
    """The youngest jobs of queues that have more than is theirs, for one whose queue has less."""
    left = dict(used)
    for one in sorted(running, key=lambda one: (one.priority, -one.began_s, -one.number)):
        over = left[one.queue] - share_of(one.queue).guaranteed
        may_go = one.is_victim or (one.late is Late.FORGOTTEN and one.may_stop)
        if may_go and one.priority <= ask.priority and one.queue != ask.queue and over >= one.weight:
            left[one.queue] -= one.weight
            yield one
