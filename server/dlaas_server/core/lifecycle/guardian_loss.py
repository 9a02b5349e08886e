"""Changes of a job whose guardian died, whose journal or directory is damaged, or that has no process left."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dlaas_server.core.lifecycle.journal_events import broke, closed
from dlaas_server.core.lifecycle.transition import EventText, Transition
from dlaas_server.core.model.job import Job, MemberState
from dlaas_server.core.model.phrases import count
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import Cause, Failure, Note

__all__ = [
    "JOURNAL_NOTE",
    "abandoned",
    "directory_lost",
    "guardian_gone",
    "has_no_seats",
    "lines_lost",
    "may_be_over",
    "not_started",
]

GUARDIAN_STARTS_MAX: Final = 8
"""Maximum number of guardian starts for one revision before the job fails."""
SILENT_GUARDIAN_STARTS_MAX: Final = 4
"""Maximum number of guardian starts if they exit without writing a fact and no learner was started."""
SETTLED_S: Final = 2.0
"""Run time after which a guardian counts as healthy, so that its loss resets the count."""
JOURNAL_NOTE: Final = "report_journal"


def guardian_gone(job: Job, text: str, now_s: float, *, has_exited: bool = False) -> Transition:
    """Record that a guardian could not be started, or died; `has_exited`: by itself.

    The first loss restarts it at once, later ones with a growing delay; after GUARDIAN_STARTS_MAX starts the job fails.
    A guardian that held the job for SETTLED_S resets the count: a healthy job does not fail because its guardian is
    killed. If no guardian wrote a fact and the last one exited by itself, the job's Python cannot run it, and
    SILENT_GUARDIAN_STARTS_MAX starts are enough.
    """
    has_learners = any(m.state is not MemberState.WANTED for m in job.gang)
    is_silent = has_exited and job.guardian_up_s is None and not has_learners
    has_held = job.guardian_up_s is not None and now_s - job.guardian_up_s >= SETTLED_S
    starts = 1 if has_held else job.guardian_starts + 1
    job = replace(job, guardian_starts=starts, guardian_up_s=None)
    limit = SILENT_GUARDIAN_STARTS_MAX if is_silent else GUARDIAN_STARTS_MAX
    if job.guardian_starts < limit or job.state.is_final:
        delay = 0.0 if job.guardian_starts == 1 else min(0.1 * 2**job.guardian_starts, 30.0)
        return replace(job, not_before_s=now_s + delay), (EventText("guardian", f"{text}. Starting another one."),)
    failure = Failure(
        cause=Cause.PLATFORM,
        code="cannot_start",
        what=f"The job's guardian process could not be kept running. {text}",
        advice="Check that the job's Python environment still exists, and see guardian.log in its directory; "
        "then retry the job. If this happens again, contact the pool administrator.",
    )
    return broke(job, failure, now_s)


def not_started(job: Job, text: str, now_s: float, *, is_permanent: bool = False) -> Transition:
    """Record that no guardian could be started. `is_permanent`: the job's interpreter is missing or cannot be executed.

    A job that is to run then fails at once. One that leaves its devices may have processes left, so it does not.
    """
    if not is_permanent or job.state.is_final or job.goal is not Goal.RUN:
        return guardian_gone(job, f"It could not be started: {text}", now_s)
    failure = Failure(
        cause=Cause.PLATFORM,
        code="no_program",
        what=f"The job's Python cannot be used: {text}",
        advice="Restore that Python environment, then retry the job: `jupyter dlaas retry JOB`. "
        "To use another one, submit the job from there.",
    )
    job, events = broke(job, replace(failure, advice=failure.advice.replace("JOB", job.id)), now_s)
    return replace(job, guardian_starts=1), events  # so that the engine closes it without trying another guardian


def may_be_over(job: Job, *, is_unguarded: bool = False) -> bool:
    """Return whether to look for remaining processes of a leaving job, after guardians died without closing it.

    A job that is only being halted is given another guardian first, since its learners may live and must checkpoint.
    A job whose seats were refused may never have had one (`is_unguarded`: it has none now), and needs none to leave.
    """
    if is_unguarded and has_no_seats(job):
        return not job.is_closed
    if job.state.is_final or job.goal is Goal.STOP:
        return not job.is_closed and job.guardian_starts >= 1
    return not job.is_closed and job.guardian_starts >= 2 and job.goal is Goal.HALT


def has_no_seats(job: Job) -> bool:
    """Return whether the job leaves because its seats were refused: it needs no guardian, so none failed to start."""
    return job.refusal is not None and job.goal is not Goal.RUN and not job.members


def abandoned(job: Job, now_s: float) -> Transition:
    """Close a job without remaining processes, in place of its guardian."""
    after, events = closed(job, now_s)
    if has_no_seats(job):
        return after, events
    return after, (
        EventText(
            "closed", "The job's guardian is gone and none of its processes is left, so the pool closed the job."
        ),
        *events,
    )


def directory_lost(job: Job, directory: str, now_s: float) -> Transition:
    """Fail a job whose directory was removed while it had work there."""
    failure = Failure(
        cause=Cause.PLATFORM,
        code="directory_lost",
        what=f"The job's directory was removed before the job had finished: {directory}",
        advice="It held the checkpoints and the log. Restore it from a backup, or retry the job from the start.",
    )
    return broke(job, failure, now_s)


def lines_lost(job: Job, lines: int, where: str) -> Transition:
    """Count unreadable lines of the journal, and report them to the owner."""
    total = job.damaged_lines + lines
    text = (
        f"{count(total, 'line')} of the job's journal cannot be read and {'was' if total == 1 else 'were'} skipped "
        f"(last: {where}). Events of the job may be missing; training is not affected."
    )
    notes = tuple(note for note in job.reports if note.code != JOURNAL_NOTE)
    job = replace(job, damaged_lines=total, reports=(*notes, Note(code=JOURNAL_NOTE, text=text)))
    return job, (EventText("journal", text),)
