"""Emptying a node: who shrinks, who moves, who goes back to the queue, and who cannot leave yet.

In this order, since each costs its job more than the one before: an elastic job gives its learners there up and goes
on; one that cannot be smaller gets seats elsewhere, if there are any; else it is preempted, at a checkpoint. A job that
has nothing to go on from runs on: a drain loses no work.
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
from dlaas_server.core.placement.gang_placement import Frees, free_of, place, shape_of
from dlaas_server.core.placement.shape import Layout
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import Elastic, State

__all__ = ["Leave", "Way", "drain", "said_of_nodes"]


class Way(StrEnum):
    """How a job leaves a node."""

    SHRINK = "shrink"
    MOVE = "move"
    PREEMPT = "preempt"
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class Leave:
    """What becomes of one job that has learners on a node that is drained."""

    job: str
    way: Way
    nodes: tuple[str, ...]
    """The nodes that it leaves."""
    seats: tuple[Seat, ...]
    """Where it goes on at once; none, where it does so over the queue."""
    before: int
    after: int
    text: str
    is_due: bool
    """It can be done now; else as soon as what the job is just doing is done."""


def drain(pool: Pool, usual: Layout = Layout.PACK, now_s: float = inf) -> tuple[Leave, ...]:
    """What becomes of all jobs on nodes that are drained. Pure: a listing in another order gives the same.

    `usual`: how the pool lays out who does not say it. `now_s`: who has just failed to leave tries again later.
    """
    drained = {node.name for node in pool.nodes if node.drains}
    if not drained:
        return ()
    there = [job for job in pool.jobs.values() if job.goal is Goal.RUN and _nodes_left(job, drained)]
    there = [job for job in there if not job.state.is_final and job.intent is Intent.RUN]
    if not there:
        return ()
    frees = free_of(pool.nodes, pool.jobs.values())
    shrinkable = {job.id for job in there if len(_kept(job, drained)) >= job.spec.learners_min and _may_shrink(job)}
    # Who shrinks takes nothing from who must move: they go first.
    there.sort(key=lambda j: (j.id not in shrinkable, -j.priority, j.submitted_s, j.number))
    return tuple(_leave(job, drained, frees, usual, now_s) for job in there)


def _nodes_left(job: Job, drained: set[str]) -> tuple[str, ...]:
    return tuple(sorted({m.seat.node for m in job.gang if m.seat.node in drained}))


def _kept(job: Job, drained: set[str]) -> tuple[Seat, ...]:
    return tuple(m.seat for m in job.gang if m.seat.node not in drained)


def _may_shrink(job: Job) -> bool:
    return job.elastic is not Elastic.OFF


def _leave(job: Job, drained: set[str], frees: Frees, usual: Layout, now_s: float) -> Leave:
    nodes, kept, before = _nodes_left(job, drained), _kept(job, drained), len(job.gang)
    is_due = is_settled(job) and job.not_before_s <= now_s

    def so(way: Way, seats: tuple[Seat, ...], text: str) -> Leave:
        return Leave(job.id, way, nodes, seats, before, len(seats), text, is_due)

    if not job.is_live and job.checkpoint_step is None:
        until = "ends" if job.state is State.STORING else "has one, or ends"
        return so(Way.STAY, (), f"{job.id} has no checkpoint yet: it stays until it {until}")
    least = job.spec.learners_min if _may_shrink(job) else before
    if len(kept) >= max(least, 1):
        return so(Way.SHRINK, kept, f"{job.id} shrinks from {before} to {count(len(kept), 'learner')} and goes on")
    seats = _elsewhere(frees, shape_of(job, usual), before - len(kept), least - len(kept))
    if not seats:
        needs = count((least - len(kept)) * max(job.spec.gpus_per_learner, 1), unit_of(job))
        text = f"{job.id} is preempted, since {needs} more would have to be free elsewhere: checkpoint, then back to "
        return so(Way.PREEMPT, (), f"{text}the queue with its place")
    to = ", ".join(sorted({seat.node for seat in seats}))
    if job.is_live and not kept:  # nobody is left who has the state: over a checkpoint
        return so(Way.MOVE, (), f"{job.id} moves to {to}: checkpoint, then it goes on there")
    size = "" if len(kept) + len(seats) == before else f" with {len(kept) + len(seats)} of {before}"
    text = f"{job.id} moves {count(len(seats), 'learner')} to {to} and goes on{size}"
    return so(Way.MOVE, kept + seats, text)


def _elsewhere(frees: Frees, shape: Shape, wished: int, least: int) -> tuple[Seat, ...]:
    """Free seats on other nodes, taken: as many as are there, between the two numbers; else none."""
    fits = frees.room(shape, wished)
    return (place(frees, shape, fits) or ()) if fits >= least else ()


def said_of_nodes(pool: Pool, job: Job) -> str:
    """ " n1 is being drained by ana.": nodes that could take a learner of the job and are kept from it; "" for none."""
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
