"""Which of the chosen jobs start at once, and for whom idle devices are kept meanwhile.

The scheduler decides as if everybody who leaves had left. A job whose seats are still in use starts elsewhere if it has
room there; else what is idle of its seats is kept for it.
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
    """What each job that starts at once gets, and what is kept for those that start when others have left."""

    seats: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    kept: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    """Idle parts of promised seats; free in `idle` afterwards."""
    rest: Frees | None = None
    """What is idle and kept for nobody, where something is kept."""


def immediate(choice: Choice, waiting: Collection[str], idle: Frees, lendable: Frees, now_s: float) -> Immediate:
    """Seat the chosen jobs on what is idle, first in order first; their seats are taken from `idle`.

    `waiting`: jobs in the queue, first in line first; others of the chosen only move there, and have to leave first.
    `lendable`: `idle`, and what spot jobs hold: these give back what is promised. Where a job that goes first holds a
    reservation, or others are preempted for the job, it gets the seats that were chosen and no others, so that nobody
    is delayed by it.
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
        if is_first and not kept and not elsewhere.isdisjoint(_devices(ask.seats)):  # taken meanwhile: others are next
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
    """Only spot jobs are in its way."""
    return lendable is not idle and lendable.has(ask.shape, ask.seats)


def _keep(idle: Frees, shape: Shape, seat: Seat) -> tuple[Shape, Seat] | None:
    """Take what is idle of this seat."""
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
    """Why jobs that fit now do not start: for whom idle devices are kept."""

    promised: str | None
    """The job that starts there once others have left."""
    reserved: str | None
    """The job that goes first, by reservation or in strict order."""
    rest: Frees | None

    def why(self, job: str, shape: Shape, learners: int) -> str:
        """For whom the devices are kept that this job fits on; "" where they are kept for nobody."""
        if self.promised not in (None, job) and (self.rest is None or self.rest.room(shape, learners) < learners):
            return f"kept for {self.promised}, which starts as soon as the rest of its devices is free"
        return "" if self.reserved is None else f"kept for {self.reserved}, which goes first"


def kept_for(choice: Choice, found: Immediate, line: Sequence[Ask], *, is_strict: bool) -> Kept:
    """For whom idle devices are kept after this choice."""
    reserved = None if choice.reserved is None else choice.reserved.id
    if is_strict and reserved is None:
        reserved = next((ask.id for ask in line if ask.id not in found.seats), None)
    return Kept(next(iter(found.kept), None), reserved, found.rest)
