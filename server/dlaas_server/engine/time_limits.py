"""Time limits in a turn of the loop: jobs that reach their limit are halted with a checkpoint."""

from __future__ import annotations

from typing import Final

from dlaas_server.core.lifecycle import time_limit
from dlaas_server.core.lifecycle.job_events import MachineSlept
from dlaas_server.core.lifecycle.requests import HaltJob
from dlaas_server.core.model.job import Job
from dlaas_server.engine.reconciliation.transaction import Draft

__all__ = ["enforce_time_limits", "next_limit_s"]

SLEPT_MIN_S: Final = 1.0


def enforce_time_limits(draft: Draft, active: dict[str, Job], slept_s: float) -> None:
    """Halt overdue jobs and update `active`. `slept_s`: time that the machine was suspended since the last turn."""
    for job in list(active.values()) if slept_s >= SLEPT_MIN_S else ():
        active[job.id] = draft.apply(job.id, MachineSlept(seconds=slept_s))
    for job in active.values():
        if time_limit.is_overdue(job, draft.now_s):
            active[job.id] = draft.apply(job.id, HaltJob(by=time_limit.in_words(job), job=job.id))


def next_limit_s(active: dict[str, Job], now_s: float) -> float | None:
    """Return the time at which the next limit is reached; None if there is none."""
    limits = (time_limit.limit_s(job) for job in active.values() if job.spec.max_time_s is not None)
    return min((at_s for at_s in limits if at_s is not None and at_s > now_s), default=None)
