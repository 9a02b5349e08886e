"""Immediate starts: chosen jobs that get idle seats at once, and idle devices kept for the others.

The scheduler decides as if leaving jobs had left already. A chosen job whose seats are still in use starts elsewhere if
it fits there. Otherwise the idle part of its seats is kept for it. A job whose seats another one took gets those that
are left once the leaving jobs have left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Loan, Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, Layout, beside, fit_count
from dlaas_server.core.scheduling.fit import fits, take_seats
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.pass_result import PassResult
from dlaas_server.core.spot.spot_scheduler import blocking_loans

__all__ = ["HeldDevices", "ImmediateStarts", "held_devices", "immediate_starts"]

NOTHING = Shape(0, 0.0, 0, None, Layout.PACK)


@dataclass(slots=True)
class ImmediateStarts:
    """Seats of jobs that start at once, and seats kept for jobs that start after others have left."""

    seats: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    later: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    """Chosen job that does not start at once -> its seats once others have left them."""
    kept: dict[str, list[tuple[Shape, Seat]]] = field(default_factory=dict)
    """Job -> idle part of these seats. It stays free in `idle`."""
    rest: FreeCapacity | None = None
    """Idle capacity that is not kept for a job; None if nothing is kept."""
    apart: set[str] = field(default_factory=set)
    """Jobs that fit on idle devices, but wait for those of spot jobs, which are on fewer nodes."""
    differs: bool = False
    """True if a job got other seats than the chosen ones."""


def immediate_starts(
    result: PassResult,
    queue: Sequence[GangRequest],
    idle: FreeCapacity,
    lendable: FreeCapacity,
    future: FreeCapacity,
    now_s: float,
    *,
    is_strict: bool,
) -> ImmediateStarts:
    """Assign idle seats to the chosen jobs, in queue order, and take them from `idle`.

    `queue`: requests of queued jobs in queue order; other chosen jobs migrate, and have to leave their seats first.
    `lendable`: `idle` plus the devices of spot jobs, which give back chosen seats. `future`: capacity once leaving jobs
    have left, without the chosen seats. A job behind a reservation, and a job for which others are preempted, gets only
    the seats that were chosen, so that it delays no other job.
    """
    starts, then = ImmediateStarts(), _FutureSeats(future, result, now_s)
    positions = {request.id: position for position, request in enumerate(queue)}
    reserved = inf if result.reserved is None else positions.get(result.reserved.id, -1)
    for request in result.starts:
        is_first = positions.get(request.id, inf) < reserved
        own, seats = then.next_seats(request, is_movable=is_first), None
        if request.id not in positions:
            pass
        elif own is not None and idle.has(request.shape, own):
            idle.claim(request.shape, own)
            seats = own
        elif is_first and request.id not in then.winners:
            seats = _take_if_fitting(idle, request, now_s)
            if (
                seats is not None
                and own is not None
                and lendable is not idle
                and _is_closer(request, own, seats, lendable)
            ):
                idle.give(request.shape, seats)
                starts.apart.add(request.id)
                seats = None
            if seats is not None:
                then.exchange(request, seats)
        if seats is not None:
            starts.seats[request.id] = tuple(seats)
        else:
            kept = [part for seat in own or () if (part := _keep(idle, request.shape, seat)) is not None]
            if kept:
                starts.kept[request.id] = kept
    if then.differs and not is_strict:
        _start_more(starts, then, [request for request in queue if positions[request.id] < reserved], idle)
    starts.later = {name: seats for name, seats in then.seats.items() if name not in starts.seats}
    starts.differs = then.differs
    if starts.kept:
        starts.rest = FreeCapacity(free.copy() for free in idle)
    for shape, seat in chain.from_iterable(starts.kept.values()):
        idle.give(shape, (seat,))
    return starts


class _FutureSeats:
    """Seats of the chosen jobs once leaving jobs have left. They change where a job starts elsewhere."""

    def __init__(self, capacity: FreeCapacity, result: PassResult, now_s: float) -> None:
        self.capacity, self.now_s = capacity, now_s
        """Capacity without these seats."""
        self.seats = {request.id: request.seats for request in result.starts}
        """Chosen job -> its seats. A job whose seats were taken has fewer until it is its turn."""
        self.winners = {stop.winner.id for stop in result.stops}
        """Jobs for which others are preempted."""
        self.differs = False
        self._rest = list(reversed(result.starts))
        """Jobs whose turn is yet to come, the next one last."""

    def next_seats(self, request: GangRequest, *, is_movable: bool) -> tuple[Seat, ...] | None:
        """Return the seats of the next job; None if others took some of them and it fits nowhere else.

        If need be, it gets those of jobs behind it, from the last one on.
        """
        self._rest.pop()
        own = self.seats[request.id]
        if len(own) == request.learners or (is_movable and self._complete(request)):
            return self.seats[request.id]
        self.capacity.give(request.shape, self.seats.pop(request.id))
        return None

    def _complete(self, request: GangRequest) -> bool:
        """Find seats for the learners that lost theirs. Return whether there are any."""
        behind = [one for one in self._rest if one.id not in self.winners]
        released: list[GangRequest] = []
        while not (completed := self._take_missing(request)) and len(released) < len(behind):
            one = behind[len(released)]
            self.capacity.give(one.shape, self.seats[one.id])
            released.append(one)
        for one in reversed(released):
            seats, self.seats[one.id] = self.seats[one.id], ()
            for seat in seats:
                if self.capacity.has(one.shape, (seat,)):
                    self.capacity.claim(one.shape, (seat,))
                    self.seats[one.id] += (seat,)
        return completed

    def _take_missing(self, request: GangRequest) -> bool:
        shape, own = request.shape, self.seats[request.id]
        if shape.placement == Layout.TOPOLOGY:  # as close together as it waits for
            self.capacity.give(shape, own)
            seats = _take_if_fitting(self.capacity, request, self.now_s)
            if seats is None:
                self.capacity.claim(shape, own)
        else:
            missing = request.learners - len(own)
            fitting = fit_count(self.capacity, shape, missing)
            more = beside(self.capacity, shape, missing, own) if fitting == missing else None
            seats = None if more is None else own + more
        if seats is not None:
            self.seats[request.id] = seats
        return seats is not None

    def exchange(self, request: GangRequest, seats: tuple[Seat, ...]) -> None:
        """Give the job these seats instead of its own ones. Jobs behind it that have some of them lose these."""
        self.differs = True
        self.capacity.give(request.shape, self.seats.pop(request.id, ()))
        behind = [Loan(one.id, one.queue, one.shape, (seat,)) for one in self._rest for seat in self.seats[one.id]]
        for loan in blocking_loans(self.capacity, request.shape, seats, behind):
            self.capacity.give(loan.shape, loan.seats)
            own = list(self.seats[loan.job])
            own.remove(loan.seats[0])
            self.seats[loan.job] = tuple(own)
        self.capacity.claim(request.shape, seats)
        self.seats[request.id] = seats


def _take_if_fitting(capacity: FreeCapacity, request: GangRequest, now_s: float) -> tuple[Seat, ...] | None:
    return take_seats(capacity, request, now_s) if fits(capacity, request) else None


def _start_more(starts: ImmediateStarts, then: _FutureSeats, queue: Sequence[GangRequest], idle: FreeCapacity) -> None:
    """Start jobs that fit on idle seats which jobs left that start elsewhere."""
    refused: set[tuple[Shape, int]] = set()
    for request in queue:
        is_chosen = request.id in then.seats and request.id not in then.winners
        if request.id in starts.seats or is_chosen or (request.shape, request.learners) in refused:
            continue
        own = starts.kept.pop(request.id, [])
        for shape, seat in own:
            idle.give(shape, (seat,))
        seats = _take_if_fitting(idle, request, then.now_s)
        if seats is not None:
            then.exchange(request, seats)
            starts.seats[request.id] = seats
        elif own:
            for shape, seat in own:
                idle.claim(shape, (seat,))
            starts.kept[request.id] = own
        else:
            refused.add((request.shape, request.learners))


def _is_closer(request: GangRequest, own: Sequence[Seat], seats: Sequence[Seat], lendable: FreeCapacity) -> bool:
    """Return whether its own seats, which only spot jobs hold, are on fewer nodes than these.

    The job waits for them then, as it would get them without spot jobs.
    """
    nodes = [len({seat.node for seat in some}) for some in (own, seats)]
    is_packed = request.shape.placement in (Layout.PACK, Layout.TOPOLOGY)
    return is_packed and nodes[0] < nodes[1] and lendable.has(request.shape, own)


def _keep(idle: FreeCapacity, shape: Shape, seat: Seat) -> tuple[Shape, Seat] | None:
    """Take the idle part of this seat from `idle` and return it; None if no part is idle."""
    free = idle.named(seat.node)
    if free is None:
        return None
    idle_devices = {device for _, device in free.devices}
    part = Seat(seat.node, tuple(device for device in seat.devices if device in idle_devices))
    cpus, memory_bytes = max(min(shape.cpus, free.cpus), 0.0), max(min(shape.memory_bytes, free.memory_bytes), 0)
    held = replace(NOTHING, cpus=cpus, memory_bytes=memory_bytes)
    needs_nothing = not (seat.devices or shape.cpus or shape.memory_bytes)
    if not (part.devices or cpus or memory_bytes or needs_nothing):
        return None
    idle.claim(held, (part,))
    return held, part


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """Reason why jobs that fit now do not start: idle devices are kept for another job."""

    kept: Mapping[str, Sequence[tuple[Shape, Seat]]]
    """Job that starts once other jobs have left -> idle part of its seats, in queue order."""
    first: str | None
    """Job that goes first: by reservation, or in strict order."""
    rest: FreeCapacity | None
    """Idle capacity that is not kept for a job; None if nothing is kept."""
    apart: Collection[str] = ()
    """Jobs that fit on idle devices, but wait for those of spot jobs, which are on fewer nodes."""

    def concerns(self, job: str) -> bool:
        """Return whether devices are kept for this job itself, so that its wait reason differs from that of others."""
        return job in self.kept or job in self.apart or job == self.first

    def why(self, job: str, shape: Shape, learners: int) -> str:
        """Return the wait reason of a job that fits on idle devices; "" if they are kept for no other job."""
        holder = None if self.rest is None else self._holder(self.rest, job, shape, learners)
        if holder is not None:
            return f"kept for {holder}, which starts as soon as the rest of its devices is free"
        if job in self.apart:
            return "but on more nodes than the devices that spot jobs give back"
        return "" if self.first in (None, job) else f"kept for {self.first}, which goes first"

    def _holder(self, rest: FreeCapacity, job: str, shape: Shape, learners: int) -> str | None:
        """Return the first job in queue order whose kept devices are in the way; None if this one fits beside them."""
        others, given = (name for name in self.kept if name != job), list[str]()
        self._move(rest.give, job)
        while not (fitting := fit_count(rest, shape, learners) >= learners) and (name := next(others, "")):
            self._move(rest.give, name)
            given.append(name)
        holder: str | None = None
        for name in given:
            self._move(rest.claim, name)
            if fitting and holder is None and fit_count(rest, shape, learners) < learners:
                holder = name
        self._move(rest.claim, job)
        return holder

    def _move(self, move: Callable[[Shape, Sequence[Seat]], None], job: str) -> None:
        for held, seat in self.kept.get(job, ()):
            move(held, (seat,))


def held_devices(
    result: PassResult, starts: ImmediateStarts, requests: Sequence[GangRequest], *, is_strict: bool
) -> HeldDevices:
    """Return the jobs for which idle devices are kept after this result."""
    first = None if result.reserved is None else result.reserved.id
    if first is None and is_strict:
        first = next((request.id for request in requests if request.id not in starts.seats), None)
    return HeldDevices(starts.kept, first, starts.rest, starts.apart)
