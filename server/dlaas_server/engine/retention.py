"""Retention: jobs that ended long ago are removed."""

from __future__ import annotations

from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.reconciliation.transaction import Draft

__all__ = ["remove_old_jobs"]


async def remove_old_jobs(lifecycle: Lifecycle) -> list[str]:
    """Remove ended jobs that are older, or more, than the retention limits allow. Return their ids."""
    now_s, keep_s, keep_jobs = lifecycle.clock(), lifecycle.keep_s, lifecycle.keep_jobs
    ended = [j for j in lifecycle.jobs.values() if j.state.is_final and j.is_closed]
    ended.sort(key=lambda j: (-(j.ended_s or j.submitted_s), -j.number))
    old = [j.id for j in ended if keep_s is not None and (j.ended_s or j.submitted_s) < now_s - keep_s]
    surplus = [] if keep_jobs is None else [j.id for j in ended[keep_jobs:]]
    gone = sorted({*old, *surplus})

    def apply(draft: Draft) -> None:
        for job in gone:
            draft.delete(job)

    if gone:
        await lifecycle.post(apply)
    for job in gone:
        await lifecycle.pool.remove(job)
    return gone
