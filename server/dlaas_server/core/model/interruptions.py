"""Interruptions of a job's training: start, release of devices, resumed training. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dlaas_server.core.model.job import Job, PendingResize
from dlaas_server.core.model.phrases import count, duration
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import Interruption, Resize

__all__ = [
    "HALTED",
    "LOST",
    "PREEMPTED",
    "began",
    "change_before",
    "held_again",
    "left",
    "over",
    "passed",
    "replaced",
    "since_s",
    "with_size",
    "withdrawn",
    "work_lost",
]

PREEMPTED: Final = "preempted"
HALTED: Final = "halted"
LOST: Final = "lost"
_MAX: Final = 200
"""Number of interruptions kept per job, the newest."""


def began(job: Job, by: str, text: str, now_s: float, *, keeps_devices: bool = False) -> Job:
    """Begin an interruption of a training job; keep one that has begun already."""
    before = job.resize.before if job.resize is not None else len(job.gang)
    if _open(job) is not None or job.started_s is None:
        return job
    interruption = Interruption(
        at_s=now_s, step=job.step, before=before, by=by, text=text, held_s=now_s if keeps_devices else None
    )
    return replace(job, interruptions=(*job.interruptions, interruption)[-_MAX:])


def change_before(job: Job, now_s: float) -> PendingResize | None:
    """Return the change of size that a job which leaves has just made: it was under way as the interruption began.

    It is attributed to whoever asked for the size that the job has now, else to the pool.
    """
    interruption, learners = _open(job), len(job.gang)
    if interruption is None or interruption.held_s is not None or interruption.before == learners:
        return None
    by = job.wish_by if job.wish == learners else "pool"
    return PendingResize(before=interruption.before, after=learners, by=by, since_s=now_s)


def with_size(job: Job) -> Job:
    """Let the present learners be those that train until the job has left."""
    interruption = _open(job)
    if interruption is None or interruption.held_s is not None:
        return job
    return _with(job, replace(interruption, before=len(job.gang)))


def left(job: Job, now_s: float) -> Job:
    """Move the start of the interruption to the time at which the last learner has left.

    A job that left before it trained again has no devices since the interruption that had begun before.
    """
    interruption = _open(job)
    if interruption is None:
        return job
    if interruption.held_s is not None:
        return _with(job, replace(interruption, held_s=None)) if job.goal is Goal.HALT else job
    return _with(job, replace(interruption, at_s=now_s, step=max(interruption.step, job.step)))


def held_again(job: Job, now_s: float) -> Job:
    """Record that the job has devices again; it does not train yet."""
    interruption = _open(job)
    return job if interruption is None else _with(job, replace(interruption, held_s=now_s))


def over(job: Job, now_s: float) -> Job:
    """End the interruption: the job trains again."""
    interruption = _open(job)
    if interruption is None:
        return job
    learners = len(job.gang)
    resumed = f"Training resumed with {count(learners, 'learner')} from step {job.step:,}"
    text = f"{interruption.text} {resumed}, after {duration(now_s - interruption.at_s)}."
    held_s = now_s if interruption.held_s is None else interruption.held_s
    return _with(job, replace(interruption, to_s=now_s, held_s=held_s, after=learners, text=text))


def passed(job: Job, before: int, text: str, now_s: float, idle_s: float | None) -> Job:
    """Add a loss that the other learners survived without releasing their devices."""
    at_s = now_s - (idle_s or 0.0)
    interruption = Interruption(
        at_s=at_s, step=job.step, before=before, by=LOST, text=text, held_s=at_s, to_s=now_s, after=len(job.gang)
    )
    return replace(job, interruptions=(*job.interruptions, interruption)[-_MAX:])


def replaced(job: Job, change: Resize) -> Job:
    """Add to the last loss that the pool replaced learners."""
    last = job.interruptions[-1] if job.interruptions else None
    is_loss = last is not None and last.by == LOST and last.after == change.before
    if last is None or not is_loss or change.by != "pool" or change.after <= change.before:
        return job
    text = f"{last.text} Replaced: {count(change.after, 'learner')} from step {change.step:,} on."
    return _with(job, replace(last, after=change.after, text=text))


def withdrawn(job: Job) -> Job:
    """Drop an interruption that never happened: the job completed before its learners had left."""
    return job if _open(job) is None else replace(job, interruptions=job.interruptions[:-1])


def work_lost(job: Job) -> str:
    """Return a sentence on the work lost by a job that left its seats, and the step at which it continues."""
    at = job.checkpoint_step
    if at is None:
        return "It had no checkpoint and starts over."
    steps = job.step - at
    lost = f"{count(steps, 'step')} {'was' if steps == 1 else 'were'}" if steps > 0 else "Nothing was"
    return f"{lost} lost: it continues from step {at:,}."


def since_s(job: Job) -> float | None:
    """Return the start of the present interruption; None if there is none."""
    interruption = _open(job)
    return None if interruption is None else interruption.at_s


def _open(job: Job) -> Interruption | None:
    last = job.interruptions[-1] if job.interruptions else None
    return last if last is not None and last.to_s is None else None


def _with(job: Job, interruption: Interruption) -> Job:
    return replace(job, interruptions=(*job.interruptions[:-1], interruption))
