"""Retry policy: whether a job with failed learners is restarted, and after which delay. Pure."""

from __future__ import annotations

import re
from typing import Final

from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from jupyter_dlaas.wire.journal import is_retried
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = ["delay_s", "final_advice", "may_retry"]

_PROMISE: Final = re.compile(r"[^.]*\b(restarts|is retried|continues from its checkpoint)\b[^.]*\.")
"""Sentence of an advice that promises a restart."""


def may_retry(job: Job, failure: Failure) -> bool:
    """Return whether another try may help and the job has one left."""
    return is_retried(failure) and job.restarts < job.spec.retries and not _hangs_again(job, failure)


def final_advice(job: Job, failure: Failure) -> str:
    """Return the advice for a failure that ended the job: it promises no restart, and says why there is none."""
    if not is_retried(failure):
        return failure.advice
    if job.spec.retries == 0:
        why = "The job was not restarted, because it was submitted with --retries 0."
    elif _hangs_again(job, failure):
        why = "The job was not restarted again, because it hung in the same line as before."
    else:
        why = f"The job was restarted {count(job.restarts, 'time')} without a new checkpoint."
    advice = _PROMISE.sub("", failure.advice).strip()
    return f"{advice} {why} To run it again: `jupyter dlaas retry JOB`.".strip()


def delay_s(job: Job) -> float:
    """Return the delay before the next try in seconds: 0 for the first, then 1, doubled each time up to 60."""
    return 0.0 if job.restarts == 0 else min(2.0 ** (job.restarts - 1), 60.0)


def _hangs_again(job: Job, failure: Failure) -> bool:
    """Return whether the job hung at the same line as before its last restart, without a new checkpoint."""
    before = job.failure
    if failure.cause is not Cause.HANG or before is None or job.restarts == 0 or failure.where is None:
        return False
    return (before.cause, before.where) == (failure.cause, failure.where)
