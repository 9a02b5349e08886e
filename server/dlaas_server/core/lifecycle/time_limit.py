"""Time limit of a job (`max_time_s`), which counts training time only: no time in the queue, none while suspended."""

from __future__ import annotations

from dataclasses import replace

from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import duration
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import State

__all__ = ["adopted", "begun", "in_words", "is_overdue", "limit_s", "paused", "renewed", "slept"]


def begun(job: Job, at_s: float) -> Job:
    """Start counting, unless the time is counted already. Called when the job trains."""
    return job if job.limit_since_s is not None else replace(job, limit_since_s=at_s)


def paused(job: Job, at_s: float) -> Job:
    """Stop counting and keep the used time. Called when the job has left its devices."""
    if job.limit_since_s is None:
        return job
    used_s = job.limit_used_s + max(at_s - job.limit_since_s, 0.0)
    return replace(job, limit_since_s=None, limit_used_s=used_s)


def renewed(job: Job) -> Job:
    """Reset the limit. Called when a person resumes the job."""
    return replace(job, limit_since_s=None, limit_used_s=0.0)


def slept(job: Job, slept_s: float) -> Job:
    """Subtract the time during which the machine was suspended."""
    return job if job.limit_since_s is None else replace(job, limit_since_s=job.limit_since_s + slept_s)


def adopted(job: Job) -> Job:
    """Start counting for a running job that was stored by a version that counted from its start."""
    is_running = job.state in (State.PROCESSING, State.STORING) and not job.is_closed
    return begun(job, job.started_s) if is_running and job.started_s is not None else job


def limit_s(job: Job) -> float | None:
    """Return the time at which the limit is reached if the job continues; None if no time is counted."""
    if job.spec.max_time_s is None or job.limit_since_s is None:
        return None
    return job.limit_since_s + job.spec.max_time_s - job.limit_used_s


def is_overdue(job: Job, now_s: float) -> bool:
    """Return whether the job runs and its limit is reached."""
    at_s = limit_s(job)
    runs = not job.is_closed and not job.state.is_final and job.goal is Goal.RUN
    return runs and at_s is not None and now_s >= at_s


def in_words(job: Job) -> str:
    """Return the originator of a time-limit halt as text: "its time limit of 2 h"."""
    limit_s = job.spec.max_time_s or 0.0
    return f"its time limit of {duration(limit_s) if limit_s >= 60 else f'{limit_s:g} s'}"
