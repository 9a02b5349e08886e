"""Drain of nodes: jobs on a drained node shrink, migrate, return to the queue, or stay for now.

In this order, since each costs the job more than the one before. An elastic job gives up its learners there and goes
on. A job that cannot be smaller gets seats elsewhere, if there are any; else it is preempted at a checkpoint. A job
without a checkpoint keeps running: a drain loses no work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Intent, Job, is_settled
from dlaas_server.core.model.phrases import count, unit_of
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, free_of, place, shape_of
from dlaas_server.core.placement.shape import Layout
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import Elastic, State

__all__ = ["Leave", "Way", "drain", "said_of_nodes"]


class Way(StrEnum):
    """Way in which a job leaves a node."""

    SHRINK = "shrink"
    MOVE = "move"
    PREEMPT = "preempt"
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class Leave:
    """Effect of a drain on one job with learners on a drained node."""

    job: str
    way: Way
    nodes: tuple[str, ...]
    """Nodes that it leaves."""
    seats: tuple[Seat, ...]
    """Seats on which it continues at once; empty if it returns to the queue."""
    before: int
    after: int
    text: str
    is_due: bool
    """True if it can be done now; else the job first finishes its present transition."""


def drain(pool: Pool, usual: Layout = Layout.PACK, now_s: float = inf) -> tuple[Leave, ...]:
    """Return the effects of all drains. Pure: the listing order does not matter.

    `usual`: layout for jobs that do not set their own. `now_s`: a job that has just failed to leave is tried again
    later.
    """
    drained = {node.name for node in pool.nodes if node.drains}
    if not drained:
        return ()
    there = [job for job in pool.jobs.values() if job.goal is Goal.RUN and _nodes_left(job, drained)]
    there = [job for job in there if not job.state.is_final and job.intent is Intent.RUN]
    if not there:
        return ()
    capacity = free_of(pool.nodes, pool.jobs.values())
    shrinkable = {job.id for job in there if len(_kept(job, drained)) >= job.spec.learners_min and _may_shrink(job)}
    # Shrinking jobs take no seats that a moving job needs, so they go first.
    there.sort(key=lambda j: (j.id not in shrinkable, -j.priority, j.submitted_s, j.number))
    return tuple(_leave(job, drained, capacity, usual, now_s) for job in there)


def _nodes_left(job: Job, drained: set[str]) -> tuple[str, ...]:
    return tuple(sorted({m.seat.node for m in job.gang if m.seat.node in drained}))


def _kept(job: Job, drained: set[str]) -> tuple[Seat, ...]:
    return tuple(m.seat for m in job.gang if m.seat.node not in drained)


def _may_shrink(job: Job) -> bool:
    return job.elastic is not Elastic.OFF


def _leave(job: Job, drained: set[str], capacity: FreeCapacity, usual: Layout, now_s: float) -> Leave:
    nodes, kept, before = _nodes_left(job, drained), _kept(job, drained), len(job.gang)
    is_due = is_settled(job) and job.not_before_s <= now_s

    def so(way: Way, seats: tuple[Seat, ...], text: str) -> Leave:
        return Leave(job.id, way, nodes, seats, before, len(seats), text, is_due)

    if not job.is_live and job.checkpoint_step is None:
        until = "ends" if job.state is State.STORING else "has one, or ends"
        return so(Way.STAY, (), f"{job.id} has no checkpoint yet; it stays until it {until}")
    least = job.spec.learners_min if _may_shrink(job) else before
    if len(kept) >= max(least, 1):
        return so(Way.SHRINK, kept, f"{job.id} shrinks from {before} to {count(len(kept), 'learner')} and continues")
    seats = _elsewhere(capacity, shape_of(job, usual), before - len(kept), least - len(kept))
    if not seats:
        needs = count((least - len(kept)) * max(job.spec.gpus_per_learner, 1), f"more {unit_of(job)}")
        text = f"{job.id} is preempted, because {needs} would have to be free on other nodes. "
        return so(Way.PREEMPT, (), f"{text}It writes a checkpoint, then returns to its place in the queue")
    to = ", ".join(sorted({seat.node for seat in seats}))
    if job.is_live and not kept:  # no member stays to pass on the state: restart from a checkpoint
        return so(Way.MOVE, (), f"{job.id} moves to {to}: it writes a checkpoint and continues there")
    size = "" if len(kept) + len(seats) == before else f" with {len(kept) + len(seats)} of {before}"
    text = f"{job.id} moves {count(len(seats), 'learner')} to {to} and continues{size}"
    return so(Way.MOVE, kept + seats, text)


def _elsewhere(capacity: FreeCapacity, shape: Shape, wished: int, least: int) -> tuple[Seat, ...]:
    """Return seats on other nodes, taken: as many as possible between the two numbers; () if fewer fit."""
    fits = capacity.fit_count(shape, wished)
    return (place(capacity, shape, fits) or ()) if fits >= least else ()


def said_of_nodes(pool: Pool, job: Job) -> str:
    """Return " n1 is being drained by ana." for cordoned nodes that could take a learner of the job; "" for none."""
    shape, parts = shape_of(job), []
    for node in pool.nodes:
        if node.cordoned is not None:
            usable = sum(d.out_of_service is None for d in node.devices)
            if usable >= max(shape.gpus, 1):
                parts.append(f"{node.name} is {node.cordoned}")
    if not parts:
        return ""
    more = f" and {len(parts) - 2} more nodes" if len(parts) > 2 else ""
    return f" {', '.join(parts[:2])}{more}."
