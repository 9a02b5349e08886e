"""Immediate starts: chosen jobs that get idle seats at once, and idle devices kept for the others.

The scheduler decides as if leaving jobs had left already. A chosen job whose seats are still in use starts elsewhere if
it fits there. Otherwise the idle part of its seats is kept for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, Layout, fit_count, place
from dlaas_server.core.scheduling.fit import fits, take_seats
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.pass_result import PassResult

__all__ = ["HeldDevices", "ImmediateStarts", "held_devices", "immediate_starts"]

NOTHING = Shape(0, 0.0, 0, None, Layout.PACK)


@dataclass(slots=True)
class ImmediateStarts:
    """Seats of jobs that start at once, and seats kept for jobs that start after others have left."""

    seats: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    kept: dict[str, list[tuple[Shape, Seat]]] = field(default_factory=dict)
    """Job -> idle part of its chosen seats. These stay free in `idle`."""
    displaced: str | None = None
    """First chosen job whose idle seats another job took, so that nothing is kept for it."""
    rest: FreeCapacity | None = None
    """Idle capacity that is not kept for a job; None if nothing is kept."""


def immediate_starts(
    result: PassResult, waiting: Collection[str], idle: FreeCapacity, lendable: FreeCapacity, now_s: float
) -> ImmediateStarts:
    """Assign idle seats to the chosen jobs, in queue order, and take them from `idle`.

    `waiting`: ids of queued jobs in queue order; other chosen jobs migrate, and have to leave their seats first.
    `lendable`: `idle` plus the devices of spot jobs, which give back chosen seats. A job behind a reservation, and a
    job for which others are preempted, gets only the seats that were chosen, so that it delays no other job.
    """
    starts = ImmediateStarts()
    winners = {stop.winner.id for stop in result.stops}
    positions = {name: position for position, name in enumerate(waiting)}
    reserved = inf if result.reserved is None else positions.get(result.reserved.id, -1)
    elsewhere: set[tuple[str, str]] = set()
    for request in result.starts:
        seats: Sequence[Seat] | None = None
        if request.id not in positions:
            pass
        elif idle.has(request.shape, request.seats):
            idle.claim(request.shape, request.seats)
            seats = request.seats
        elif positions[request.id] < reserved and request.id not in winners:
            seats = _other_seats(request, idle, lendable, now_s)
            elsewhere |= _devices(seats or ())
        if seats is not None:
            starts.seats[request.id] = tuple(seats)
            continue
        is_first = positions.get(request.id, inf) < reserved
        taken = [seat for seat in request.seats if is_first and not elsewhere.isdisjoint(_devices((seat,)))]
        left = [seat for seat in request.seats if seat not in taken] if taken else request.seats
        kept = [part for seat in left if (part := _keep(idle, request.shape, seat)) is not None]
        if taken:  # keep others instead
            fitting = fit_count(idle, request.shape, len(taken))
            others = place(idle, request.shape, fitting) if fitting else None
            kept += [(request.shape, seat) for seat in others or ()]
            if starts.displaced is None and not any(seat.devices for _, seat in kept):
                starts.displaced = request.id
        if kept:
            starts.kept[request.id] = kept
    if starts.kept:
        starts.rest = FreeCapacity(free.copy() for free in idle)
    for shape, seat in chain.from_iterable(starts.kept.values()):
        idle.give(shape, (seat,))
    return starts


def _devices(seats: Iterable[Seat]) -> set[tuple[str, str]]:
    return {(seat.node, device) for seat in seats for device in seat.devices}


def _other_seats(
    request: GangRequest, idle: FreeCapacity, lendable: FreeCapacity, now_s: float
) -> tuple[Seat, ...] | None:
    """Return idle seats instead of the chosen ones, taken from `idle`; None if the job has to wait for those.

    It waits for seats that only spot jobs hold if they are on fewer nodes, as it would get them without spot jobs.
    """
    seats = take_seats(idle, request, now_s) if fits(idle, request) else None
    is_lent = lendable is not idle and lendable.has(request.shape, request.seats)
    if seats is None or not is_lent or request.shape.placement not in (Layout.PACK, Layout.TOPOLOGY):
        return seats
    if len({seat.node for seat in seats}) <= len({seat.node for seat in request.seats}):
        return seats
    idle.give(request.shape, seats)
    return None


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
    """Job that goes first: by reservation, in strict order, or chosen without a place where it can start."""
    rest: FreeCapacity | None
    """Idle capacity that is not kept for a job; None if nothing is kept."""

    def why(self, job: str, shape: Shape, learners: int) -> str:
        """Return the wait reason of a job that fits on idle devices; "" if they are kept for no other job."""
        holder = None if self.rest is None else self._holder(self.rest, job, shape, learners)
        if holder is not None:
            return f"kept for {holder}, which starts as soon as the rest of its devices is free"
        return "" if self.first in (None, job) else f"kept for {self.first}, which goes first"

    def _holder(self, rest: FreeCapacity, job: str, shape: Shape, learners: int) -> str | None:
        """Return the first job without whose kept devices this one would fit; None if it fits beside all of them."""
        others = (name for name in self.kept if name != job)
        given: list[tuple[Shape, Seat]] = []
        holder, more = None, self.kept.get(job, ())
        while True:
            for held, seat in more:
                rest.give(held, (seat,))
            given += more
            if fit_count(rest, shape, learners) >= learners:
                break
            holder = next(others, None)
            if holder is None:
                break
            more = self.kept[holder]
        for held, seat in given:
            rest.claim(held, (seat,))
        return holder


def held_devices(
    result: PassResult, starts: ImmediateStarts, requests: Sequence[GangRequest], *, is_strict: bool
) -> HeldDevices:
    """Return the jobs for which idle devices are kept after this result."""
    first = starts.displaced if result.reserved is None else result.reserved.id
    if result.reserved is None and is_strict:
        first = next((request.id for request in requests if request.id not in starts.seats), None)
    return HeldDevices(starts.kept, first, starts.rest)
