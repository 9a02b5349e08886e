"""Migration of running elastic jobs: away from a slow learner, to make room for a waiting gang, or closer together.

Waiting jobs come first: while any job waits, no learners are brought together. A move is carried out as a change of
size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from dlaas_server.core.elasticity.resize import cost_s
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.placement.gang_placement import beside
from dlaas_server.core.placement.shape import Layout, shape_of
from dlaas_server.core.rebalancing.consolidation import HORIZON_S, Movable, Move, Wanted, consolidation, together
from dlaas_server.core.scheduling.fit import LEVEL_NAMES
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.spot.reclaim import planning_capacity

__all__ = ["AGAIN_S", "Moved", "defragmented", "gathered", "may_move_again", "relieved", "rested_s"]

AGAIN_S: Final = 600.0
"""Minimum time between two moves of a job."""
LOOKED_AT: Final = 8
"""Number of waiting jobs, first in the queue, for which a move is tried."""
NOTHING_KNOWN: Final = Known()
_CLOSE: Final = (Layout.PACK, Layout.TOPOLOGY)


@dataclass(frozen=True, slots=True)
class Moved:
    """Move of a job to these seats, as many as before. `why`: a sentence for its owner."""

    job: str
    seats: tuple[Seat, ...]
    why: str


def may_move_again(job: Job, now_s: float) -> bool:
    """Return whether the job's last move, even a failed one, is long enough ago."""
    return job.moved_s is None or job.moved_s + AGAIN_S <= now_s


def rested_s(jobs: Iterable[Job], now_s: float) -> float | None:
    """Return the next time at which a job that holds seats may be moved again; None if there is none."""
    ends = (job.moved_s + AGAIN_S for job in jobs if job.moved_s is not None and job.gang)
    return min((at_s for at_s in ends if at_s > now_s), default=None)


def gathered(pool: Pool, capacity: FreeCapacity, may_move: Callable[[Job], bool], usual: Layout) -> Iterator[Moved]:
    """Yield moves of jobs whose learners can sit closer together, if that pays, in order of submission.

    The target seats are taken from `capacity`; no other job changes. Jobs that are to be spread are skipped.
    """
    for job in sorted(pool.jobs.values(), key=lambda j: j.number):
        if len(job.gang) < 2 or not may_move(job):
            continue
        one = _movable(job, pool, capacity, usual)
        move = None if one is None or one.shape.placement not in _CLOSE else together(capacity, one)
        if one is not None and move is not None:
            capacity.claim(one.shape, move.joins)
            where = LEVEL_NAMES[move.level]
            on = f" ({move.node})" if move.node else ""
            said = f"Its {count(len(job.gang), 'learner')} fit {where}{on} now and train faster there."
            yield Moved(job.id, move.seats, said)


def relieved(pool: Pool, capacity: FreeCapacity, may_move: Callable[[Job], bool], usual: Layout) -> Iterator[Moved]:
    """Yield moves that replace a slow learner: another joins on a free seat before it leaves.

    The seats are taken from `capacity`. Only for gangs that train on meanwhile: a restart costs more than the move
    gains.
    """
    for job in sorted(pool.jobs.values(), key=lambda j: j.number):
        late = next((m for m in job.gang if job.slow is not None and m.member == job.slow.member), None)
        if late is None or job.slow is None or len(job.gang) < 2 or not job.is_live or not may_move(job):
            continue
        one = _movable(job, pool, capacity, usual)
        staying = tuple(m.seat for m in job.gang if m is not late)
        fresh = None if one is None else beside(capacity, one.shape, 1, staying)
        if fresh is not None:
            said = f"Learner {late.member} on {late.seat.node} runs at {job.slow.speed:.0%} of the others' speed"
            yield Moved(job.id, staying + fresh, f"{said}; it is replaced by another learner.")


def defragmented(
    pool: Pool,
    capacity: FreeCapacity,
    line: Sequence[GangRequest],
    may_move: Callable[[Job], bool],
    usual: Layout,
    starts_then: Callable[[Pool], Collection[str]],
) -> Moved | None:
    """Return the cheapest move that lets a waiting job start on one node; the first such job in the queue.

    `line`: waiting jobs that do not start now, in queue order. `starts_then`: returns the jobs that would start in a
    given pool; a move from which another job would profit is not made. `capacity` is unchanged afterwards.
    """
    first: dict[tuple[Shape, int], GangRequest] = {}
    for request in line:
        if request.shape.gpus and not request.shape.is_share and request.weight <= capacity.devices:
            first.setdefault((request.shape, request.learners), request)
    if not first:
        return None  # a move frees no device: it only says where they are
    movable = [one for job in pool.jobs.values() if may_move(job) if (one := _movable(job, pool, capacity, usual))]
    movable = [one for one in movable if one.shape.placement != Layout.SPREAD]
    for request in islice(first.values(), LOOKED_AT if movable else 0):
        wait_s = _wait_s(pool, request, usual)
        move = consolidation(
            capacity, movable, Wanted(id=request.id, shape=request.shape, learners=request.learners, wait_s=wait_s)
        )
        if move is not None and request.id in starts_then(_after(pool, move)):
            fits = "it fits" if request.learners == 1 else f"its {request.learners} learners fit"
            return Moved(
                move.job,
                move.seats,
                f"Makes room on {move.node} for the waiting job {request.id}; {fits} there afterwards.",
            )
    return None


def _movable(job: Job, pool: Pool, capacity: FreeCapacity, usual: Layout) -> Movable | None:
    """Return the job as input of a move, fixed to its present device kind; None if it holds no devices."""
    known = pool.known.get(job.id, NOTHING_KNOWN)
    seats = tuple(m.seat for m in job.gang)
    shape = shape_of(job, usual)
    if not seats or not shape.gpus:
        return None
    if shape.gpu_kind is None and len(capacity.kinds) > 1:
        kinds = {
            free.order[d][1] for s in seats if (free := capacity.named(s.node)) for d in s.devices if d in free.order
        }
        if len(kinds) == 1:
            shape = replace(shape, gpu_kind=kinds.pop())
    left_s = None if known.length_s is None else max(known.length_s - known.executed_s, 0.0)
    return Movable(
        id=job.id, shape=shape, seats=seats, cost_s=cost_s(job, known), left_s=left_s, stays=int(job.is_live)
    )


def _wait_s(pool: Pool, request: GangRequest, usual: Layout) -> float:
    """Return the seconds until the gang fits on one node by expected ends; at most HORIZON_S."""
    ends: list[tuple[float, int, Job]] = []
    for job in pool.jobs.values():
        known = pool.known.get(job.id, NOTHING_KNOWN)
        if job.gang and known.length_s is not None:
            ends.append((max(known.length_s - known.executed_s, 0.0), job.number, job))
    capacity = planning_capacity(pool)
    for left_s, _, job in sorted(ends, key=lambda end: end[:2]):
        if left_s >= HORIZON_S:
            break
        capacity.give(shape_of(job, usual), tuple(m.seat for m in job.gang))
        if capacity.tightest(request.shape, request.learners) is not None:
            return left_s
    return HORIZON_S


def _after(pool: Pool, move: Move) -> Pool:
    """Return the pool after the move."""
    job = pool.jobs[move.job]
    members = tuple(replace(m, seat=seat) for m, seat in zip(job.gang, move.seats, strict=True))
    return replace(pool, jobs={**pool.jobs, job.id: replace(job, members=members)})
