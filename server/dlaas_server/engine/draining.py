"""Drain of nodes: jobs shrink, move or are preempted; those that cannot leave yet are asked for a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from dlaas_server.core.lifecycle.job_events import Preempted, Resized
from dlaas_server.core.lifecycle.requests import RequestCheckpoint
from dlaas_server.core.model.pool import Pool as Picture
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning.checkpoint_requests import may_request_checkpoint
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.rebalancing.drain import Way, drain
from dlaas_server.engine.reconciliation.transaction import Draft

__all__ = ["emptied", "request_checkpoint"]


def request_checkpoint(draft: Draft, name: str, by: str) -> None:
    """Request a checkpoint of a job, unless it is being stopped or resized already."""
    if may_request_checkpoint(draft.job(name)):
        draft.apply(name, RequestCheckpoint(by=by, job=name))


def emptied(draft: Draft, picture: Picture, usual: Layout) -> tuple[Picture, dict[str, Wait]]:
    """Move jobs off the drained nodes. Return the new snapshot, and reasons for the jobs that cannot leave yet."""
    leaves = drain(picture, usual, draft.now_s)
    jobs, staying = dict(picture.jobs), {}
    why = {node.name: f"{node.name} is {node.cordoned}" for node in picture.nodes if node.drains}
    for leave in leaves:
        reason = ", ".join(why[name] for name in leave.nodes)
        if leave.way is Way.STAY:
            staying[leave.job] = Wait(leave.job, f"{reason}; {leave.text}.")
            request_checkpoint(draft, leave.job, f"The pool ({reason})")
        elif leave.is_due and leave.seats:
            event = Resized(seats=tuple(leave.seats), by="drain", why=f"{reason}: {leave.text}.")
            jobs[leave.job] = draft.apply(leave.job, event)
        elif leave.is_due:
            jobs[leave.job] = draft.apply(leave.job, Preempted(reason=reason))
    return (replace(picture, jobs=jobs) if leaves else picture), staying
