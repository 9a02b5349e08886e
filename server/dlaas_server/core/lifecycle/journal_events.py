"""How a job changes: by what is asked, by what was decided, by what happened. Each returns the new job and its story.

One writer: only these functions make a new `Job` out of an old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.elasticity import size_requests
from dlaas_server.core.forecast.track_record import Forecast, outcome, soon
from dlaas_server.core.lifecycle import interruptions, time_limit
from dlaas_server.core.lifecycle.retry_policy import delay_s, may_retry
from dlaas_server.core.model.job import Intent, Job, Member, MemberState, PendingResize, Profile, Said, Seat, Slow
from dlaas_server.core.model.phrases import actor, agent, clause, count, duration
from dlaas_server.core.model.states import Event, can, step
from jupyter_dlaas.wire.journal import Fact, FactKind, Goal, MemberWanted, Wanted, halts
from jupyter_dlaas.wire.protocol import Cause, Elastic, Failure, NotAllowed, Refused, Resize, State

__all__ = [
    "Story",
    "Told",
    "ask",
    "broke",
    "closed",
    "fold",
    "preempted",
    "resized",
    "scheduled",
    "started",
    "waits",
    "wanted",
]

GRACE_S: Final = 30.0
"""How long a checkpoint may take when a job leaves, but for spot jobs."""


@dataclass(frozen=True, slots=True)
class Story:
    """One line of a job's story: what happened, for people."""

    kind: str
    text: str


Told = tuple[Job, tuple[Story, ...]]


def _tell(job: Job, kind: str, text: str) -> Told:
    return job, (Story(kind, text),)


# -- what is asked ---------------------------------------------------------------------------------------------------


def ask(job: Job, event: Event, *, by: str, now_s: float, learners: int | None = None) -> Told:
    """A request of a person. Absolute: asking for what already holds changes nothing. Raises NotAllowed, Refused."""
    if event is Event.SCALE:
        assert learners is not None, "scale needs a number"
        return _scale(job, learners, by)
    acts = {Event.HALT: _halt, Event.RESUME: _resume, Event.CANCEL: _cancel, Event.CHECKPOINT: _keep}
    return acts[event](job, by, now_s)


def _scale(job: Job, learners: int, by: str) -> Told:
    step(job.state, Event.SCALE)
    low, high = job.spec.learners_min, job.spec.learners_max
    if not low <= learners <= high:
        bounds = f"exactly {count(low, 'learner')}" if low == high else f"{low} to {high} learners"
        raise Refused(f"Stayed at {job.wish}. {job.id} takes {bounds}.")
    if learners == job.wish and job.elastic is not Elastic.AUTO:
        return job, ()
    if job.elastic is Elastic.OFF and job.state is not State.QUEUED:
        why = job.alone or f"{job.id} was submitted with --elastic off: its size never changes."
        raise NotAllowed(f"Stayed at {job.wish}. {why}")
    manual = " From now on its size is yours to choose (--elastic manual)." if job.elastic is Elastic.AUTO else ""
    elastic = Elastic.MANUAL if manual else job.elastic
    job = replace(job, wish=learners, wish_by="you", elastic=elastic)
    return _tell(job, "wish", f"{actor(job, by)} wished for {count(learners, 'learner')}.{manual}")


def _halt(job: Job, by: str, now_s: float) -> Told:
    if job.intent is Intent.HALT or job.state is State.HALTED:
        return job, ()
    if job.intent is Intent.CANCEL:
        raise NotAllowed(f"{job.id} is being cancelled and cannot be halted")
    after = step(job.state, Event.HALT)
    job = replace(job, intent=Intent.HALT, state=after, halted_by=by)
    if job.is_closed:
        return _tell(replace(job, ended_s=None), "halt", f"Halted by {agent(job, by)} while it waited.")
    what = "no checkpoint can be written, so it starts over when resumed" if job.starts_over else "checkpoint"
    job = interruptions.began(_goal(job, Goal.HALT), interruptions.HALTED, f"Halted by {agent(job, by)}.", now_s)
    return _tell(job, "halt", f"{actor(job, by)} asked for a halt: {what}, then the devices are given back.")


def _resume(job: Job, by: str, now_s: float) -> Told:
    if job.intent is Intent.RUN and not job.state.is_final:
        return job, ()
    if job.intent is Intent.CANCEL:
        raise NotAllowed(f"{job.id} is being cancelled and cannot be resumed; retry it when it has ended")
    after = step(job.state, Event.RESUME)
    job = replace(job, intent=Intent.RUN, state=after, halted_by=None, restarts=0, not_before_s=0.0, failure=None)
    job = time_limit.renewed(replace(job, is_told=False, said=None, in_queue_s=now_s))
    return _tell(job, "resume", f"{actor(job, by)} resumed it: back to the queue.")


def _cancel(job: Job, by: str, now_s: float) -> Told:
    if job.intent is Intent.CANCEL or job.state is State.CANCELLED:
        return job, ()
    after = step(job.state, Event.CANCEL)
    job = replace(job, intent=Intent.CANCEL, state=after, cancelled_by=by)
    if job.is_closed:
        return _tell(replace(job, ended_s=now_s), "cancel", f"Cancelled by {agent(job, by)}.")
    return _tell(_goal(job, Goal.STOP), "cancel", f"{actor(job, by)} cancelled it.")


def _keep(job: Job, by: str, now_s: float) -> Told:
    step(job.state, Event.CHECKPOINT)
    if job.intent is not Intent.RUN or job.goal is not Goal.RUN:
        raise NotAllowed(f"{job.id} is leaving its devices: no checkpoint is taken on request any more")
    job = replace(job, checkpoints_asked=job.checkpoints_asked + 1, awaits_checkpoint=True, revision=job.revision + 1)
    return _tell(job, "checkpoint", f"{actor(job, by)} asked for a checkpoint: it is taken at the next step.")


def _goal(job: Job, goal: Goal, notice_s: float = GRACE_S) -> Job:
    job = replace(job, goal=goal, notice_s=notice_s, revision=job.revision + 1, resize=None, guardian_starts=0)
    return replace(job, awaits_checkpoint=False)  # what is written as it leaves is told as that


# -- what was decided ------------------------------------------------------------------------------------------------


def started(job: Job, seats: Sequence[Seat], now_s: float) -> Told:
    """The plan gave the waiting job these seats."""
    after = step(job.state, Event.PLACED)
    job = replace(
        job, state=after, goal=Goal.RUN, is_closed=False, is_live=False, members=(), resize=None, guardian_starts=0
    )
    since_s = job.submitted_s if job.in_queue_s is None else job.in_queue_s
    job = replace(job, seated_s=now_s, waited_s=job.waited_s + max(0.0, now_s - since_s))
    job = interruptions.held_again(job, now_s)
    told = "" if job.said is None else f" {outcome(Forecast(job=job.id, said=job.said, started_s=now_s))}"
    job = replace(job, preempted=None, is_told=False, said=None)
    return _tell(_seat(job, seats), "placed", f"Got {count(len(seats), 'learner')} on {_where(seats)}.{told}")


def waits(job: Job, reason: str, expected: tuple[float, float] | None, now_s: float) -> Told:
    """The job waits, for this reason, and is expected to start between these times: the first word on it is kept."""
    told: list[Story] = []
    if not job.is_told:
        job = replace(job, is_told=True)
        told.append(Story("waits", f"Waits: {clause(reason)}."))
    if job.said is None and expected is not None:
        job = replace(job, said=Said(at_s=now_s, low_s=expected[0], high_s=expected[1]))
        told.append(Story("expected", f"Expected to start {soon(expected, now_s)}."))
    return job, tuple(told)


def preempted(job: Job, reason: str, now_s: float, notice_s: float | None = None) -> Told:
    """The plan needs the running job's seats: checkpoint, then back to the queue with its place.

    `notice_s`: of a spot job, how long it has for the checkpoint.
    """
    assert job.goal is Goal.RUN, f"{job.id} leaves already"
    within = "" if notice_s is None else f" within {duration(notice_s)}"
    job = _goal(replace(job, preempted=reason), Goal.HALT, GRACE_S if notice_s is None else notice_s)
    job = interruptions.began(job, interruptions.PREEMPTED, f"Preempted: {clause(reason)}.", now_s)
    return _tell(job, "preempted", f"Makes room: {reason}. Checkpoint{within}, then back to the queue with its place.")


def resized(
    job: Job, seats: Sequence[Seat], by: str, now_s: float, why: str = "", notice_s: float | None = None
) -> Told:
    """The plan gave the running job other seats: a new generation takes over, from a checkpoint or while it trains.

    `why`: a sentence for the owner, where nobody asked the job for it. `notice_s`: see `preempted`.
    """
    before = len(job.gang)
    job = replace(job, notice_s=GRACE_S if notice_s is None else notice_s)
    change = PendingResize(
        before=before, after=len(seats), by=by, since_s=now_s, why=why, members=tuple(m.member for m in job.gang)
    )
    is_move = by == "pool" and len(seats) == before
    job = replace(job, resize=change, moved_s=now_s if is_move else job.moved_s, guardian_starts=0)
    changes = f"Scaling {before} → {len(seats)}" if len(seats) != before else "Moving"
    text = f"{changes}, by {by}."
    return _tell(_seat(job, seats), "scaling", f"{why} {text}" if why else text)


def _seat(job: Job, seats: Sequence[Seat]) -> Job:
    """A new generation on these seats. Members of earlier generations hold theirs until they are down.

    In a gang that can change while it trains whoever keeps the seat goes on, and comes first.
    """
    generation = job.generation + 1
    left = list(seats)
    stay: list[Member] = []
    for m in job.gang if job.is_live else ():
        if m.seat in left and m.state is not MemberState.DOWN:
            left.remove(m.seat)
            stay.append(replace(m, generation=generation, rank=len(stay)))
    fresh = tuple(
        Member(member=job.next_member + number, generation=generation, rank=len(stay) + number, seat=seat)
        for number, seat in enumerate(left)
    )
    known = {m.member for m in stay}
    kept = tuple(m for m in job.members if m.state is not MemberState.DOWN and m.member not in known) + tuple(stay)
    return replace(
        job,
        generation=generation,
        next_member=job.next_member + len(fresh),
        members=kept + fresh,
        revision=job.revision + 1,
    )


def _where(seats: Sequence[Seat]) -> str:
    nodes: dict[str, int] = {}
    for seat in seats:
        nodes[seat.node] = nodes.get(seat.node, 0) + 1
    return ", ".join(f"{name} ({n})" if len(nodes) > 1 else name for name, n in sorted(nodes.items()))


def wanted(job: Job) -> Wanted | None:
    """The document for the job's guardian, or None where no guardian is needed."""
    if job.is_closed:
        return None
    goal = Goal.STOP if job.state.is_final else job.goal
    gang = job.gang if goal is Goal.RUN else ()
    return Wanted(
        revision=job.revision,
        goal=goal,
        generation=job.generation,
        grace_s=job.notice_s,
        checkpoints=job.checkpoints_asked,
        facts_read=job.facts_read,
        members=tuple(MemberWanted(member=m.member, node=m.seat.node, devices=m.seat.devices) for m in gang),
    )


# -- what happened ---------------------------------------------------------------------------------------------------


def fold(job: Job, fact: Fact) -> Told:
    """Fold one line of the journal in. Facts come in order; one that was seen before changes nothing."""
    if fact.n < job.facts_read:
        return job, ()
    job = replace(job, facts_read=fact.n + 1)
    if job.is_closed:
        return job, ()  # the guardian has had its last word; what comes later is of nobody
    handler = _HANDLERS.get(fact.kind)
    return handler(job, fact) if handler else (job, ())


def _awaited(job: Job, fact: Fact) -> Told:
    if fact.member is None:
        return replace(job, awaited=None), ()
    at = f", at {fact.why}" if fact.why else ""
    text = f"The others wait for learner {fact.member}, which is busy{at}."
    return _tell(replace(job, awaited=text), "awaited", text)


def _slow(job: Job, fact: Fact) -> Told:
    if fact.member is None:
        return replace(job, slow=None), ()
    slow = Slow(fact.member, fact.rate or 0.0)
    text = f"Learner {slow.member} runs at {slow.speed:.0%} of the others' speed; they wait for it in each step."
    return _tell(replace(job, slow=slow), "slow", text)


def _profile(job: Job, fact: Fact) -> Told:
    """What its learners' talking costs where they sit now."""
    is_apart = len({member.seat.node for member in job.gang}) > 1 and fact.generation == job.generation
    communication = fact.communication if is_apart else job.profile.communication
    skew = job.profile.skew if fact.skew is None else fact.skew
    return replace(job, profile=Profile(communication=communication, skew=skew)), ()


def _alone(job: Job, fact: Fact) -> Told:
    """Its learners would share nothing: it is told once, and asks for the least size. A person may wish otherwise.

    With a number: it cannot go on at another size, whoever wishes for it.
    """
    if job.alone is not None or fact.why is None:
        return job, ()
    job = replace(job, alone=fact.why)
    if fact.learners is not None:
        return _tell(replace(job, elastic=Elastic.OFF, wish=fact.learners, wish_by="program"), "alone", fact.why)
    job, why = size_requests.kept_least(job)
    return _tell(job, "alone", f"{fact.why}{why}")


def _report(job: Job, fact: Fact) -> Told:
    """Its training found what its owner must know."""
    if fact.note is None:
        return job, ()
    return _tell(replace(job, reports=(*job.reports, fact.note)), "report", fact.note.text)


def _guardian_up(job: Job, fact: Fact) -> Told:
    job = replace(job, awaited=None, slow=None, guardian_up_s=fact.at_s)  # a guardian tells the rest again
    if fact.took_over:
        return _tell(job, "guardian", "A new guardian took over; the learners went on.")
    return job, ()


def _seen(job: Job, fact: Fact) -> Told:
    return replace(job, seen_revision=max(job.seen_revision, fact.revision or 0)), ()


def _member_state(job: Job, fact: Fact, state: MemberState) -> Job:
    return replace(job, members=tuple(replace(m, state=state) if m.member == fact.member else m for m in job.members))


def _learner_up(job: Job, fact: Fact) -> Told:
    return _member_state(job, fact, MemberState.UP), ()


def _learner_ready(job: Job, fact: Fact) -> Told:
    return _member_state(job, fact, MemberState.READY), ()


def _learner_down(job: Job, fact: Fact) -> Told:
    """Its seat is free, unless it was unexpected: then the seat is kept until the whole generation's fate is known."""
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
        return _tell(job, "learner_lost", f"Learner {fact.member}: {fact.failure.what}")
    return job, ()


def _generation(job: Job, fact: Fact) -> Told:
    generation, at = fact.generation or 0, fact.step or 0
    if generation < job.live_generation or job.state.is_final:
        return job, ()
    job, missed = _together(time_limit.begun(job, fact.at_s), fact)
    job = replace(
        job,
        is_live=bool(fact.live),
        is_plain=bool(fact.plain),
        live_generation=generation,
        started_s=fact.at_s if job.started_s is None else job.started_s,
        step=at if fact.members is None else max(job.step, at),
        guardian_starts=0,
    )
    if can(job.state, Event.TRAINING):
        job = replace(job, state=step(job.state, Event.TRAINING))
    job = interruptions.over(job, fact.at_s)
    said = f"{count(len(job.gang), 'learner')} {'trains' if len(job.gang) == 1 else 'train'} from step {at:,}."
    if job.resize is not None and generation == job.generation:
        job, said = _changed(job, job.resize, fact, missed)
    return _tell(job, "training", said)


def _begun(job: Job, fact: Fact) -> Told:
    return (replace(job, is_plain=False) if fact.generation == job.live_generation else job), ()


def _changed(job: Job, change: PendingResize, fact: Fact, missed: int) -> tuple[Job, str]:
    """The change that was under way is over; or given up, where nobody came of those who were to join."""
    at, job = fact.step or 0, replace(job, resize=None)
    were = "was" if missed == 1 else "were"
    said = f"{count(missed, 'learner')} that {were} to join did not come" if missed else ""
    if missed and {m.member for m in job.gang} == set(change.members):
        return job, f"{said}: it goes on as it was."
    done = Resize(at_s=fact.at_s, step=at, before=change.before, after=len(job.gang), by=change.by, idle_s=fact.idle_s)
    search = size_requests.changed(job.search, fact.idle_s)
    job = interruptions.replaced(replace(job, resizes=(*job.resizes, done)[-200:], search=search), done)
    pause = f" after a pause of {duration(fact.idle_s)}" if fact.idle_s is not None else ""
    changed = "Moved" if done.before == done.after else f"{done.before} → {done.after}"
    return job, f"{said}{'; ' if said else ''}{changed}, by {done.by}, at step {at:,}{pause}."


def _together(job: Job, fact: Fact) -> tuple[Job, int]:
    """The members as the guardian has them, and how many of those who were to join are missing.

    Who was to join and did not is tried again, after a growing delay: the others train on meanwhile.
    """
    if fact.members is None or fact.generation != job.generation:
        return replace(job, joins_failed=0), 0
    ranks = {member: rank for rank, member in enumerate(fact.members)}
    gone = [m for m in job.gang if m.member not in ranks]
    members = tuple(  # who was to leave stays for each that did not come
        replace(m, rank=ranks[m.member], generation=job.generation) if m.member in ranks else m
        for m in job.members
        if m not in gone
    )
    known = () if job.resize is None else job.resize.members
    missed = sum(m.member not in known for m in gone)
    failed = job.joins_failed + 1 if missed else 0
    not_before_s = fact.at_s + min(2.0**failed, 60.0) if missed else job.not_before_s
    return replace(job, members=members, joins_failed=failed, not_before_s=not_before_s), missed


def _regrouped(job: Job, fact: Fact) -> Told:
    """Learners were lost, and the others went on without them."""
    if fact.generation != job.generation or fact.members is None or job.state.is_final:
        return job, ()
    before, at = len(job.gang), fact.step or 0
    ranks = {member: rank for rank, member in enumerate(fact.members)}
    gang = {m.member for m in job.gang}
    members = tuple(
        replace(m, rank=ranks[m.member]) if m.member in ranks else m
        for m in job.members
        if m.member in ranks or m.member not in gang
    )
    done = Resize(at_s=fact.at_s, step=at, before=before, after=len(ranks), by="lost", idle_s=fact.idle_s)
    job = replace(
        job, members=members, step=max(job.step, at), resizes=(*job.resizes, done)[-200:], failure=fact.failure
    )
    pause = f", after {duration(fact.idle_s)}" if fact.idle_s is not None else ""
    why = fact.failure.what if fact.failure is not None else "learners were lost"
    goes = "goes" if len(ranks) == 1 else "go"
    text = f"{why}. {count(len(ranks), 'learner')} {goes} on at step {at:,}{pause}."
    job = interruptions.passed(job, before, f"A learner was lost: {text}", fact.at_s, fact.idle_s)
    return _tell(job, "regrouped", text)


def _checkpoint(job: Job, fact: Fact) -> Told:
    at = fact.step or 0
    if job.checkpoint_step is None or at > job.checkpoint_step:
        job = replace(job, checkpoint_step=at, restarts=0)
    if not job.awaits_checkpoint or (fact.asked or 0) < job.checkpoints_asked:
        return job, ()
    return _tell(replace(job, awaits_checkpoint=False), "checkpoint", f"Checkpoint at step {at:,}, as asked.")


def _committed(job: Job, fact: Fact) -> Told:
    return replace(job, step=max(job.step, fact.step or 0)), ()


def _pace(job: Job, fact: Fact) -> Told:
    return _wished(size_requests.by_pace(job, fact))


def _asked(job: Job, fact: Fact) -> Told:
    return _wished(size_requests.asked(job, fact))


def scheduled(job: Job, epoch: int) -> Told:
    """So many epochs are behind the job: its schedule may wish for another size."""
    return _wished(size_requests.scheduled(job, epoch))


def _wished(found: tuple[Job, str]) -> Told:
    job, why = found
    return _tell(job, "wish", why) if why else (job, ())


def _lost(job: Job, fact: Fact) -> Told:
    """A generation broke. A newer one is wanted already, or it is tried again on its seats, or the job failed."""
    generation = fact.generation or 0
    if generation < job.generation or job.state.is_final or job.goal is not Goal.RUN:
        return job, ()
    failure = fact.failure or Failure(
        cause=Cause.UNKNOWN, code="lost", what="the learners ended and left no word", advice="Look at the log."
    )
    failure = replace(failure, advice=failure.advice.replace("JOB", job.id))
    if halts(failure):
        return _stopped(replace(job, members=()), failure)
    if not may_retry(job, failure):
        return broke(replace(job, members=()), failure, fact.at_s)
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
    return _tell(_seat(job, seats), "restart", f"{failure.what}. Restarted {origin} ({failure.cause}).")


def _stopped(job: Job, failure: Failure) -> Told:
    """Halt the job: its checkpoints cannot be read by this version, and its owner decides how it goes on."""
    job = _goal(replace(job, intent=Intent.HALT, halted_by="the pool", failure=failure, is_live=False), Goal.HALT)
    return _tell(job, "halt", f"Halted: {failure.what}. {failure.advice}")


def broke(job: Job, failure: Failure, now_s: float) -> Told:
    """Fail the job: what is left of it is to end."""
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
    return _tell(job, "failed", f"Failed ({failure.cause}): {failure.what}")


def _storing(job: Job, fact: Fact) -> Told:
    if not can(job.state, Event.STORING):
        return job, ()
    return _tell(replace(job, state=step(job.state, Event.STORING)), "storing", "Writing results.")


def _halted(job: Job, fact: Fact) -> Told:
    if job.needs_decision:
        return _tell(job, "left", "Halted; its checkpoints were left as they are.")
    at = fact.step or 0
    job = replace(job, step=at)
    if not fact.has_checkpoint:
        return _tell(job, "left", "Halted without a checkpoint: it starts over when resumed.")
    return _tell(replace(job, checkpoint_step=at), "left", f"Checkpoint written at step {at:,}; learners left.")


def _completed(job: Job, fact: Fact) -> Told:
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
    return _tell(job, "completed", "Completed.")


def _closed(job: Job, fact: Fact) -> Told:
    return closed(job, fact.at_s)


def closed(job: Job, at_s: float) -> Told:
    """No process is left. What the owner wants by now decides where the job goes."""
    job = replace(time_limit.paused(job, at_s), is_closed=True, members=(), resize=None)
    if job.state.is_final:
        return job, ()
    job = replace(job, ran_s=0.0 if job.checkpoint_step is None else executed_s(job, at_s))
    if job.intent is Intent.CANCEL:
        return _tell(replace(job, state=step(job.state, Event.STOPPED), ended_s=at_s), "cancelled", "Cancelled.")
    if job.intent is Intent.HALT:
        text = f"Halted at step {job.step:,}." if job.checkpoint_step is not None else "Halted."
        return _tell(replace(job, state=step(job.state, Event.LEFT)), "halted", text)
    at = "" if job.preempted is None else f" {interruptions.work_lost(job)}"
    job = replace(job, queued_s=at_s, in_queue_s=at_s)
    return _tell(replace(job, state=step(job.state, Event.EVICTED)), "requeued", f"Back in the queue.{at}")


def executed_s(job: Job, now_s: float) -> float:
    """How long a job that holds devices has run: time in the queue, or halted, does not count."""
    if job.started_s is None:
        return job.ran_s
    return job.ran_s + max(now_s - max(job.started_s, job.seated_s or 0.0), 0.0)


_HANDLERS: Final[dict[FactKind, Callable[[Job, Fact], Told]]] = {
    FactKind.GUARDIAN_UP: _guardian_up,
    FactKind.SEEN: _seen,
    FactKind.LEARNER_UP: _learner_up,
    FactKind.LEARNER_READY: _learner_ready,
    FactKind.LEARNER_DOWN: _learner_down,
    FactKind.GENERATION: _generation,
    FactKind.BEGUN: _begun,
    FactKind.REGROUPED: _regrouped,
    FactKind.CHECKPOINT: _checkpoint,
    FactKind.COMMITTED: _committed,
    FactKind.PACE: _pace,
    FactKind.ASKED: _asked,
    FactKind.ALONE: _alone,
    FactKind.REPORT: _report,
    FactKind.LOST: _lost,
    FactKind.STORING: _storing,
    FactKind.AWAITED: _awaited,
    FactKind.PROFILE: _profile,
    FactKind.SLOW: _slow,
    FactKind.HALTED: _halted,
    FactKind.COMPLETED: _completed,
    FactKind.CLOSED: _closed,
}
