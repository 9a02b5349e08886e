"""Requests within a turn of the loop: one handler per record applies it to the draft, or refuses it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dlaas_server.core.lifecycle.job_events import JobObserved, JobSubmitted, original
from dlaas_server.core.lifecycle.requests import (
    CancelJob,
    ChangeJob,
    ChangePool,
    CordonNode,
    DeleteJob,
    DrainNode,
    ExpireJobs,
    HaltJob,
    JobRequest,
    RemoveQueue,
    RequestCheckpoint,
    ResumeJob,
    SetQueue,
    SubmitJob,
    UncordonNode,
    UserRequest,
)
from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.pool import Pool as Picture
from dlaas_server.core.planning.pool_settings import (
    Cordon,
    Settings,
    check_queue,
    check_removable,
    node_named,
    nodes_in_force,
    policy_in_force,
    queues_of,
)
from dlaas_server.core.planning.user_limits import UserLimits
from dlaas_server.core.rebalancing.drain import Leave, Way, drain
from dlaas_server.core.scheduling.scheduler import Policy, Share
from dlaas_server.engine.admission import check_feasible_on
from dlaas_server.engine.reconciliation.transaction import Draft
from dlaas_server.pools.base import Pool
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.protocol import DrainView, LeaveView, NotAllowed

__all__ = ["Context", "Request", "Submitted", "apply_request", "check_user", "drain_view"]

Request = UserRequest | JobObserved
"""Records that are posted to the loop."""
_WORDS: Final[dict[Way, str]] = {
    Way.SHRINK: "{} shrinks",
    Way.MOVE: "{} moves",
    Way.PREEMPT: "{} is preempted",
    Way.STAY: "{} stays until it has a checkpoint or ends",
}
_WORDS_PLURAL: Final[dict[Way, str]] = {
    Way.SHRINK: "{} shrink",
    Way.MOVE: "{} move",
    Way.PREEMPT: "{} are preempted",
    Way.STAY: "{} stay until they have a checkpoint or end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Data against which requests are checked, apart from jobs and settings."""

    pool: Pool
    configured: Policy
    """Policy of the configuration."""
    limits: UserLimits
    is_admin: Callable[[str], bool]
    keys: Mapping[tuple[str, str], tuple[str, str]]
    """(owner, key) -> (job, digest of the request), as committed."""
    active: Mapping[str, Job]
    """Committed jobs that have not ended."""
    picture: Callable[[], Picture]
    """Function that returns the committed snapshot of the pool."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Answer to a submit."""

    job: str
    is_new: bool


def apply_request(draft: Draft, request: Request, context: Context) -> Any:
    """Apply a request to the draft and return its answer. Raises what its handler raises: then nothing is changed."""
    return _HANDLERS[type(request)](draft, request, context)


# -- jobs -------------------------------------------------------------------------------------------------------------


def check_user(user: str, job: Job, jobs: Iterable[Job], limits: UserLimits, *, is_admin: bool) -> None:
    """Check the limits per user for a new job beside these `jobs`. Raises NotAllowed."""
    if not is_admin:
        limits.check_queued(user, jobs)
        limits.check_priority(job.priority)


def _submit(draft: Draft, request: SubmitJob, context: Context) -> Submitted:
    key = (request.by, request.key)
    seen = context.keys.get(key) or draft.new_keys.get(key)
    if seen is not None:
        if seen[1] != request.digest:
            raise NotAllowed(f"key: '{request.key}' was used for another request ({seen[0]}); use a new key")
        draft.job(seen[0])
        return Submitted(seen[0], is_new=False)
    check_queue(request.spec.queue, policy_in_force(context.configured, draft.settings))
    origin = JobSubmitted(
        by=request.by, key=request.key, number=draft.next_number, wish=request.wish, unit=context.pool.unit
    )
    job = original(request.spec, origin, draft.now_s)
    others = () if context.limits.queued is None else {**context.active, **draft.changed}.values()
    check_user(request.by, job, others, context.limits, is_admin=context.is_admin(request.by))
    check_feasible_on(context.pool, job)
    draft.next_number += 1
    draft.insert(job, origin, request.payload, request.key, request.digest)
    return Submitted(job.id, is_new=True)


def _change(draft: Draft, request: ChangeJob, context: Context) -> None:
    job = draft.job(request.job)
    is_raised = request.priority is not None and request.priority > job.priority and not job.state.is_final
    if request.priority is not None and is_raised and not context.is_admin(request.by):
        context.limits.check_priority(request.priority)
    draft.apply(request.job, request)


def _of_job(draft: Draft, request: JobRequest, context: Context) -> None:
    draft.apply(request.job, request)


def _observed(draft: Draft, request: JobObserved, context: Context) -> None:
    draft.apply(request.job, request.event)


def _delete(draft: Draft, request: DeleteJob, context: Context) -> None:
    job = draft.job(request.job)
    if not (job.state.is_final and job.is_closed):
        what = "is ending; try again in a moment" if job.state.is_final else "has not ended; cancel it first"
        raise NotAllowed(f"{job.id} {what}")
    draft.delete(job.id)


def _expire(draft: Draft, request: ExpireJobs, context: Context) -> None:
    for job in request.jobs:
        draft.delete(job)


# -- pool -------------------------------------------------------------------------------------------------------------


def _cordon(draft: Draft, request: CordonNode, context: Context) -> None:
    node_named(request.node, context.pool.nodes())
    settings = draft.settings.with_cordon(request.node, Cordon(by=request.by, at_s=draft.now_s))
    draft.set(settings, f"{request.by} cordoned {request.node}: no new learners are placed on it.", request)


def _uncordon(draft: Draft, request: UncordonNode, context: Context) -> None:
    node, nodes = request.node, context.pool.nodes()
    settings = draft.settings.without_cordon(node)
    if settings is draft.settings:
        node_named(node, nodes)
        found = next((n for n in nodes if n.name == node), None)
        if found is not None and found.cordoned is not None:
            raise NotAllowed(f"{node} is cordoned by the pool's config.toml ({found.cordoned}); change it there")
    draft.set(settings, f"{request.by} uncordoned {node}: it accepts learners again.", request)


def _drain(draft: Draft, request: DrainNode, context: Context) -> DrainView:
    node, nodes = request.node, context.pool.nodes()
    node_named(node, nodes)
    wanted = draft.settings.with_cordon(node, Cordon(by=request.by, at_s=draft.now_s, drains=True))
    view = drain_view(node, nodes, wanted, context.picture(), context.configured, is_asked=True)
    if request.plan is not None and request.plan != view.plan:
        raise NotAllowed(f"{node} has changed since this drain was planned; now: {view.gist} Review it and try again")
    draft.set(wanted, f"{request.by} drains {node}. {view.gist}", request)
    return view


def drain_view(
    node: str, nodes: Sequence[Node], settings: Settings, picture: Picture, configured: Policy, *, is_asked: bool
) -> DrainView:
    """Return what a drain of the node does, with these settings in force."""
    in_force = Picture(nodes=nodes_in_force(nodes, settings), jobs=picture.jobs, known=picture.known)
    leaves = [
        leave for leave in drain(in_force, policy_in_force(configured, settings).placement) if node in leave.nodes
    ]
    jobs = tuple(
        LeaveView(job=leave.job, way=str(leave.way), before=leave.before, after=leave.after, text=leave.text)
        for leave in leaves
    )
    plan = hashlib.sha256(json.dumps([node, *map(encode, jobs)]).encode()).hexdigest()[:16]
    return DrainView(node=node, is_asked=is_asked, plan=plan, gist=_gist(node, leaves, is_asked=is_asked), jobs=jobs)


def _gist(node: str, leaves: Sequence[Leave], *, is_asked: bool) -> str:
    if not leaves:
        return f"No job runs on {node}; no new learners {'are' if is_asked else 'would be'} placed there."
    parts: list[str] = []
    for way in Way:
        number = sum(leave.way is way for leave in leaves)
        if number:
            parts.append((_WORDS if number == 1 else _WORDS_PLURAL)[way].format(count(number, "job")))
    return f"{node}: {', '.join(parts)}."


def _set_queue(draft: Draft, request: SetQueue, context: Context) -> None:
    name, unit = request.queue, context.pool.unit
    policy = policy_in_force(context.configured, draft.settings)
    share = policy.shares.get(name, Share())
    share = replace(
        share,
        weight=share.weight if request.weight is None else request.weight,
        guaranteed=share.guaranteed if request.guaranteed is None else request.guaranteed,
    )
    total = sum(len(node.devices) for node in context.pool.nodes())
    others = sum(s.guaranteed for q, s in queues_of(policy).items() if q != name)
    if share.guaranteed > 0 and share.guaranteed + others > total:
        raise NotAllowed(
            f"queue {name}: {count(share.guaranteed, unit)} cannot be guaranteed; the pool has {total}, of "
            f"which {others} are guaranteed to other queues. Guarantee at most {max(total - others, 0)}"
        )
    verb = "changed" if name in queues_of(policy) else "created"
    terms = f"{count(share.guaranteed, unit)} guaranteed, weight {share.weight:g}"
    draft.set(draft.settings.with_queue(name, share), f"{request.by} {verb} the queue {name}: {terms}.", request)


def _remove_queue(draft: Draft, request: RemoveQueue, context: Context) -> None:
    jobs = {**draft.base, **draft.changed}
    check_removable(request.queue, context.configured, draft.settings, jobs.values())
    settings = draft.settings.without_queue(request.queue)
    draft.set(settings, f"{request.by} removed the queue {request.queue}.", request)


def _change_pool(draft: Draft, request: ChangePool, context: Context) -> None:
    settings = draft.settings.with_policy(
        order=request.order,
        preemption=request.preemption,
        placement=request.placement,
        spot_price=request.spot_price,
        spot_notice_s=request.spot_notice_s,
    )
    policy = policy_in_force(context.configured, settings)
    preempts = "with preemption" if policy.preempts else "without preemption"
    spot = f"spot price {policy.spot_price:g}, notice {policy.spot_notice_s:g} s"
    text = f"{request.by} set the order: {policy.order}, {preempts}; placement {policy.placement}; {spot}."
    draft.set(settings, text, request)


_HANDLERS: Final[Mapping[type, Callable[[Draft, Any, Context], Any]]] = {
    SubmitJob: _submit,
    ChangeJob: _change,
    HaltJob: _of_job,
    ResumeJob: _of_job,
    CancelJob: _of_job,
    RequestCheckpoint: _of_job,
    JobObserved: _observed,
    DeleteJob: _delete,
    ExpireJobs: _expire,
    CordonNode: _cordon,
    UncordonNode: _uncordon,
    DrainNode: _drain,
    SetQueue: _set_queue,
    RemoveQueue: _remove_queue,
    ChangePool: _change_pool,
}
