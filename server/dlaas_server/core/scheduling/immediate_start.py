"""Immediate starts: chosen jobs that get idle seats at once, and idle devices kept for the others.

The scheduler decides as if leaving jobs had left already. A chosen job whose seats are still in use starts elsewhere if
it fits there. Otherwise the idle part of its seats is kept for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Frees, Layout, place, room
from dlaas_server.core.scheduling.decision import Choice
from dlaas_server.core.scheduling.fit import fits, seated
from dlaas_server.core.scheduling.gang_request import Ask

__all__ = ["Immediate", "Kept", "immediate", "kept_for"]

NOTHING = Shape(0, 0.0, 0, None, Layout.PACK)


@dataclass(slots=True)
class Immediate:
    """Seats of jobs that start at once, and seats kept for jobs that start after others have left."""

    seats: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    kept: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    """Job -> idle part of its chosen seats. These stay free in `idle`."""
    rest: Frees | None = None
    """Idle capacity that is not kept for a job; None if nothing is kept."""


def immediate(choice: Choice, waiting: Collection[str], idle: Frees, lendable: Frees, now_s: float) -> Immediate:
    """Assign idle seats to the chosen jobs, in queue order, and take them from `idle`.

    `waiting`: ids of queued jobs in queue order; other chosen jobs migrate, and have to leave their seats first.
    `lendable`: `idle` plus the devices of spot jobs, which give back chosen seats. A job behind a reservation, and a
    job for which others are preempted, gets only the seats that were chosen, so that it delays no other job.
    """
    found = Immediate()
    winners = {stop.winner.id for stop in choice.stops}
    places = {name: place for place, name in enumerate(waiting)}
    reserved = inf if choice.reserved is None else places.get(choice.reserved.id, -1)
    claimed: list[tuple[Shape, Seat]] = []
    elsewhere: set[tuple[str, str]] = set()
    for ask in choice.starts:
        seats: Sequence[Seat] | None = None
        if ask.id not in places:
            pass
        elif idle.has(ask.shape, ask.seats):
            idle.claim(ask.shape, ask.seats)
            seats = ask.seats
        elif places[ask.id] < reserved and ask.id not in winners and not _is_lent(ask, idle, lendable):
            seats = seated(idle, ask, now_s) if fits(idle, ask) else None
            elsewhere |= _devices(seats or ())
        if seats is not None:
            found.seats[ask.id] = tuple(seats)
            continue
        kept = [part for seat in ask.seats if (part := _keep(idle, ask.shape, seat)) is not None]
        is_first = places.get(ask.id, inf) < reserved
        if is_first and not kept and not elsewhere.isdisjoint(_devices(ask.seats)):  # taken meanwhile: use others
            fitting = room(idle, ask.shape, ask.learners)
            kept = [(ask.shape, seat) for seat in (place(idle, ask.shape, fitting) if fitting else None) or ()]
        claimed += kept
        if kept:
            found.kept[ask.id] = tuple(seat for _, seat in kept)
    if claimed:
        found.rest = Frees(free.copy() for free in idle)
    for shape, seat in claimed:
        idle.give(shape, (seat,))
    return found


def _devices(seats: Iterable[Seat]) -> set[tuple[str, str]]:
    return {(seat.node, device) for seat in seats for device in seat.devices}


def _is_lent(ask: Ask, idle: Frees, lendable: Frees) -> bool:
    """Return whether only spot jobs hold the job's seats."""
    return lendable is not idle and lendable.has(ask.shape, ask.seats)


def _keep(idle: Frees, shape: Shape, seat: Seat) -> tuple[Shape, Seat] | None:
    """Take the idle part of this seat from `idle` and return it; None if no part is idle."""
    free = idle.named(seat.node)
    if free is None:
        return None
    there = {device for _, device in free.devices}
    part = Seat(seat.node, tuple(device for device in seat.devices if device in there))
    rest = replace(NOTHING, cpus=shape.cpus, memory_bytes=shape.memory_bytes)
    held = rest if free.fits(rest, 1) else NOTHING
    if not part.devices and (seat.devices or held is NOTHING):
        return None
    idle.claim(held, (part,))
    return held, part


@dataclass(frozen=True, slots=True)
class Kept:
    """Reason why jobs that fit now do not start: idle devices are kept for another job."""

    promised: str | None
    """Job that starts there once other jobs have left."""
    reserved: str | None
    """Job that goes first, by reservation or in strict order."""
    rest: Frees | None

    def why(self, job: str, shape: Shape, learners: int) -> str:
        """Return the wait reason of a job that fits on kept devices; "" if they are kept for no other job."""
        if self.promised not in (None, job) and (self.rest is None or self.rest.room(shape, learners) < learners):
            return f"kept for {self.promised}, which starts as soon as the rest of its devices is free"
        return "" if self.reserved is None else f"kept for {self.reserved}, which goes first"


def kept_for(choice: Choice, found: Immediate, line: Sequence[Ask], *, is_strict: bool) -> Kept:
    """Return the jobs for which idle devices are kept after this choice."""
    reserved = None if choice.reserved is None else choice.reserved.id
    if is_strict and reserved is None:
        reserved = next((ask.id for ask in line if ask.id not in found.seats), None)
    return Kept(next(iter(found.kept), None), reserved, found.rest)
