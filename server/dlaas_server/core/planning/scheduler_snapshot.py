"""Scheduler snapshot: a scheduler built from a pool, with its running and waiting gangs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, is_settled
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.placement.gang_placement import shape_of
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.scheduler import Policy, Scheduler
from dlaas_server.core.spot.reclaim import planning_capacity
from dlaas_server.core.spot.spot_scheduler import SpotScheduler, spot_usage

__all__ = ["NOTHING_KNOWN", "request_of", "scheduler_of", "set_estimates"]

NOTHING_KNOWN: Final = Known()


def scheduler_of(
    pool: Pool, now_s: float, policy: Policy, order: Order | None = None
) -> tuple[Scheduler | SpotScheduler, list[Job]]:
    """Return a scheduler with the pool's jobs, and all jobs that wait."""
    capacity = planning_capacity(pool)
    scheduler: Scheduler | SpotScheduler
    if any(job.spec.spot for job in pool.jobs.values()):
        scheduler = SpotScheduler(capacity, policy, order)
    else:
        scheduler = Scheduler(capacity, policy, order)
        scheduler.charge_spot_usage(spot_usage(pool.lent, policy.spot_price))
    jobs = sorted(pool.jobs.values(), key=lambda j: j.number)
    held = [job for job in jobs if job.gang]
    unusable = {d.id for node in pool.nodes for d in node.devices if node.cordoned or d.out_of_service}
    for job in sorted(held, key=lambda j: (j.seated_s or 0.0, j.number)):
        seats = tuple(m.seat for m in job.gang)
        usable = _usable(seats, unusable) if unusable else seats
        scheduler.add_running(request_of(job, pool, policy, now_s), usable, now_s, job.seated_s)
    queue = [job for job in jobs if job.waits]
    for job in queue:
        if job.not_before_s <= now_s:
            request = request_of(job, pool, policy, now_s)
            scheduler.enqueue(request, now_s, request.queued_s)
    return scheduler, queue


def _usable(seats: tuple[Seat, ...], unusable: Collection[str]) -> tuple[Seat, ...]:
    """Return the seats without devices that no other job could get (out of service, or on a cordoned node)."""
    reduced = (replace(seat, devices=tuple(d for d in seat.devices if d not in unusable)) for seat in seats)
    return tuple(new for new, seat in zip(reduced, seats, strict=True) if new.devices or not seat.devices)


def request_of(job: Job, pool: Pool, policy: Policy, now_s: float) -> GangRequest:
    """Return the job as a scheduler request. A job that changes, ends, or has no checkpoint is not preempted.

    A waiting job is assumed to have a checkpoint by the time that its seats are wanted.
    """
    request = GangRequest(
        job.number,
        shape_of(job, policy.placement),
        len(job.gang) or job.spec.learners_min,
        job.submitted_s,
        priority=job.priority,
        queue=job.spec.queue,
        is_spot=job.spec.spot,
        is_preemptible=policy.preempts and (job.waits or (is_settled(job) and job.checkpoint_step is not None)),
        id=job.id,
    )
    set_estimates(request, pool.known.get(job.id, NOTHING_KNOWN))
    request.queued_s = max(job.submitted_s, job.queued_s)
    request.starts = int(job.queued_s > 0)  # when it starts again, it is restored first
    return request


def set_estimates(request: GangRequest, known: Known) -> None:
    """Copy what is known of the job's length into the request."""
    request.estimate_s, request.usual_s, request.mean_s, request.spread = (
        known.length_s,
        known.usual_s,
        known.mean_s,
        known.spread,
    )
    request.executed_s, request.restart_s = known.executed_s, known.restart_s
