"""Outcomes of a plan: effects of its decisions on a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlaas_server.core.forecast.track_record import Forecast, outcome, soon
from dlaas_server.core.lifecycle.transition import (
    GRACE_S,
    EventText,
    Transition,
    nodes_text,
    with_goal,
    with_seats,
    with_text,
)
from dlaas_server.core.model import interruptions
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, PendingResize, StartEstimate
from dlaas_server.core.model.phrases import attribution, clause, count, duration
from dlaas_server.core.model.states import Event, step
from jupyter_dlaas.wire.journal import Goal

__all__ = ["preempted", "resized", "started", "waits"]


def started(job: Job, seats: Sequence[Seat], now_s: float) -> Transition:
    """Give the waiting job these seats, as planned."""
    after = step(job.state, Event.PLACED)
    job = replace(
        job, state=after, goal=Goal.RUN, is_closed=False, is_live=False, members=(), resize=None, guardian_starts=0
    )
    since_s = job.submitted_s if job.in_queue_s is None else job.in_queue_s
    job = replace(job, seated_s=now_s, waited_s=job.waited_s + max(0.0, now_s - since_s))
    job = interruptions.held_again(job, now_s)
    accuracy = (
        ""
        if job.start_estimate is None
        else f" {outcome(Forecast(job=job.id, estimate=job.start_estimate, started_s=now_s))}"
    )
    job = replace(job, preempted=None, refusal=None, is_wait_recorded=False, start_estimate=None)
    return with_text(
        with_seats(job, seats), "placed", f"Placed {count(len(seats), 'learner')} on {nodes_text(seats)}.{accuracy}"
    )


def waits(job: Job, reason: str, expected: tuple[float, float] | None, now_s: float) -> Transition:
    """Record the wait reason and the expected start. Only the first of each since the job was queued is kept."""
    events: list[EventText] = []
    if not job.is_wait_recorded:
        job = replace(job, is_wait_recorded=True)
        events.append(EventText("waits", f"Waiting: {clause(reason)}."))
    if job.start_estimate is None and expected is not None:
        job = replace(job, start_estimate=StartEstimate(at_s=now_s, low_s=expected[0], high_s=expected[1]))
        events.append(EventText("expected", f"Expected to start {soon(expected, now_s)}."))
    return job, tuple(events)


def preempted(job: Job, reason: str, now_s: float, notice_s: float | None = None) -> Transition:
    """Preempt the running job: it writes a checkpoint, then returns to the queue with its place.

    `notice_s`: seconds that a spot job has for its checkpoint.
    """
    assert job.goal is Goal.RUN, f"{job.id} is already being stopped"
    within = "" if notice_s is None else f" within {duration(notice_s)}"
    job = interruptions.began(job, interruptions.PREEMPTED, f"Preempted: {clause(reason)}.", now_s)
    job = with_goal(replace(job, preempted=reason), Goal.HALT, GRACE_S if notice_s is None else notice_s)
    return with_text(
        job,
        "preempted",
        f"Preempted: {reason}. It writes a checkpoint{within}, then returns to its place in the queue.",
    )


def resized(
    job: Job, seats: Sequence[Seat], by: str, now_s: float, why: str = "", notice_s: float | None = None
) -> Transition:
    """Give the running job other seats. A new generation takes over, from a checkpoint or while training continues.

    `why`: a sentence for the owner if no person asked for the change. `notice_s`: see `preempted`.
    """
    before = len(job.gang)
    job = replace(job, notice_s=GRACE_S if notice_s is None else notice_s)
    change = PendingResize(
        before=before, after=len(seats), by=by, since_s=now_s, why=why, members=tuple(m.member for m in job.gang)
    )
    is_move = by == "pool" and len(seats) == before
    job = replace(job, resize=change, moved_s=now_s if is_move else job.moved_s, guardian_starts=0)
    changes = f"Scaling {before} → {len(seats)}" if len(seats) != before else "Moving"
    text = f"{changes}, {attribution(by)}."
    return with_text(with_seats(job, seats), "scaling", f"{why} {text}" if why else text)
