"""Consolidation: migration of a running job, to free a node for a waiting gang or to bring its learners together.

Free devices often suffice in number but are spread over nodes. A job that can change while it trains may move:
replacements join first and old learners leave then, so the target devices must be free now. A `Move` is only data;
`migration.py` decides which jobs may be moved, and when. A move is made only if its gain exceeds its cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity, NodeCapacity
from dlaas_server.core.placement.topology import Level, level_of

__all__ = ["HORIZON_S", "PAYS", "Movable", "Move", "Wanted", "consolidation", "together"]

PAYS: Final = 1.5
"""Factor by which the gain of a move must exceed its cost, as for devices that move between jobs."""

HORIZON_S: Final = 600.0
"""Seconds within which a move must pay, or the job's remaining time if that is shorter."""
CLOSER: Final = 0.1
"""Share of its time that a job usually gains at least if its learners sit one level closer together.

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
    """Seats in rank order."""
    cost_s: float
    """Seconds that a change leaves its devices idle, as measured."""
    left_s: float | None = None
    """Expected remaining run time; None if unknown. A job that is about to end is not moved."""
    stays: int = 0
    """Minimum number of learners that keep their seats: in a live gang, new learners get their state from these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A waiting gang that would fit on one node of the pool, but on none at present."""

    id: str
    shape: Shape
    learners: int
    wait_s: float
    """Expected wait if no job is moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Migration of a job, for a waiting gang or for its own sake."""

    job: str
    winner: str
    """Waiting gang; "" if the job moves for its own sake."""
    node: str
    """Node of the winner. For a move for its own sake, the name of the part that takes the whole job."""
    seats: tuple[Seat, ...]
    """All seats of the job after the move, in rank order; learners that stay keep theirs."""
    joins: tuple[Seat, ...]
    """New seats, which are taken first."""
    leaves: tuple[Seat, ...]
    """Old seats, which are released then."""
    cost_gpu_s: float
    """Device-seconds that the move takes from the job."""
    gain_gpu_s: float
    """Device-seconds by which the winner starts, or the job ends, earlier."""
    level: Level = Level.NODE
    """Distance within the winner after the move."""


def consolidation(capacity: FreeCapacity, running: Iterable[Movable], wanted: Wanted) -> Move | None:
    """Return the cheapest move of one job that frees a node for the waiting gang; None if none pays.

    The moved job keeps its size, its resources per learner and its device kind, and does not spread further. No other
    job changes. `capacity` is unchanged afterwards.
    """
    if capacity.tightest(wanted.shape, wanted.learners) is not None:
        return None  # it fits already, and only waits for its turn
    moves = [
        move
        for job in running
        if not job.shape.is_share
        for node in sorted({seat.node for seat in job.seats})
        if (move := _move(capacity, job, wanted, node)) is not None
    ]
    return min(moves, key=lambda move: (move.cost_gpu_s, len(move.joins), move.job, move.node), default=None)


def _move(capacity: FreeCapacity, job: Movable, wanted: Wanted, node: str) -> Move | None:
    """Return the move that takes as few learners of the job as possible off this node; None if none pays."""
    cost = job.cost_s * len(job.seats) * max(job.shape.gpus, 1)
    wait_s = wanted.wait_s if job.left_s is None else min(wanted.wait_s, job.left_s)  # the job would end then anyway
    gain = wait_s * wanted.learners * max(wanted.shape.gpus, 1)
    free = capacity.named(node)
    if free is None or gain < PAYS * cost:
        return None
    here = [seat for seat in job.seats if seat.node == node]
    for count in range(1, min(len(here), len(job.seats) - job.stays) + 1):
        leaves = tuple(here[-count:])  # the highest ranks, so that rank 0 stays if possible
        if not _fits_without(capacity, free, job, leaves, wanted):
            continue
        joins = _elsewhere(capacity, job, node, count)
        if joins is None:
            return None
        new = iter(joins)
        seats = tuple(next(new) if seat in leaves else seat for seat in job.seats)
        if level_of(capacity, seats) > level_of(capacity, job.seats):
            continue  # spread further; moving more learners may avoid that
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


def _fits_without(
    capacity: FreeCapacity, free: NodeCapacity, job: Movable, leaves: Sequence[Seat], wanted: Wanted
) -> bool:
    capacity.give(job.shape, leaves)
    fits = free.fits(wanted.shape, wanted.learners) == wanted.learners
    capacity.claim(job.shape, leaves)
    return fits


def _elsewhere(capacity: FreeCapacity, job: Movable, node: str, count: int) -> tuple[Seat, ...] | None:
    """Return free seats on other nodes for `count` learners: first on nodes of the job, then on the tightest."""
    own = {seat.node for seat in job.seats}
    others = sorted(
        (free for free in capacity.takers(job.shape) if free.name != node),
        key=lambda free: (free.name not in own, len(free.devices), free.index),
    )
    taken: list[Seat] = []
    whole = [free for free in others if free.fits(job.shape, count) == count]
    for free in whole[:1] or others:
        here = free.fits(job.shape, count - len(taken))
        if here:
            taken += capacity.take(free, job.shape, here)
        if len(taken) == count:
            break
    capacity.give(job.shape, taken)
    return tuple(taken) if len(taken) == count else None


# -- moves for the job's own sake --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of the pool in which all of a job's learners might sit."""

    level: Level
    name: str
    nodes: tuple[NodeCapacity, ...]
    link: str = ""
    """Link group within one node; "": all devices of the nodes."""

    def has(self, seat: Seat) -> bool:
        return any(
            free.name == seat.node and (not self.link or all(free.links.get(d) == self.link for d in seat.devices))
            for free in self.nodes
        )


def together(capacity: FreeCapacity, job: Movable) -> Move | None:
    """Return the move that brings the job's learners closer together, if it pays; else None.

    The job keeps its size. Of several moves, the closest is chosen; then the one that moves the fewest learners; then
    the one into the fullest part. `capacity` is unchanged afterwards.
    """
    horizon_s = HORIZON_S if job.left_s is None else min(job.left_s, HORIZON_S)
    weight = len(job.seats) * max(job.shape.gpus, 1)
    if job.shape.is_share or len(job.seats) * job.shape.gpus < 2 or CLOSER * horizon_s < PAYS * job.cost_s:
        return None
    best: tuple[tuple[int, int, int], Move] | None = None
    for part in _parts(capacity, level_of(capacity, job.seats)):
        leaves = tuple(seat for seat in job.seats if not part.has(seat))
        key = (part.level, len(leaves), sum(len(free.devices) for free in part.nodes))
        if not leaves or len(job.seats) - len(leaves) < job.stays or (best is not None and best[0] <= key):
            continue
        joins = _within(capacity, part, job.shape, len(leaves))
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


def _parts(capacity: FreeCapacity, level: Level) -> Iterator[_Part]:
    """Yield all parts of the pool that are closer together than this level."""
    racks: dict[tuple[str, ...], list[NodeCapacity]] = {}
    for free in capacity:
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


def _within(capacity: FreeCapacity, part: _Part, shape: Shape, count: int) -> tuple[Seat, ...] | None:
    """Return free seats for `count` learners in this part, roomiest node first; none is taken."""
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
            taken += capacity.take(free, shape, here)
        if len(taken) == count:
            break
    capacity.give(shape, taken)
    return tuple(taken) if len(taken) == count else None
