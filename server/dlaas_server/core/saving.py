"""Who is asked for a checkpoint, so that it can make room.

Nobody is preempted before it has something to go on from, and checkpoints by time come once a minute, or as seldom as a
job wants: until then whoever goes first would wait. Training goes on while one is written, so nothing is lost by it,
however long a step takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dlaas_server.core.model import Job, Pool
from dlaas_server.core.plan import Wait, is_settled
from dlaas_server.core.policy import Policy, Share
from dlaas_server.core.settings import held_by, queues_of

__all__ = ["as_if_saved", "asked_to_save", "may_save"]


def _is_unsaved(job: Job) -> bool:
    """It trains something that can be gone on with, and has no checkpoint."""
    return is_settled(job) and not job.is_plain and job.checkpoint_step is None


def may_save(job: Job) -> bool:
    """The same, and it was not asked for one yet."""
    return _is_unsaved(job) and not job.awaits_checkpoint


def as_if_saved(pool: Pool) -> Pool:
    """The same pool when all have answered, as they will have before anybody is preempted: for forecasts."""
    saved = {name: replace(job, checkpoint_step=job.step) for name, job in pool.jobs.items() if _is_unsaved(job)}
    return replace(pool, jobs={**pool.jobs, **saved}) if saved else pool


def asked_to_save(pool: Pool, waits: Iterable[Wait], policy: Policy) -> Mapping[str, str]:
    """Jobs to ask for a checkpoint -> for whom, who waits: of a higher priority, or the owner of what it borrows.

    Spot jobs leave without: they write one as they go.
    """
    unsaved = [job for job in pool.jobs.values() if not job.spec.spot and may_save(job)] if policy.preempts else []
    if not unsaved:
        return {}
    in_line = sorted((wait for wait in waits if wait.place), key=lambda wait: wait.place)
    waiting = [pool.jobs[wait.job] for wait in in_line if not pool.jobs[wait.job].spec.spot]
    first = max(waiting, key=lambda job: job.priority, default=None)
    if first is None:
        return {}
    owners = _owners(pool, waiting, policy) if policy.order == "fair" else {}
    found: dict[str, str] = {}
    for job in unsaved:
        owner = next((one for queue, one in owners.items() if queue != job.spec.queue), None)
        if first.priority > job.priority:
            found[job.id] = first.id
        elif owner is not None and owner.priority >= job.priority and _borrows(job, pool, policy):
            found[job.id] = owner.id
    return found


def _owners(pool: Pool, waiting: Iterable[Job], policy: Policy) -> dict[str, Job]:
    """Queue that has less than it is guaranteed -> the first of its jobs that wait."""
    shares, found = queues_of(policy), dict[str, Job]()
    for job in waiting:
        queue = job.spec.queue
        if queue not in found and held_by(queue, pool) < shares.get(queue, Share()).guaranteed:
            found[queue] = job
    return found


def _borrows(job: Job, pool: Pool, policy: Policy) -> bool:
    queue = job.spec.queue
    return held_by(queue, pool) > queues_of(policy).get(queue, Share()).guaranteed
