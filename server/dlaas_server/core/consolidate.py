"""Moving one running elastic job so that a waiting gang gets its seats close together.

Free devices are often enough in number and in the wrong places. Who can change while it trains may go elsewhere: its
replacements join first, then the old learners leave, so the devices it goes to must be free now. Only proposed: a
move is data that the engine carries out, and only where the gain pays for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.frees import Free, Frees
from dlaas_server.core.model import Seat
from dlaas_server.core.shapes import Shape
from dlaas_server.core.topology import level_of

__all__ = ["PAYS", "Movable", "Move", "Wanted", "consolidation"]

PAYS: Final = 1.5
"""A move is made only where it gains so many times what it costs, as with devices that change owners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movable:
    """A running job that can change its members while it trains."""

    id: str
    shape: Shape
    seats: tuple[Seat, ...]
    """In rank order."""
    cost_s: float
    """For how long a change leaves its devices idle; measured."""
    left_s: float | None = None
    """How long it is expected to run; None: not known. Who is about to end is not moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A gang that waits, and fits on one node of the pool but on none as it is."""

    id: str
    shape: Shape
    learners: int
    wait_s: float
    """How long it is expected to wait if nobody is moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Who goes where, for whom."""

    job: str
    winner: str
    node: str
    """Where the waiting gang will sit."""
    seats: tuple[Seat, ...]
    """All seats of the job after it, in rank order: who stays keeps its own."""
    joins: tuple[Seat, ...]
    """Seats that it takes first."""
    leaves: tuple[Seat, ...]
    """Seats that it gives up then."""
    cost_gpu_s: float
    """Device-seconds that the move takes from the job."""
    gain_gpu_s: float
    """Device-seconds by which the waiting gang is served earlier."""


def consolidation(frees: Frees, running: Iterable[Movable], wanted: Wanted) -> Move | None:
    """The cheapest move of one job that frees a node for the waiting gang; None where none pays.

    The moved job keeps its size, what it needs per learner and its kind of device, and sits no further apart than
    before. Nobody else is touched. `frees` is as before afterwards.
    """
    gain = wanted.wait_s * wanted.learners * max(wanted.shape.gpus, 1)
    if frees.tightest(wanted.shape, wanted.learners) is not None:
        return None  # nothing stands in its way but its turn
    moves = [
        move
        for job in running
        if not job.shape.is_share and (job.left_s is None or job.left_s > wanted.wait_s)
        for node in sorted({seat.node for seat in job.seats})
        if (move := _move(frees, job, wanted, node, gain)) is not None
    ]
    return min(moves, key=lambda move: (move.cost_gpu_s, len(move.joins), move.job, move.node), default=None)


def _move(frees: Frees, job: Movable, wanted: Wanted, node: str, gain: float) -> Move | None:
    """The move that takes as few of the job's learners as needed off this node."""
    cost = job.cost_s * len(job.seats) * max(job.shape.gpus, 1)
    free = frees.named(node)
    if free is None or gain < PAYS * cost:
        return None
    here = [seat for seat in job.seats if seat.node == node]
    for count in range(1, len(here) + 1):
        leaves = tuple(here[-count:])  # the highest ranks: rank 0 stays if it can
        if not _fits_without(frees, free, job, leaves, wanted):
            continue
        joins = _elsewhere(frees, job, node, count)
        if joins is None:
            return None
        new = iter(joins)
        seats = tuple(next(new) if seat in leaves else seat for seat in job.seats)
        if level_of(frees, seats) > level_of(frees, job.seats):
            continue  # torn apart; together with more of them it may not be
        return Move(
            job=job.id,
            winner=wanted.id,
            node=node,
            seats=seats,
            joins=joins,
            leaves=leaves,
            cost_gpu_s=cost,
            gain_gpu_s=gain,
        )
    return None


def _fits_without(frees: Frees, free: Free, job: Movable, leaves: Sequence[Seat], wanted: Wanted) -> bool:
    frees.give(job.shape, leaves)
    fits = free.fits(wanted.shape, wanted.learners) == wanted.learners
    frees.claim(job.shape, leaves)
    return fits


def _elsewhere(frees: Frees, job: Movable, node: str, count: int) -> tuple[Seat, ...] | None:
    """Free seats for so many of its learners on other nodes: first those where it sits already, then the tightest."""
    own = {seat.node for seat in job.seats}
    others = sorted(
        (free for free in frees.takers(job.shape) if free.name != node),
        key=lambda free: (free.name not in own, len(free.devices), free.index),
    )
    taken: list[Seat] = []
    whole = [free for free in others if free.fits(job.shape, count) == count]
    for free in whole[:1] or others:
        here = free.fits(job.shape, count - len(taken))
        if here:
            taken += frees.take(free, job.shape, here)
        if len(taken) == count:
            break
    frees.give(job.shape, taken)
    return tuple(taken) if len(taken) == count else None
