"""Job view: states in words, reasons, allowed actions. Front ends show these and derive nothing themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from dlaas_server.core.elasticity.size_requests import speeds, speedup
from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.interruptions import work_lost
from dlaas_server.core.model.job import Intent, Job, MemberState
from dlaas_server.core.model.phrases import agent, count, duration, ordinal
from dlaas_server.core.model.states import Event, can
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.planning.pool_settings import queues_of
from dlaas_server.core.presentation.waiting_text import waiting_text
from dlaas_server.core.scheduling.scheduler import Policy
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.membership_history import ran_s
from jupyter_dlaas.wire.protocol import (
    Action,
    ActionId,
    DeviceView,
    Elastic,
    JobView,
    LearnerView,
    NodeView,
    Note,
    PoolView,
    Progress,
    QueueView,
    Size,
    State,
    WaitingReason,
)

__all__ = ["HOW_TO_LOG", "job_view", "learners_of", "pool_view"]

NO_POLICY: Final = Policy()
ALONE: Final = "trains_alone"
HOW_TO_LOG: Final = "how_to_log"
"""Code of the note that disappears with the first metric."""

_TONES: Final[dict[State, str]] = {
    State.QUEUED: "idle",
    State.DEPLOYING: "active",
    State.DOWNLOADING: "active",
    State.PROCESSING: "active",
    State.STORING: "active",
    State.COMPLETED: "good",
    State.HALTED: "idle",
    State.FAILED: "bad",
    State.CANCELLED: "idle",
}
_LEARNER_WORDS: Final[dict[MemberState, str]] = {
    MemberState.WANTED: "Starting",
    MemberState.UP: "Starting",
    MemberState.READY: "Training",
    MemberState.DOWN: "Lost",
}


def job_view(
    job: Job,
    *,
    row: int,
    directory: str,
    wait: Wait | None,
    progress: Progress | None,
    has_metrics: bool = False,
    waiting_for: Sequence[WaitingReason] = (),
) -> JobView:
    """Return the view of one job.

    `wait`: its entry in the plan, if any. `progress`: newest report of its learners. `has_metrics`: a curve can be
    drawn. `waiting_for`: reasons why its processes do not run yet.
    """
    waiting_for = () if job.is_closed else tuple(waiting_for)
    transition = _transition(job)
    state = _shown_state(job)
    return JobView(
        row=row,
        id=job.id,
        name=job.name,
        number=job.number,
        owner=job.owner,
        state=state,
        state_label=_label(job, state, transition),
        tone="warn" if _is_disturbed(job, state, transition) else _TONES[state],
        status_line=_status_line(job, transition, wait),
        reason=_reason(job, wait, waiting_for),
        transition=transition,
        place=wait.place if wait and wait.is_queued else None,
        waiting=wait.of if wait and wait.is_queued else None,
        submitted_s=job.submitted_s,
        started_s=job.started_s,
        ended_s=job.ended_s,
        unit=job.unit,
        gpus_per_learner=job.spec.gpus_per_learner,
        size=Size(min=job.spec.learners_min, max=job.spec.learners_max, wish=job.wish, held=job.held),
        elastic=job.elastic,
        priority=job.priority,
        queue=job.spec.queue,
        spot=job.spec.spot,
        actions=actions(job),
        learners=() if job.state.is_final else learners_of(job),
        progress=_progress(job, progress),
        failure=job.failure if job.state is State.FAILED or transition == "restarting" else None,
        resizes=job.resizes,
        interruptions=job.interruptions,
        queued_s=job.waited_s,
        checkpoint_step=job.checkpoint_step,
        outputs=job.spec.outputs,
        results=job.results,
        origin=job.spec.origin,
        notes=_notes(job, has_metrics=has_metrics),
        directory=directory,
        generation=job.generation,
        restarts=job.restarts_total,
        speeds=speeds(job),
        speedup=speedup(job),
        waiting_for=waiting_for,
    )


def _progress(job: Job, progress: Progress | None) -> Progress | None:
    """Return the progress to show. Learners write it a few times per second: without any, a job's own step is newer."""
    if job.started_s is None or job.state is State.CANCELLED or progress is None:
        return None
    has_left = job.state in (State.HALTED, State.QUEUED, State.DEPLOYING) and job.checkpoint_step is not None
    if not has_left or job.step == progress.step:
        return progress
    fraction = min(job.step / progress.steps, 1.0) if progress.steps else progress.fraction
    return replace(progress, step=job.step, fraction=fraction)


def _notes(job: Job, *, has_metrics: bool) -> tuple[Note, ...]:
    """Return the notes: findings of the training first, in place of what was guessed before.

    The note on logging is included only while the job trains without a curve.
    """
    needs_help = job.state is State.PROCESSING and not has_metrics
    notes = tuple(note for note in job.spec.notes if needs_help or note.code != HOW_TO_LOG)
    if job.alone is None:
        return (*job.reports, *notes)
    return (Note(code=ALONE, text=job.alone), *job.reports, *(note for note in notes if note.code != ALONE))


def _transition(job: Job) -> str | None:
    if job.state.is_final or job.is_closed or _has_freed_devices(job):
        return None
    if job.intent is Intent.CANCEL:
        return "cancelling"
    if job.intent is Intent.RUN and job.state is State.DEPLOYING and job.failure is not None:
        return "restarting"
    if job.goal is Goal.HALT:
        return "preempting" if job.preempted is not None and job.intent is Intent.RUN else "halting"
    return "scaling" if job.resize is not None else None


def _shown_state(job: Job) -> State:
    """Return the state, but QUEUED for a preempted job from the moment at which its devices are free for others."""
    return State.QUEUED if _has_freed_devices(job) else job.state


def _has_freed_devices(job: Job) -> bool:
    """Return whether a job that returns to the queue has no learner left, while its guardian has yet to close it."""
    returns = job.goal is not Goal.RUN and job.intent is Intent.RUN
    return returns and not job.members and not job.is_closed and not job.state.is_final


def _is_degraded(job: Job) -> bool:
    """Return whether learners were lost and fewer than wanted have trained since."""
    last = next((resize for resize in reversed(job.resizes) if resize.before != resize.after), None)
    is_lost = last is not None and last.by == "lost"
    return is_lost and job.state is State.PROCESSING and job.resize is None and 0 < len(job.gang) < job.wish


def _is_disturbed(job: Job, state: State, transition: str | None) -> bool:
    is_preempted = state is State.QUEUED and job.preempted is not None
    return transition == "restarting" or is_preempted or (transition is None and _is_degraded(job))


def _label(job: Job, state: State, transition: str | None) -> str:
    word = state.capitalize()
    if job.spec.spot and not job.state.is_final:
        word += " · spot"
    if job.state is State.FAILED and job.failure is not None:
        return f"{word} · {job.failure.cause}"
    if state is State.QUEUED:
        return f"{word} · preempted" if job.preempted is not None else word
    if transition is None and _is_degraded(job):
        each = max(1, job.spec.gpus_per_learner)
        return f"{word} · {len(job.gang) * each} of {job.wish * each}"
    if transition == "scaling" and job.resize is not None and job.resize.before == job.resize.after:
        return f"{word} · moving"
    if transition == "scaling" and job.resize is not None:
        return f"{word} · scaling {job.resize.before} → {job.resize.after}"
    return f"{word} · {transition}" if transition else word


def _status_line(job: Job, transition: str | None, wait: Wait | None) -> str:
    trained_s = ran_s(job.started_s, job.ended_s, job.interruptions)
    ran = None if trained_s is None else duration(trained_s)
    match job.state:
        case State.QUEUED if wait is not None and wait.is_queued:
            return f"{ordinal(wait.place)} of {wait.of}"
        case State.DEPLOYING:
            ready = sum(1 for m in job.gang if m.state is MemberState.READY)
            return f"{ready} of {count(len(job.gang), 'learner')} ready"
        case State.STORING:
            return ", ".join(job.spec.outputs)
        case State.COMPLETED | State.FAILED:
            return f"ran {ran}" if ran else ""  # without the time of waiting, deploying and interruptions
        case State.CANCELLED:
            return " ".join(part for part in (_by(job, job.cancelled_by), f"after {ran}" if ran else "") if part)
        case State.HALTED:
            at = "" if job.checkpoint_step is None else f"at step {job.step:,}"
            return " ".join(part for part in (_by(job, job.halted_by), at) if part)
        case _ if transition in ("halting", "preempting"):
            return "stops without a checkpoint" if job.starts_over else "writes a checkpoint"
        case _:
            return ""


def _by(job: Job, user: str | None) -> str:
    """Return `by you` for the job's owner, who reads it, and the name for other users."""
    return "" if user is None else f"by {agent(job, user)}"


def _reason(job: Job, wait: Wait | None, waiting_for: Sequence[WaitingReason]) -> str:
    if _shown_state(job) is State.QUEUED:
        preempted = "" if job.preempted is None else f"Preempted: {job.preempted}. {work_lost(job)}"
        refused = "" if job.refusal is None else f"It could not be placed: {job.refusal}"
        return " ".join(part for part in ("" if wait is None else wait.reason, preempted, refused) if part)
    if job.state is State.DEPLOYING and job.failure is not None and wait is None:
        origin = "from the start" if job.checkpoint_step is None else f"from step {job.checkpoint_step:,}"
        restarts = f"{_sentence(job.failure.what)} Restarting {origin}."
        return f"{restarts} {waiting_text(waiting_for)}".rstrip()
    if waiting_for:
        return waiting_text(waiting_for)
    if wait is not None:
        return wait.reason
    if job.needs_decision and job.failure is not None:
        return f"{_sentence(job.failure.what)} {job.failure.advice}"
    if job.state is State.HALTED and job.checkpoint_step is None and job.live_generation:
        return "There is no checkpoint: it starts over when resumed."
    if job.goal is Goal.HALT and job.intent is Intent.RUN and not job.is_closed:
        why = f"Preempted: {job.preempted}. " if job.preempted is not None else ""
        return f"{why}Returns to the queue when its learners have stopped."
    if job.resize is not None and job.resize.why and not job.state.is_final:
        return job.resize.why
    if job.state is not State.PROCESSING:
        return ""
    return job.awaited or _trains_independently(job) or (_degraded(job) if _is_degraded(job) else "")


def _degraded(job: Job) -> str:
    why = _sentence(job.failure.what) if job.failure is not None else "Learners were lost."
    continues = "continues" if len(job.gang) == 1 else "continue"
    return f"{why} {count(len(job.gang), 'learner')} {continues}."


def _trains_independently(job: Job) -> str:
    """Return why its several learners share nothing; "" if they do."""
    is_in_parts = job.elastic is Elastic.OFF and job.wish_by == "program"
    return job.alone if job.alone is not None and len(job.gang) > 1 and not is_in_parts else ""


STARTS_OVER: Final = "It has run no training loop that writes checkpoints, so it starts over when resumed."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def actions(job: Job) -> tuple[Action, ...]:
    """Return the actions for the present state, by the state table; disabled ones carry the reason."""
    out: list[Action] = []
    if can(job.state, Event.SCALE):
        out.append(_scale_action(job))
    if job.state is not State.HALTED and can(job.state, Event.HALT):
        halting = job.intent is Intent.HALT or job.goal is Goal.HALT
        busy = "it is halting" if halting else "it is being cancelled" if job.intent is Intent.CANCEL else None
        lost = STARTS_OVER if job.starts_over else None
        out.append(Action(id=ActionId.HALT, label="Halt", enabled=busy is None, why_not=busy, confirm=lost))
    if job.state is State.HALTED or (job.intent is Intent.HALT and can(job.state, Event.RESUME)):
        out.append(Action(id=ActionId.RESUME, label="Resume"))
    if can(job.state, Event.CANCEL):
        busy = "it is being cancelled" if job.intent is Intent.CANCEL else None
        out.append(Action(id=ActionId.CANCEL, label="Cancel", enabled=busy is None, why_not=busy))
    if job.state.is_final or job.needs_decision:
        out.append(Action(id=ActionId.RETRY, label="Retry"))
    return tuple(out)


def _scale_action(job: Job) -> Action:
    why = None
    if job.spec.learners_min == job.spec.learners_max:
        why = f"it runs with exactly {count(job.spec.learners_min, 'learner')}"
    elif job.elastic is Elastic.OFF and job.state is not State.QUEUED:
        why = "each learner holds a part of the model" if job.alone else "it was submitted with --elastic off"
    elif job.intent is Intent.CANCEL:
        why = "it is being cancelled"
    return Action(id=ActionId.SCALE, label="Scale", enabled=why is None, why_not=why)


def learners_of(job: Job) -> tuple[LearnerView, ...]:
    """Return the learners of the job, or its last ones if it has ended."""
    return tuple(
        LearnerView(
            member=m.member,
            generation=m.generation,
            rank=m.rank,
            node=m.host or m.seat.node,
            devices=m.seat.devices,
            state="Stopping" if m.generation < job.generation else _LEARNER_WORDS[m.state],
            pod=m.pod,
        )
        for m in sorted(job.members, key=lambda m: m.member)
    )


def pool_view(
    *,
    row: int,
    name: str,
    unit: str,
    user: str,
    nodes: Sequence[Node],
    jobs: Mapping[str, Job],
    queue: Sequence[str],
    isolation: str,
    runs_on: str = "",
    policy: Policy = NO_POLICY,
    track_record: str = "",
    notices: Sequence[str] = (),
) -> PoolView:
    """Return the pool view: devices and the jobs that hold them, the queue in order, and the policy."""
    lent = {
        (member.seat.node, device): job.id
        for job in sorted((j for j in jobs.values() if j.members), key=lambda j: j.number)
        for member in job.members
        for device in member.seat.devices
    }
    views = tuple(
        NodeView(
            name=node.name,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            devices=tuple(
                DeviceView(
                    id=d.id,
                    index=d.index,
                    kind=d.kind,
                    memory_bytes=d.memory_bytes,
                    job=lent.get((node.name, d.id)),
                    out_of_service=node.cordoned or d.out_of_service,
                )
                for d in node.devices
            ),
            cordoned=node.cordoned,
        )
        for node in nodes
    )
    devices = [d for node in views for d in node.devices]
    used = sum(1 for d in devices if d.job is not None)
    out = sum(1 for d in devices if d.out_of_service is not None and d.job is None)
    free = len(devices) - used - out
    gist = f"{used} of {count(len(devices), unit)} in use"
    spot = sum(1 for d in devices if d.job is not None and jobs[d.job].spec.spot)
    if spot:
        gist += f" · {spot} by spot jobs"
    if out:
        gist += f" · {out} out of service"
    return PoolView(
        row=row,
        name=name,
        unit=unit,
        user=user,
        nodes=views,
        devices_total=len(devices),
        devices_free=free,
        queue=tuple(queue),
        gist=gist,
        isolation=isolation,
        runs_on=runs_on,
        order=policy.order,
        preemption=policy.preempts,
        placement=str(policy.placement),
        spot_price=policy.spot_price,
        spot_notice_s=policy.spot_notice_s,
        queues=_queues(policy, jobs),
        track_record=track_record,
        notices=tuple(notices),
    )


def _queues(policy: Policy, jobs: Mapping[str, Job]) -> tuple[QueueView, ...]:
    """Return each queue with its share, the devices that it holds, and its number of waiting jobs."""
    held: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for job in jobs.values():
        queue = job.spec.queue
        if job.members and not job.spec.spot:  # lent devices do not count against a share
            held[queue] = held.get(queue, 0) + sum(len(m.seat.devices) for m in job.gang)
        waiting[queue] = waiting.get(queue, 0) + job.waits
    return tuple(
        QueueView(
            name=name,
            weight=share.weight,
            guaranteed=share.guaranteed,
            held=held.get(name, 0),
            waiting=waiting.get(name, 0),
        )
        for name, share in queues_of(policy).items()
    )
