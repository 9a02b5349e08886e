"""Refused seats: what becomes of a job if the pool cannot provide seats that were planned for it. Pure.

It does not count as a failure of the job: no restart is counted, and nothing that runs is stopped without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlaas_server.core.lifecycle.transition import Transition, with_goal, with_text
from dlaas_server.core.model import interruptions
from dlaas_server.core.model.job import Job, MemberState
from dlaas_server.core.model.phrases import clause, sentence
from jupyter_dlaas.wire.journal import Goal, SeatRefused

__all__ = ["concerning", "seats_refused"]

_RUNS = (MemberState.UP, MemberState.READY)


def concerning(job: Job, refused: Sequence[SeatRefused]) -> tuple[SeatRefused, ...]:
    """Return the refusals that concern the newest generation of a job that is to run; others are out of date."""
    if job.is_closed or job.state.is_final or job.goal is not Goal.RUN:
        return ()
    members = {m.member for m in job.gang}
    return tuple(fact for fact in refused if fact.generation == job.generation and fact.member in members)


def seats_refused(job: Job, refused: Sequence[SeatRefused], now_s: float) -> Transition:
    """Handle seats that the pool could not provide.

    A job of which no learner runs returns to its old place in the queue. A gang that was to change while it trains
    continues as it was. A job that has to restart for its new seats writes a checkpoint and returns to the queue.
    """
    refused = concerning(job, refused)
    if not refused:
        return job, ()
    # One quota, or one policy, refuses all learners of a gang in the same words.
    causes = dict.fromkeys(fact.what or f"The pool had no device for learner {fact.member}" for fact in refused)
    fixes = dict.fromkeys(sentence(fact.advice) for fact in refused if fact.advice)
    what, fix = " ".join(map(sentence, causes)), "".join(f" {text}" for text in fixes)
    if job.is_live and job.resize is not None and _staying(job):
        text = f"{what} The job continues at its previous size.{fix}"
        return with_text(_without_joiners(job), "seat_refused", text)
    if any(m.state in _RUNS for m in job.members):
        job = interruptions.began(job, interruptions.PREEMPTED, f"Preempted: {clause(what)}.", now_s)
        job = with_goal(replace(job, preempted=clause(what), is_live=False), Goal.HALT)
        text = f"{what} The job writes a checkpoint, then returns to its place in the queue.{fix}"
        return with_text(job, "seat_refused", text)
    job = with_goal(replace(job, members=(), is_live=False, refusal=f"{what}{fix}"), Goal.STOP)
    return with_text(job, "seat_refused", f"{what} The job returns to its place in the queue.{fix}")


def _staying(job: Job) -> tuple[int, ...]:
    """Return the members that trained before the pending change and still run, in rank order."""
    before = () if job.resize is None else job.resize.members
    runs = {m.member for m in job.members if m.state in _RUNS}
    return tuple(member for member in before if member in runs)


def _without_joiners(job: Job) -> Job:
    """Return the job with the members that trained before the change, as a new generation.

    A joining member whose process was reported keeps its seat until it is down: its device may be in use.
    """
    ranks = {member: rank for rank, member in enumerate(_staying(job))}
    generation = job.generation + 1
    members = tuple(
        replace(m, generation=generation, rank=ranks[m.member]) if m.member in ranks else m
        for m in job.members
        if m.member in ranks or m.generation < job.generation or m.state in _RUNS
    )
    return replace(job, generation=generation, members=members, revision=job.revision + 1, guardian_starts=0)
