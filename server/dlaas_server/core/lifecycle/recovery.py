"""Recovery of a job that the store lost, from its directory: spec, last wanted document, journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlaas_server.core.lifecycle.journal_events import apply_fact, broke
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Intent, Job, Member
from dlaas_server.core.model.states import Event, step
from jupyter_dlaas.wire.journal import (
    CheckpointSaved,
    Fact,
    GenerationLost,
    GenerationStarted,
    Goal,
    JobClosed,
    JobCompleted,
    JobHalted,
    LearnerUp,
    LineDamaged,
    NoteReported,
    StepsCommitted,
    Wanted,
    WantedSeen,
)
from jupyter_dlaas.wire.protocol import Cause, Failure, JobSpec, State

__all__ = ["StoredJob", "number_of", "recovered"]

_UNKNOWN_END = Failure(
    cause=Cause.UNKNOWN,
    code="record_lost",
    what="The job has ended, but the pool's record of its result was lost",
    advice="See its log, or run it again with `jupyter dlaas retry JOB`.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """Contents of a job's directory from which its record can be rebuilt."""

    id: str
    owner: str
    spec: JobSpec
    submitted_s: float
    wanted: Wanted | None
    facts: Sequence[Fact]
    journal_bytes: int
    next_member: int
    """First member number above all members that have a directory."""


def number_of(job_id: str) -> int | None:
    """Return the number in a job's id; None if it has none."""
    digits = job_id.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None


def recovered(found: StoredJob, unit: str) -> Job:
    """Rebuild the record of a job by replaying the journal on top of the last wanted document.

    A job that was halted or preempted becomes HALTED: the directory does not distinguish them, and a person can resume
    it.
    """
    number, spec, wanted = number_of(found.id), found.spec, found.wanted
    assert number is not None, "the caller has checked"
    facts = sorted((f for f in found.facts if not isinstance(f, LineDamaged)), key=lambda f: f.n)
    generation: int = max([g for f in facts if (g := getattr(f, "generation", None)) is not None], default=0)
    revision = max([f.revision for f in facts if isinstance(f, WantedSeen)], default=0)
    members = [f.member for f in facts if isinstance(f, LearnerUp)]
    if wanted is not None:
        generation, revision = max(generation, wanted.generation), max(revision, wanted.revision)
        members += [m.member for m in wanted.members]
    job = Job(
        id=found.id,
        number=number,
        owner=found.owner,
        spec=spec,
        submitted_s=found.submitted_s,
        wish=min(max(len(wanted.members) if wanted else 0, spec.learners_min), spec.learners_max),
        unit=unit,
        priority=spec.priority,
        elastic=spec.elastic,
        generation=generation,
        revision=revision,
        seen_revision=revision,
        next_member=max([found.next_member, *(m + 1 for m in members)]),
        damaged_lines=sum(isinstance(f, LineDamaged) for f in found.facts),
    )
    closes = [i for i, f in enumerate(facts) if isinstance(f, JobClosed)]
    is_closed = not facts or isinstance(facts[-1], JobClosed)
    if is_closed:
        begin = closes[-2] + 1 if len(closes) > 1 else 0
        job = _history(job, facts[:begin])
        job = _ended(job, facts[begin:])
    else:
        begin = closes[-1] + 1 if closes else 0
        job = _runs(_history(job, facts[:begin]), wanted, facts[begin:])
    last = facts[-1].n + 1 if facts else 0
    return replace(job, facts_read=max(job.facts_read, last), journal_offset=found.journal_bytes)


def _history(job: Job, facts: Sequence[Fact]) -> Job:
    """Replay the earlier runs of a job: its training progress and reports."""
    for fact in facts:
        if isinstance(fact, CheckpointSaved | StepsCommitted | NoteReported):
            job = apply_fact(_opened(job), fact)[0]
        elif isinstance(fact, GenerationStarted):
            job = replace(job, live_generation=fact.generation or 0, started_s=job.started_s or fact.at_s)
    return replace(job, is_closed=True)


def _opened(job: Job) -> Job:
    """Return the job as not closed, since the journal of a closed job is ignored."""
    return job if not job.is_closed else replace(job, is_closed=False)


def _runs(job: Job, wanted: Wanted | None, facts: Sequence[Fact]) -> Job:
    """Rebuild a job that was not closed: its guardian lives, or died without closing it."""
    goal = Goal.RUN if wanted is None else wanted.goal
    intent = {Goal.RUN: Intent.RUN, Goal.HALT: Intent.HALT, Goal.STOP: Intent.CANCEL}[goal]
    gang = wanted.members if wanted is not None and goal is Goal.RUN else ()
    if goal is Goal.RUN and not gang:
        intent, goal = Intent.HALT, Goal.HALT  # its devices are unknown: write a checkpoint, then leave
        job = replace(job, revision=job.revision + 1)
    members = tuple(
        Member(member=m.member, generation=job.generation, rank=rank, seat=Seat(m.node, m.devices))
        for rank, m in enumerate(gang)
    )
    job = replace(job, state=State.DEPLOYING, goal=goal, intent=intent, members=members, is_closed=False)
    if intent is Intent.HALT:
        job = replace(job, halted_by="the pool")
    if wanted is not None:
        job = replace(job, notice_s=wanted.grace_s, checkpoints_asked=wanted.checkpoints)
    for fact in facts:
        job = apply_fact(job, fact)[0]
        if (
            isinstance(fact, GenerationLost)
            and fact.failure is not None
            and goal is Goal.STOP
            and not job.state.is_final
        ):
            job = broke(replace(job, intent=Intent.RUN), fact.failure, fact.at_s)[0]
    return job


def _ended(job: Job, facts: Sequence[Fact]) -> Job:
    """Rebuild a job that was closed, or never began. The last run shows how it ended."""
    last = {type(fact): fact for fact in facts}
    end_s = facts[-1].at_s if facts else job.submitted_s
    job = replace(job, state=State.DEPLOYING, is_closed=False)
    for fact in facts:
        if not isinstance(fact, GenerationLost | JobClosed):
            job = apply_fact(job, fact)[0]
    job = replace(job, is_closed=True, members=(), resize=None)
    if JobCompleted in last:
        return job
    if JobHalted in last or not facts:
        state = step(job.state, Event.LEFT)
        return replace(job, state=state, intent=Intent.HALT, goal=Goal.HALT, halted_by="the pool")
    lost = last.get(GenerationLost)
    failure = lost.failure if isinstance(lost, GenerationLost) and lost.failure is not None else _UNKNOWN_END
    failure = replace(failure, advice=failure.advice.replace("JOB", job.id))
    return replace(job, state=step(job.state, Event.BROKE), failure=failure, ended_s=end_s, goal=Goal.STOP)
