"""Moving a running elastic job: so that a waiting gang gets a node, or so that its own learners sit together.

Free devices are often enough in number and in the wrong places. Who can change while it trains may go elsewhere: its
replacements join first, then the old learners leave, so the devices it goes to must be free now. A move is data;
`migration.py` says who may be moved, and when. Only where the gain pays for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import Free, Frees
from dlaas_server.core.placement.topology import Level, level_of

__all__ = ["HORIZON_S", "PAYS", "Movable", "Move", "Wanted", "consolidation", "together"]

PAYS: Final = 1.5
"""A move is made only where it gains so many times what it costs, as with devices that change owners."""

HORIZON_S: Final = 600.0
"""A move must pay within this time, or within what is left of the job."""
CLOSER: Final = 0.1
"""Part of its time that a job gains at least, in most cases, where its learners sit one level closer together.

Source: step times of six trainings on several nodes and on one, measured by Pollux' authors (`sim/traces`,
`pollux_profiles/*/placements.csv`): the median over batch sizes is 2 to 50 % for two GPUs, 13 to 59 % for three, 17 to
63 % for four.
"""


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
    stays: int = 0
    """So many of its learners keep their seats: in a gang that changes while it trains, who is new learns from them."""


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
    """The gang that waits; "": it moves for its own sake."""
    node: str
    """Where the winner will sit; for who moves for its own sake, the name of what takes it whole."""
    seats: tuple[Seat, ...]
    """All seats of the job after it, in rank order: who stays keeps its own."""
    joins: tuple[Seat, ...]
    """Seats that it takes first."""
    leaves: tuple[Seat, ...]
    """Seats that it gives up then."""
    cost_gpu_s: float
    """Device-seconds that the move takes from the job."""
    gain_gpu_s: float
    """Device-seconds by which the winner is served, or the job through, earlier."""
    level: Level = Level.NODE
    """How close together the winner will sit."""


def consolidation(frees: Frees, running: Iterable[Movable], wanted: Wanted) -> Move | None:
    """The cheapest move of one job that frees a node for the waiting gang; None where none pays.

    The moved job keeps its size, what it needs per learner and its kind of device, and sits no further apart than
    before. Nobody else is touched. `frees` is as before afterwards.
    """
    if frees.tightest(wanted.shape, wanted.learners) is not None:
        return None  # nothing stands in its way but its turn
    moves = [
        move
        for job in running
        if not job.shape.is_share
        for node in sorted({seat.node for seat in job.seats})
        if (move := _move(frees, job, wanted, node)) is not None
    ]
    return min(moves, key=lambda move: (move.cost_gpu_s, len(move.joins), move.job, move.node), default=None)


def _move(frees: Frees, job: Movable, wanted: Wanted, node: str) -> Move | None:
    """The move that takes as few of the job's learners as needed off this node."""
    cost = job.cost_s * len(job.seats) * max(job.shape.gpus, 1)
    wait_s = wanted.wait_s if job.left_s is None else min(wanted.wait_s, job.left_s)  # then it is out of the way
    gain = wait_s * wanted.learners * max(wanted.shape.gpus, 1)
    free = frees.named(node)
    if free is None or gain < PAYS * cost:
        return None
    here = [seat for seat in job.seats if seat.node == node]
    for count in range(1, min(len(here), len(job.seats) - job.stays) + 1):
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


# -- for its own sake --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the pool in which all of a job's learners might sit."""

    level: Level
    name: str
    nodes: tuple[Free, ...]
    link: str = ""
    """The group of linked devices, within one node; "": all of its devices."""

    def has(self, seat: Seat) -> bool:
        return any(
            free.name == seat.node and (not self.link or all(free.links.get(d) == self.link for d in seat.devices))
            for free in self.nodes
        )


def together(frees: Frees, job: Movable) -> Move | None:
    """The move that brings its learners closer together, where that pays; None where none does.

    It keeps its size. Of several, the closest; then the one with the fewest learners that move; then the fullest part.
    `frees` is as before afterwards.
    """
    horizon_s = HORIZON_S if job.left_s is None else min(job.left_s, HORIZON_S)
    weight = len(job.seats) * max(job.shape.gpus, 1)
    if job.shape.is_share or len(job.seats) * job.shape.gpus < 2 or CLOSER * horizon_s < PAYS * job.cost_s:
        return None
    best: tuple[tuple[int, int, int], Move] | None = None
    for part in _parts(frees, level_of(frees, job.seats)):
        leaves = tuple(seat for seat in job.seats if not part.has(seat))
        key = (part.level, len(leaves), sum(len(free.devices) for free in part.nodes))
        if not leaves or len(job.seats) - len(leaves) < job.stays or (best is not None and best[0] <= key):
            continue
        joins = _within(frees, part, job.shape, len(leaves))
        if joins is None:
            continue
        new = iter(joins)
        move = Move(
            job=job.id,
            winner="",
            node=part.name,
            seats=tuple(next(new) if seat in leaves else seat for seat in job.seats),
            joins=joins,
            leaves=leaves,
            cost_gpu_s=job.cost_s * weight,
            gain_gpu_s=CLOSER * horizon_s * weight,
            level=part.level,
        )
        best = key, move
    return None if best is None else best[1]


def _parts(frees: Frees, level: Level) -> Iterator[_Part]:
    """All parts of the pool that are closer together than this level."""
    racks: dict[tuple[str, ...], list[Free]] = {}
    for free in frees:
        if level > Level.NODE:
            yield _Part(Level.NODE, free.name, (free,))
        if level > Level.LINK:
            for link in sorted(set(free.links.values())):
                yield _Part(Level.LINK, free.name, (free,), link)
        racks.setdefault(free.rack, []).append(free)
        racks.setdefault(free.rack[:1], []).append(free)
    for name, nodes in racks.items():
        at = Level.RACK if len(name) == 2 else Level.AREA
        if at < level and len(nodes) > 1:
            yield _Part(at, name[-1], tuple(nodes))


def _within(frees: Frees, part: _Part, shape: Shape, count: int) -> tuple[Seat, ...] | None:
    """Free seats for so many learners in this part, the roomiest node first; none is taken."""
    if part.link:
        [free] = part.nodes
        ids = [d for _, d in free.devices if free.links.get(d) == part.link and free.takes(shape, d)]
        if len(ids) < count * shape.gpus or free.fits(shape, count) < count:
            return None
        each = shape.gpus
        return tuple(Seat(free.name, tuple(ids[i * each : (i + 1) * each])) for i in range(count))
    taken: list[Seat] = []
    for free in sorted(part.nodes, key=lambda free: (-free.fits(shape, count), free.index)):
        here = free.fits(shape, count - len(taken))
        if here:
            taken += frees.take(free, shape, here)
        if len(taken) == count:
            break
    frees.give(shape, taken)
    return tuple(taken) if len(taken) == count else None
