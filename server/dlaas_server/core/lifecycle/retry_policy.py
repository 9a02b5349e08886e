"""Retry policy: whether a job with failed learners is restarted, and after which delay. Pure."""

from __future__ import annotations

from dlaas_server.core.model.job import Job
from jupyter_dlaas.wire.journal import is_retried
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = ["delay_s", "may_retry"]


def may_retry(job: Job, failure: Failure) -> bool:
    """Return whether another try may help and the job has one left."""
    return is_retried(failure) and job.restarts < job.spec.retries and not _hangs_again(job, failure)


def delay_s(job: Job) -> float:
    """Return the delay before the next try in seconds: 0 for the first, then 1, doubled each time up to 60."""
    return 0.0 if job.restarts == 0 else min(2.0 ** (job.restarts - 1), 60.0)


def _hangs_again(job: Job, failure: Failure) -> bool:
    """Return whether the job hung at the same line as before its last restart, without a new checkpoint."""
    before = job.failure
    if failure.cause is not Cause.HANG or before is None or job.restarts == 0 or failure.where is None:
        return False
    return (before.cause, before.where) == (failure.cause, failure.where)
