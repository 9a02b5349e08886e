"""User requests on a job: scale, priority, elastic mode, halt, resume, cancel, checkpoint."""

from __future__ import annotations

from dataclasses import replace

from dlaas_server.core.lifecycle import time_limit
from dlaas_server.core.lifecycle.transition import EventText, Transition, with_goal, with_text
from dlaas_server.core.model import interruptions
from dlaas_server.core.model.job import Intent, Job
from dlaas_server.core.model.phrases import actor, agent, count
from dlaas_server.core.model.states import Event, step
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import Elastic, NotAllowed, Refused, State

__all__ = ["apply_request", "changed"]


def apply_request(job: Job, event: Event, *, by: str, now_s: float, learners: int | None = None) -> Transition:
    """Apply a user request, which is idempotent: a request for the present state changes nothing.

    Raises NotAllowed or Refused.
    """
    if event is Event.SCALE:
        assert learners is not None, "scale needs a number"
        return _scale(job, learners, by)
    acts = {Event.HALT: _halt, Event.RESUME: _resume, Event.CANCEL: _cancel, Event.CHECKPOINT: _checkpoint}
    return acts[event](job, by, now_s)


def changed(
    job: Job, *, by: str, now_s: float, learners: int | None, priority: int | None, elastic: Elastic | None
) -> Transition:
    """Change requested size, priority and elastic mode; None keeps the value. Raises NotAllowed or Refused."""
    if job.state.is_final:
        raise NotAllowed(f"{job.id} has ended ({job.state}) and can no longer be changed")
    texts: list[EventText] = []
    if learners is not None:
        job, events = apply_request(job, Event.SCALE, by=by, now_s=now_s, learners=learners)
        texts += events
    if priority is not None and priority != job.priority:
        job = replace(job, priority=priority)
        texts.append(EventText("priority", f"{by} set the priority to {priority}."))
    if elastic is not None and elastic is not job.elastic:
        mode = "off: its size is fixed" if elastic is Elastic.OFF else elastic
        job = replace(job, elastic=elastic)
        texts.append(EventText("elastic", f"{by} set elastic to {mode}."))
    return job, tuple(texts)


def _scale(job: Job, learners: int, by: str) -> Transition:
    step(job.state, Event.SCALE, job.id)
    low, high = job.spec.learners_min, job.spec.learners_max
    if not low <= learners <= high:
        bounds = f"exactly {count(low, 'learner')}" if low == high else f"{low} to {high} learners"
        raise Refused(f"Stayed at {job.wish}. {job.id} accepts {bounds}.")
    if learners == job.wish and job.elastic is not Elastic.AUTO:
        return job, ()
    if job.elastic is Elastic.OFF and job.state is not State.QUEUED:
        why = job.alone or f"{job.id} was submitted with --elastic off, so its size cannot change."
        raise NotAllowed(f"Stayed at {job.wish}. {why}")
    manual = " Its size now changes only on request (--elastic manual)." if job.elastic is Elastic.AUTO else ""
    elastic = Elastic.MANUAL if manual else job.elastic
    job = replace(job, wish=learners, wish_by="you", elastic=elastic)
    return with_text(job, "wish", f"{actor(job, by)} requested {count(learners, 'learner')}.{manual}")


def _halt(job: Job, by: str, now_s: float) -> Transition:
    if job.intent is Intent.HALT or job.state is State.HALTED:
        return job, ()
    after = step(job.state, Event.HALT, job.id)
    if job.intent is Intent.CANCEL:
        raise NotAllowed(f"{job.id} is being cancelled and cannot be halted")
    job = replace(job, intent=Intent.HALT, state=after, halted_by=by)
    if job.is_closed:
        return with_text(replace(job, ended_s=None), "halt", f"Halted by {agent(job, by)} while it was in the queue.")
    what = "It cannot write a checkpoint, so it starts over when resumed."
    if not job.starts_over:
        what = "The job writes a checkpoint and releases its devices."
    job = interruptions.began(job, interruptions.HALTED, f"Halted by {agent(job, by)}.", now_s)
    job = with_goal(job, Goal.HALT)
    return with_text(job, "halt", f"{actor(job, by)} requested a halt. {what}")


def _resume(job: Job, by: str, now_s: float) -> Transition:
    if job.intent is Intent.RUN and not job.state.is_final:
        return job, ()
    after = step(job.state, Event.RESUME, job.id)
    if job.intent is Intent.CANCEL:
        raise NotAllowed(f"{job.id} is being cancelled and cannot be resumed; retry it after it has ended")
    job = replace(job, intent=Intent.RUN, state=after, halted_by=None, restarts=0, not_before_s=0.0, failure=None)
    job = time_limit.renewed(replace(job, is_wait_recorded=False, start_estimate=None, in_queue_s=now_s))
    return with_text(job, "resume", f"{actor(job, by)} resumed the job; it returns to the queue.")


def _cancel(job: Job, by: str, now_s: float) -> Transition:
    if job.intent is Intent.CANCEL or job.state is State.CANCELLED:
        return job, ()
    after = step(job.state, Event.CANCEL, job.id)
    job = replace(job, intent=Intent.CANCEL, state=after, cancelled_by=by)
    if job.is_closed:
        return with_text(replace(job, ended_s=now_s), "cancel", f"Cancelled by {agent(job, by)}.")
    return with_text(with_goal(job, Goal.STOP), "cancel", f"{actor(job, by)} cancelled the job.")


def _checkpoint(job: Job, by: str, now_s: float) -> Transition:
    step(job.state, Event.CHECKPOINT, job.id)
    if job.intent is not Intent.RUN or job.goal is not Goal.RUN:
        raise NotAllowed(f"{job.id} is releasing its devices; no further checkpoint can be requested")
    job = replace(job, checkpoints_asked=job.checkpoints_asked + 1, awaits_checkpoint=True, revision=job.revision + 1)
    return with_text(job, "checkpoint", f"{actor(job, by)} requested a checkpoint; it is written at the next step.")
