"""What would be free: when running jobs end as expected (reservations), or when some of them are preempted.

Source: Lifka, "The ANL/IBM SP scheduling system", 1995 (EASY backfilling), with places instead of counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dlaas_server.core.asks import Ask
from dlaas_server.core.model import Seat
from dlaas_server.core.place import Free, Frees, Shape, is_kind

__all__ = ["Reservation", "reserve", "victims_for"]

Room = list[float]
"""What is free on a node: devices of the kind that is asked for, CPUs, memory, disk, network."""


def _room_of(node: Free, shape: Shape) -> Room:
    devices = len(node.devices)
    if shape.gpu_kind is not None:
        devices = sum(is_kind(kind, shape.gpu_kind) for kind, _ in node.devices)
    return [devices, node.cpus, node.memory_bytes, node.disk_mbps, node.net_mbps]


def _fits(room: Room, shape: Shape) -> int:
    count = room[0] // shape.gpus if shape.gpus else 1e9
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
    room[0] += sign * devices
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
    is_late: bool = False
    """The promise was broken already: only what takes nothing from it may pass."""

    def admits(self, ask: Ask, seats: Sequence[Seat], frees: Frees, now_s: float) -> bool:
        """Whether a job may start on these seats, which it has taken: it ends before, or leaves enough."""
        end_s = ask.end_s(now_s)
        ends_before = end_s is not None and end_s <= self.at_s and not self.is_late
        shape, loss = self.ask.shape, 0
        touched: dict[str, Room] = {}
        for seat in seats:
            name = seat.node
            node = frees.named(name)
            assert node is not None
            if name not in touched:
                room = self.then.get(name)
                if room is None:  # as it was before these seats were taken, and as it will be if the job ends before
                    room = self.then[name] = _room_of(node, shape)
                    for other in seats:
                        if other.node == name:
                            _add(room, node, shape, other, ask.shape, 1)
                if ends_before:
                    touched[name] = room
                    continue
                touched[name] = list(room)
                loss += _fits(room, shape)
            if not ends_before:
                _add(touched[name], node, shape, seat, ask.shape, -1)
        if ends_before:
            return True
        loss -= sum(_fits(room, shape) for room in touched.values())
        if loss > self.spare:
            return False
        self.spare -= loss
        self.then.update(touched)
        return True


def reserve(ask: Ask, frees: Frees, releases: Iterable[tuple[float, Ask]], now_s: float) -> Reservation:
    """When this gang will fit, if nobody else starts and running jobs end as expected."""
    shape = ask.shape
    fits = frees.room(shape, ask.learners)
    then: dict[str, Room] = {}
    at_s = now_s
    for end_s, running in releases:
        if fits >= ask.learners and end_s > at_s:
            break
        at_s = end_s
        fits += _gained(then, frees, shape, running)
    return Reservation(ask, at_s, max(fits - ask.learners, 0), then)


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
