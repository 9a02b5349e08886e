"""Journal events: journal replay of a job, one fact at a time.

Each function returns the new job and the events for its history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final

from dlaas_server.core.elasticity import size_requests
from dlaas_server.core.lifecycle import time_limit
from dlaas_server.core.lifecycle.retry_policy import delay_s, final_advice, may_retry
from dlaas_server.core.lifecycle.seat_refusal import seats_refused
from dlaas_server.core.lifecycle.transition import Transition, with_goal, with_seats, with_text
from dlaas_server.core.model import interruptions
from dlaas_server.core.model.job import Intent, Job, Member, MemberState, PendingResize, Profile, Slow
from dlaas_server.core.model.phrases import attribution, count, duration
from dlaas_server.core.model.states import Event, can, step
from jupyter_dlaas.wire.journal import (
    CheckpointSaved,
    CommunicationProfiled,
    Fact,
    GenerationLost,
    GenerationStarted,
    Goal,
    GuardianUp,
    IndependenceFound,
    JobClosed,
    JobCompleted,
    JobHalted,
    LearnerAwaited,
    LearnerDown,
    LearnerReady,
    LearnersLost,
    LearnerUp,
    LoopBegun,
    NoteReported,
    ResultsStoring,
    SeatRefused,
    SizeRequested,
    StepsCommitted,
    StragglerFound,
    ThroughputMeasured,
    WantedSeen,
    halts,
)
from jupyter_dlaas.wire.protocol import Cause, Elastic, Failure, Resize

__all__ = ["apply_fact", "broke", "closed", "scheduled"]


# -- facts ------------------------------------------------------------------------------------------------------------


def apply_fact(job: Job, fact: Fact) -> Transition:
    """Apply one fact of the journal. Facts come in order; one that was read before changes nothing."""
    if fact.n < job.facts_read:
        return job, ()
    job = replace(job, facts_read=fact.n + 1)
    if job.is_closed:
        return job, ()  # facts after the guardian's last one are ignored
    handler = _HANDLERS.get(type(fact))
    return handler(job, fact) if handler else (job, ())


def _awaited(job: Job, fact: LearnerAwaited) -> Transition:
    if fact.member is None:
        return replace(job, awaited=None), ()
    place = f", at {fact.why}" if fact.why else ""
    text = f"The other learners wait for learner {fact.member}, which is busy{place}."
    return with_text(replace(job, awaited=text), "awaited", text)


def _slow(job: Job, fact: StragglerFound) -> Transition:
    if fact.member is None:
        return replace(job, slow=None), ()
    slow = Slow(fact.member, fact.rate or 0.0)
    text = f"Learner {slow.member} runs at {slow.speed:.0%} of the others' speed; they wait for it in every step."
    return with_text(replace(job, slow=slow), "slow", text)


def _profile(job: Job, fact: CommunicationProfiled) -> Transition:
    """Record the communication cost of the gang at its present placement."""
    is_apart = len({member.seat.node for member in job.gang}) > 1 and fact.generation == job.generation
    communication = fact.communication if is_apart else job.profile.communication
    skew = job.profile.skew if fact.skew is None else fact.skew
    return replace(job, profile=Profile(communication=communication, skew=skew)), ()


def _alone(job: Job, fact: IndependenceFound) -> Transition:
    """Record that more learners are of no use to the program; the job then requests its minimum size, once.

    If the fact holds a number of learners, the job cannot continue at another size: its size becomes fixed.
    """
    if job.alone is not None or fact.why is None:
        return job, ()
    job = replace(job, alone=fact.why)
    if fact.learners is not None:
        return with_text(replace(job, elastic=Elastic.OFF, wish=fact.learners, wish_by="program"), "alone", fact.why)
    job, why = size_requests.kept_least(job)
    return with_text(job, "alone", f"{fact.why}{why}")


def _report(job: Job, fact: NoteReported) -> Transition:
    """Add a finding of the training that the owner must know."""
    if fact.note is None:
        return job, ()
    return with_text(replace(job, reports=(*job.reports, fact.note)), "report", fact.note.text)


def _guardian_up(job: Job, fact: GuardianUp) -> Transition:
    job = replace(job, awaited=None, slow=None, guardian_up_s=fact.at_s)  # a new guardian reports these again
    if fact.took_over:
        return with_text(job, "guardian", "A new guardian process took over; the learners kept running.")
    return job, ()


def _seen(job: Job, fact: WantedSeen) -> Transition:
    return replace(job, seen_revision=max(job.seen_revision, fact.revision)), ()


def _member_state(job: Job, fact: LearnerUp | LearnerReady, state: MemberState) -> Job:
    return replace(job, members=tuple(replace(m, state=state) if m.member == fact.member else m for m in job.members))


def _learner_up(job: Job, fact: LearnerUp) -> Transition:
    job = _member_state(job, fact, MemberState.UP)
    if fact.node is None and fact.pod is None:
        return job, ()
    host, pod = fact.node or "", fact.pod or ""
    members = tuple(replace(m, host=host, pod=pod) if m.member == fact.member else m for m in job.members)
    return replace(job, members=members), ()


def _learner_ready(job: Job, fact: LearnerReady) -> Transition:
    return _member_state(job, fact, MemberState.READY), ()


def _learner_down(job: Job, fact: LearnerDown) -> Transition:
    """Free the member's seat; after an unexpected end, keep it until the fate of the whole generation is known."""
    expected = job.goal is not Goal.RUN or job.state.is_final
    members = []
    for m in job.members:
        if m.member != fact.member:
            members.append(m)
        elif m.generation == job.generation and not expected:
            members.append(replace(m, state=MemberState.DOWN))
    job = replace(job, members=tuple(members))
    if expected and not job.members:
        job = interruptions.left(job, fact.at_s)
    if fact.failure is not None:
        return with_text(job, "learner_lost", f"Learner {fact.member}: {fact.failure.what}")
    if expected and fact.signal == _KILLED:
        return with_text(job, "killed", f"Learner {fact.member} did not end when asked to, and was killed.")
    return job, ()


def _generation(job: Job, fact: GenerationStarted) -> Transition:
    generation, first_step = fact.generation or 0, fact.step or 0
    if generation < job.live_generation or job.state.is_final:
        return job, ()
    job, missed = _with_reported_members(time_limit.begun(job, fact.at_s), fact)
    is_restart = fact.members is None and not fact.plain and job.checkpoint_step is not None
    if is_restart and first_step < (job.checkpoint_step or 0):
        job = replace(job, checkpoint_step=first_step)  # the later checkpoints could not be used
    job = replace(
        job,
        is_live=bool(fact.live),
        is_plain=bool(fact.plain),
        live_generation=generation,
        started_s=fact.at_s if job.started_s is None else job.started_s,
        step=first_step if fact.members is None else max(job.step, first_step),
        guardian_starts=0,
    )
    if can(job.state, Event.TRAINING):
        job = replace(job, state=step(job.state, Event.TRAINING))
    leaves = job.goal is Goal.HALT
    change = interruptions.change_before(job, fact.at_s) if leaves else job.resize
    job = interruptions.with_size(job) if leaves else interruptions.over(job, fact.at_s)
    begins = "" if fact.step is None and fact.members is not None else f" from step {first_step:,}"
    text = f"Training with {count(len(job.gang), 'learner')}{begins}."
    if change is not None and generation == job.generation:
        job, text = _changed(job, change, fact, missed)
    return with_text(job, "training", text)


def _begun(job: Job, fact: LoopBegun) -> Transition:
    return (replace(job, is_plain=False) if fact.generation == job.live_generation else job), ()


def _changed(job: Job, change: PendingResize, fact: GenerationStarted, missed: int) -> tuple[Job, str]:
    """Finish the pending change of size; give it up if none of the joining learners came."""
    at_step, job = fact.step or 0, replace(job, resize=None)
    missing = f"{count(missed, 'joining learner')} did not start" if missed else ""
    if {m.member for m in job.gang} == set(change.members):
        return job, f"{f'{missing}; the' if missed else 'The'} job continues at its previous size."
    done = Resize(
        at_s=fact.at_s, step=at_step, before=change.before, after=len(job.gang), by=change.by, idle_s=fact.idle_s
    )
    search = size_requests.changed(job.search, fact.idle_s)
    job = interruptions.replaced(replace(job, resizes=(*job.resizes, done)[-200:], search=search), done)
    pause = f" after a pause of {duration(fact.idle_s)}" if fact.idle_s is not None else ""
    changed = "Moved" if done.before == done.after else f"Scaled {done.before} → {done.after}"
    return job, f"{missing}{'. ' if missing else ''}{changed}, {attribution(done.by)}, at step {at_step:,}{pause}."


def _with_reported_members(job: Job, fact: GenerationStarted) -> tuple[Job, int]:
    """Return the job with the members that the guardian reports, and the number of joining members that are missing.

    Missing members are tried again after a growing delay, while the others train on.
    """
    if fact.members is None or fact.generation != job.generation:
        return replace(job, joins_failed=0), 0
    ranks = {member: rank for rank, member in enumerate(fact.members)}
    gone = [m for m in job.gang if m.member not in ranks]
    members = tuple(  # members that were to leave stay, one for each that did not come
        replace(m, rank=ranks[m.member], generation=job.generation) if m.member in ranks else m
        for m in _dismissed(job, ranks)
    )
    known = () if job.resize is None else job.resize.members
    missed = sum(m.member not in known for m in gone)
    failed = job.joins_failed + 1 if missed else 0
    not_before_s = fact.at_s + min(2.0**failed, 60.0) if missed else job.not_before_s
    return replace(job, members=members, joins_failed=failed, not_before_s=not_before_s), missed


def _dismissed(job: Job, stay: Collection[int]) -> tuple[Member, ...]:
    """Return the members after those of the gang that are not in `stay` left it.

    A member whose process may still live keeps its seat, as one of an earlier generation, until it is down: its device
    is in use.
    """
    out = []
    for m in job.members:
        if m.generation != job.generation or m.member in stay:
            out.append(m)
        elif m.state in (MemberState.UP, MemberState.READY):
            out.append(replace(m, generation=job.generation - 1))
    return tuple(out)


def _regrouped(job: Job, fact: LearnersLost) -> Transition:
    """Record that learners were lost and the others continued without them."""
    if fact.generation != job.generation or fact.members is None or job.state.is_final:
        return job, ()
    before, at_step = len(job.gang), fact.step or 0
    ranks = {member: rank for rank, member in enumerate(fact.members)}
    members = tuple(replace(m, rank=ranks[m.member]) if m.member in ranks else m for m in _dismissed(job, ranks))
    done = Resize(at_s=fact.at_s, step=at_step, before=before, after=len(ranks), by="lost", idle_s=fact.idle_s)
    job = replace(
        job, members=members, step=max(job.step, at_step), resizes=(*job.resizes, done)[-200:], failure=fact.failure
    )
    pause = f" after a pause of {duration(fact.idle_s)}" if fact.idle_s is not None else ""
    why = fact.failure.what.rstrip(".") if fact.failure is not None else "learners were lost"
    continued = f"{count(len(ranks), 'learner')} {'continues' if len(ranks) == 1 else 'continue'}"
    text = f"{why}. {continued} from step {at_step:,}{pause}."
    job = interruptions.passed(job, before, f"A learner was lost: {text}", fact.at_s, fact.idle_s)
    return with_text(job, "regrouped", text)


def _checkpoint(job: Job, fact: CheckpointSaved) -> Transition:
    saved_step = fact.step or 0
    if job.checkpoint_step is None or saved_step > job.checkpoint_step:
        job = replace(job, checkpoint_step=saved_step, restarts=0)
    if not job.awaits_checkpoint or (fact.asked or 0) < job.checkpoints_asked:
        return job, ()
    return with_text(
        replace(job, awaits_checkpoint=False), "checkpoint", f"Requested checkpoint written at step {saved_step:,}."
    )


def _committed(job: Job, fact: StepsCommitted) -> Transition:
    return replace(job, step=max(job.step, fact.step or 0)), ()


def _pace(job: Job, fact: ThroughputMeasured) -> Transition:
    return _with_size_request(size_requests.by_pace(job, fact))


def _asked(job: Job, fact: SizeRequested) -> Transition:
    return _with_size_request(size_requests.asked(job, fact))


def scheduled(job: Job, epoch: int) -> Transition:
    """Apply the job's size schedule after `epoch` epochs."""
    return _with_size_request(size_requests.scheduled(job, epoch))


def _with_size_request(outcome: tuple[Job, str]) -> Transition:
    job, why = outcome
    return with_text(job, "wish", why) if why else (job, ())


def _lost(job: Job, fact: GenerationLost) -> Transition:
    """Handle a broken generation: ignore it if a newer one exists, else restart on the same seats, or fail the job."""
    generation = fact.generation or 0
    if generation < job.generation or job.state.is_final or job.goal is not Goal.RUN:
        return job, ()
    failure = fact.failure or Failure(
        cause=Cause.UNKNOWN, code="lost", what="the learners ended without reporting a result", advice="See the log."
    )
    is_last = not halts(failure) and not may_retry(job, failure)
    advice = final_advice(job, failure) if is_last else failure.advice
    failure = replace(failure, advice=advice.replace("JOB", job.id))
    if halts(failure):
        return _stopped(job, failure)
    if is_last:
        return broke(job, failure, fact.at_s)  # its seats are free once it is closed: no process is left then
    seats = tuple(m.seat for m in job.gang)
    delay = delay_s(job)
    job = interruptions.began(
        job, interruptions.LOST, f"A learner was lost: {failure.what.rstrip('.')}.", fact.at_s, keeps_devices=True
    )
    job = replace(
        job,
        state=step(job.state, Event.LOST),
        members=(),
        is_live=False,
        resize=None,
        failure=failure,
        restarts=job.restarts + 1,
        restarts_total=job.restarts_total + 1,
        not_before_s=fact.at_s + delay,
        guardian_starts=0,
    )
    origin = "from the start" if job.checkpoint_step is None else f"from step {job.checkpoint_step:,}"
    return with_text(with_seats(job, seats), "restart", f"{failure.what}. Restarted {origin} ({failure.cause}).")


def _stopped(job: Job, failure: Failure) -> Transition:
    """Halt the job: this version cannot read its checkpoints, so its owner decides how to continue."""
    job = with_goal(replace(job, intent=Intent.HALT, halted_by="the pool", failure=failure, is_live=False), Goal.HALT)
    return with_text(job, "halt", f"Halted: {failure.what}. {failure.advice}")


def broke(job: Job, failure: Failure, now_s: float) -> Transition:
    """Fail the job and stop what is left of it."""
    job = replace(
        job,
        state=step(job.state, Event.BROKE),
        failure=failure,
        ended_s=now_s,
        goal=Goal.STOP,
        revision=job.revision + 1,
        resize=None,
        guardian_starts=0,
    )
    return with_text(job, "failed", f"Failed ({failure.cause}): {failure.what}")


def _seat_refused(job: Job, fact: SeatRefused) -> Transition:
    return seats_refused(job, (fact,), fact.at_s)


def _storing(job: Job, fact: ResultsStoring) -> Transition:
    if not can(job.state, Event.STORING):
        return job, ()
    return with_text(replace(job, state=step(job.state, Event.STORING)), "storing", "Writing results.")


def _halted(job: Job, fact: JobHalted) -> Transition:
    if job.needs_decision:
        return with_text(job, "left", "Halted; its checkpoints were not changed.")
    last_step = fact.step or 0
    job = replace(job, step=last_step)
    if not fact.has_checkpoint:
        return with_text(job, "left", "Halted without a checkpoint: it starts over when resumed.")
    text = f"Checkpoint written at step {last_step:,}; learners stopped."
    return with_text(replace(job, checkpoint_step=last_step), "left", text)


def _completed(job: Job, fact: JobCompleted) -> Transition:
    if job.state.is_final:
        return job, ()
    job = replace(
        interruptions.withdrawn(job),
        state=step(job.state, Event.FINISHED),
        members=(),
        resize=None,
        results=fact.results or (),
        step=max(job.step, fact.step or 0),
        ended_s=fact.at_s,
        failure=None,
    )
    return with_text(job, "completed", "Completed.")


def _closed(job: Job, fact: JobClosed) -> Transition:
    return closed(job, fact.at_s)


def closed(job: Job, at_s: float) -> Transition:
    """Close the job: no process is left. The owner's intent determines the next state."""
    job = replace(time_limit.paused(job, at_s), is_closed=True, members=(), resize=None)
    if job.state.is_final:
        return job, ()
    job = replace(job, ran_s=0.0 if job.checkpoint_step is None else executed_s(job, at_s))
    if job.intent is Intent.CANCEL:
        return with_text(replace(job, state=step(job.state, Event.STOPPED), ended_s=at_s), "cancelled", "Cancelled.")
    if job.intent is Intent.HALT:
        text = f"Halted at step {job.step:,}." if job.checkpoint_step is not None else "Halted."
        return with_text(replace(job, state=step(job.state, Event.LEFT)), "halted", text)
    lost = "" if job.preempted is None else f" {interruptions.work_lost(job)}"
    if job.refusal is None:
        job = replace(job, queued_s=at_s, in_queue_s=at_s)
    else:
        job = replace(job, in_queue_s=job.seated_s)  # it never ran there: its wait continues, at its old place
    return with_text(replace(job, state=step(job.state, Event.EVICTED)), "requeued", f"Back in the queue.{lost}")


def executed_s(job: Job, now_s: float) -> float:
    """Return the run time of a job that holds devices, without time in the queue or halted."""
    if job.started_s is None:
        return job.ran_s
    return job.ran_s + max(now_s - max(job.started_s, job.seated_s or 0.0), 0.0)


_KILLED: Final = 9
"""The number of SIGKILL, which a learner receives at the end of its grace period."""
_HANDLERS: Final[dict[type[Fact], Callable[[Job, Any], Transition]]] = {
    GuardianUp: _guardian_up,
    WantedSeen: _seen,
    LearnerUp: _learner_up,
    LearnerReady: _learner_ready,
    LearnerDown: _learner_down,
    GenerationStarted: _generation,
    LoopBegun: _begun,
    LearnersLost: _regrouped,
    CheckpointSaved: _checkpoint,
    StepsCommitted: _committed,
    ThroughputMeasured: _pace,
    SizeRequested: _asked,
    IndependenceFound: _alone,
    NoteReported: _report,
    GenerationLost: _lost,
    SeatRefused: _seat_refused,
    ResultsStoring: _storing,
    LearnerAwaited: _awaited,
    CommunicationProfiled: _profile,
    StragglerFound: _slow,
    JobHalted: _halted,
    JobCompleted: _completed,
    JobClosed: _closed,
}
