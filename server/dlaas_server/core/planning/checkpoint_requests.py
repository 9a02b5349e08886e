"""Checkpoint requests to jobs that may have to make room.

No job is preempted before it has a checkpoint. Periodic checkpoints come once a minute, or as rarely as a job
configures, and the waiting job would have to wait for the next one. Training continues while a checkpoint is written,
so the request costs nothing, however long a step takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dlaas_server.core.model.job import Job, is_settled
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.planning.decisions import Wait, in_queue
from dlaas_server.core.planning.pool_settings import held_by_queue, is_entitled, queues_of
from dlaas_server.core.scheduling.policy import Policy, Share

__all__ = ["checkpoint_requests", "may_request_checkpoint", "with_checkpoints"]


def _is_unsaved(job: Job) -> bool:
    """Return whether the job trains, can be resumed, and has no checkpoint yet."""
    return is_settled(job) and not job.is_plain and job.checkpoint_step is None


def may_request_checkpoint(job: Job) -> bool:
    """Return whether the job is unsaved and was not asked for a checkpoint yet."""
    return _is_unsaved(job) and not job.awaits_checkpoint


def with_checkpoints(pool: Pool) -> Pool:
    """Return the pool after all unsaved jobs wrote a checkpoint, as before any preemption. Used for forecasts."""
    saved = {name: replace(job, checkpoint_step=job.step) for name, job in pool.jobs.items() if _is_unsaved(job)}
    return replace(pool, jobs={**pool.jobs, **saved}) if saved else pool


def checkpoint_requests(pool: Pool, waits: Iterable[Wait], policy: Policy) -> Mapping[str, str]:
    """Return the jobs to ask for a checkpoint, each with the waiting job that needs it.

    That job has a higher priority, or its queue owns the devices that the running job borrows. Spot jobs are not asked:
    they write a checkpoint as they leave.
    """
    unsaved = (
        [job for job in pool.jobs.values() if not job.spec.spot and may_request_checkpoint(job)]
        if policy.preempts
        else []
    )
    if not unsaved:
        return {}
    waiting = [pool.jobs[wait.job] for wait in in_queue(waits) if not pool.jobs[wait.job].spec.spot]
    first = max(waiting, key=lambda job: job.priority, default=None)
    if first is None:
        return {}
    owners, borrowed = _shared(pool, waiting, policy) if policy.order == "fair" else ([], {})
    winners = {job.id: _winner(job, first, owners, borrowed) for job in unsaved}
    return {name: winner.id for name, winner in winners.items() if winner is not None}


def _winner(job: Job, first: Job, owners: Iterable[Job], borrowed: Mapping[str, int]) -> Job | None:
    """Return the waiting job for which this job should write a checkpoint; None if there is none.

    `first`: the waiting job of the highest priority.
    """
    if first.priority > job.priority:
        return first
    queue = job.spec.queue
    if sum(len(member.seat.devices) for member in job.gang) > borrowed.get(queue, 0):
        return None
    return next((owner for owner in owners if owner.spec.queue != queue and owner.priority >= job.priority), None)


def _shared(pool: Pool, waiting: Iterable[Job], policy: Policy) -> tuple[list[Job], Mapping[str, int]]:
    """Return the waiting jobs within their queue's guarantee, and the devices that each queue borrows."""
    shares, held = queues_of(policy), held_by_queue(pool)
    owners = [job for job in waiting if is_entitled(job, held, shares)]
    return owners, {queue: devices - shares.get(queue, Share()).guaranteed for queue, devices in held.items()}
