"""Explanation of a job's state: the events that led to it, and its wait with place, jobs ahead, holders, and share."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from dlaas_server.core.forecast.remaining_time import has_overrun, left_s
from dlaas_server.core.model.job import Job, is_settled
from dlaas_server.core.model.phrases import count, duration, ordinal, unit_of
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.placement.free_capacity import free_of
from dlaas_server.core.placement.shape import Layout, relaxed, shape_of
from dlaas_server.core.planning.decisions import Wait, in_queue
from dlaas_server.core.planning.pool_settings import held_by_queue, is_entitled, queues_of
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import length_counts, new_order
from dlaas_server.core.scheduling.scheduler import Policy, Share
from jupyter_dlaas.wire.journal import Goal

__all__ = ["deciding_events", "why_it_waits"]

NAMES_MAX: Final = 5
CANNOT_SAVE: Final = "has no checkpoint, so it is not preempted"
SAVES: Final = "has to write its first checkpoint before it is preempted"
NO_BOUND: Final = "so its wait has no upper bound"
STATE_KINDS: Final = frozenset(
    {"submitted", "recovered", "placed", "restart", "suspect", "seat_refused", "preempted", "halt", "resume", "cancel"}
)
"""Kinds of events that decide the state."""
SIZE_KINDS: Final = frozenset({"wish", "elastic", "scaling", "regrouped"})
"""Kinds of events that decide the size."""
WAIT_KINDS: Final = frozenset({"waits", "expected"})
"""Kinds of events that repeat the first wait reason and start estimate; the present ones are shown elsewhere."""


def deciding_events(history: Sequence[tuple[float, str, str]], now_s: float) -> list[str]:
    """Return the events that led to the job's state and to its size, and the newest one, each with its age.

    `history`: time, kind and text of events, oldest first.
    """
    state = max((i for i, (_, kind, _) in enumerate(history) if kind in STATE_KINDS), default=0)
    size = max((i for i, (_, kind, _) in enumerate(history) if kind in SIZE_KINDS), default=0)
    newest = max((i for i, (_, kind, _) in enumerate(history) if kind not in WAIT_KINDS), default=0)
    chosen = sorted({state, max(size, state), max(newest, state)}) if history else []
    return [f"{_ago(now_s - at_s)}: {text}" for at_s, _, text in (history[i] for i in chosen)]


def _ago(seconds: float) -> str:
    return "Just now" if seconds < 1.0 else f"{duration(seconds)} ago"


def why_it_waits(
    job: Job, pool: Pool, waits: Sequence[Wait], policy: Policy, *, has_estimate: bool = True
) -> list[str]:
    """Return sentences about a queued job; [] for other jobs.

    `waits`: all waits of the plan. Unknown lengths are not guessed. `has_estimate`: the job has a start estimate.
    """
    line = in_queue(waits)
    own = next((w for w in line if w.job == job.id), None)
    if own is None or not job.waits:
        return []
    preempts = "" if policy.preempts else ", without preemption"
    order = f"the pool's order is {policy.order}{preempts}; its priority is {job.priority}"
    if job.spec.spot:
        order += ". It is a spot job: it starts after all others, and its devices are reclaimed when others need them"
    out = [f"It is {ordinal(own.place)} of {own.of} in the queue; {order}."]
    ahead = [w.job for w in line if w.place < own.place]
    if ahead:
        out.append(f"Ahead of it: {_names_text(ahead)}.")
    out += _holders(job, pool, policy)
    out += _out_of_service(pool)
    out += _assumed_reclaims(job, pool, policy) if has_estimate else _missing_estimate(job, pool, ahead)
    out += _accepts_any_nodes(job, policy)
    if policy.order == "fair":
        out.append(_share(job, pool, policy))
    return out + _precedence(job, pool, policy)


def _names_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def _holders(job: Job, pool: Pool, policy: Policy) -> list[str]:
    """Return the holders of devices, earliest end first, and those without a checkpoint, which cannot be preempted."""
    unit = unit_of(job)
    holders: list[tuple[float, int, str]] = []
    for other in pool.jobs.values():
        held = sum(len(m.seat.devices) for m in other.members)
        if other.id == job.id or not held:
            continue
        other_left_s = left_s(pool.known.get(other.id))
        ends = " for an unknown time" if other_left_s == inf else f" for about {duration(other_left_s)} more"
        if other.goal is not Goal.RUN:
            other_left_s, ends = other.notice_s, " and is releasing them"
        elif other_left_s < inf and has_overrun(pool.known[other.id]):
            ends += ", assuming that it runs twice as long as expected"
        nodes = ", ".join(sorted({m.seat.node for m in other.members}))
        spot = ", spot" if other.spec.spot else ""
        text = f"{other.id} ({other.owner}{spot}) holds {count(held, unit)} on {nodes}{ends}"
        is_unsaved = is_settled(other) and other.checkpoint_step is None
        if policy.preempts and other.priority < job.priority and is_unsaved and not other.spec.spot:
            text += f"; its priority is lower, but it {CANNOT_SAVE if other.is_plain else SAVES}"
        holders.append((other_left_s, other.number, text))
    holders.sort()
    more = len(holders) - NAMES_MAX
    out = [f"{text}." for _, _, text in holders[:NAMES_MAX]]
    return out + ([f"{count(more, 'more job')} {'holds' if more == 1 else 'hold'} devices."] if more > 0 else [])


def _out_of_service(pool: Pool) -> list[str]:
    """Return why devices of nodes that are in use are not available: others use them, or they are suspect."""
    by_reason: dict[str, list[str]] = {}
    for device in (device for node in pool.nodes if node.cordoned is None for device in node.devices):
        if device.out_of_service is not None:
            by_reason.setdefault(device.out_of_service, []).append(device.id)
    return [f"Out of service: {_names_text(names)} ({why})." for why, names in list(by_reason.items())[:NAMES_MAX]]


def _assumed_reclaims(job: Job, pool: Pool, policy: Policy) -> list[str]:
    """Return the sentence that the start estimate assumes preemption of jobs with unknown end, if it does."""
    shape, least = shape_of(job, policy.placement), job.spec.learners_min
    endless = [
        running
        for running in pool.jobs.values()
        if running.members and running.goal is Goal.RUN and left_s(pool.known.get(running.id)) == inf
    ]
    if free_of(pool.nodes, endless).fit_count(shape, least) >= least:
        return []
    names = _names_text([running.id for running in sorted(endless, key=lambda running: running.number)])
    return [f"Its start estimate assumes that devices are reclaimed for it from {names}."]


def _missing_estimate(job: Job, pool: Pool, ahead: Sequence[str]) -> list[str]:
    """Return the sentence that there is no start estimate because the length of other jobs is unknown."""
    before = [*ahead, *(other.id for other in pool.jobs.values() if other.members and other.id != job.id)]
    unknown = [name for name in before if _is_unknown(pool.known.get(name))]
    if not unknown:
        return []
    advice = "Set --epochs at submit; completed jobs also improve the estimate"
    return [f"No start estimate: the run time of {_names_text(unknown)} is unknown. {advice}."]


def _is_unknown(known: Known | None) -> bool:
    return known is None or has_overrun(known) or left_s(known) == inf


def _accepts_any_nodes(job: Job, policy: Policy) -> list[str]:
    """Return the sentence that the job accepts distant seats, and why, in a pool where gangs wait for close ones."""
    profile, learners = job.profile, job.spec.learners_min
    usual = policy.placement if job.spec.placement is None else Layout.PACK
    if learners == 1 or relaxed(usual, profile) is usual:
        return []
    if profile.communication is not None:
        why = f"across nodes, they spent only {profile.communication:.0%} of a step on communication"
    else:
        why = f"their tensors are of even size, the largest has {profile.skew or 0.0:.0%} of the total"
    return [f"Its learners may be placed on any nodes: {why}."]


def _precedence(job: Job, pool: Pool, policy: Policy) -> list[str]:
    """Return the jobs against which its wait has no bound, or a long one (see `Policy.age_s`), if such jobs exist."""
    rivals = [
        other
        for other in pool.jobs.values()
        if other.id != job.id and not other.state.is_final and (job.spec.spot or not other.spec.spot)
    ]
    out = []
    if any(other.priority > job.priority for other in rivals):
        until = f"until it has waited {duration(_precedence_after_s(job, pool, policy))}; then it takes precedence once"
        first = f"always come first, {NO_BOUND}" if job.spec.spot else f"come first {until}"
        out.append(f"Jobs with a higher priority {first}.")
    shares = queues_of(policy)
    owners = {other.spec.queue for other in rivals if shares.get(other.spec.queue, Share()).guaranteed}
    if (
        policy.order == "fair"
        and not job.spec.spot
        and not is_entitled(job, held_by_queue(pool), shares)
        and owners - {job.spec.queue}
    ):
        out.append(f"It would borrow devices. Jobs that use their queue's guarantee always come first, {NO_BOUND}.")
    return out


def _precedence_after_s(job: Job, pool: Pool, policy: Policy) -> float:
    """Return the wait in seconds after which the starvation guard lets it go before higher priorities."""
    known = pool.known.get(job.id)
    lengths = [] if known is None else [known.length_s or 0.0, known.usual_s or 0.0]
    return Lateness.STARVING * max(policy.age_s, length_counts(new_order(policy.order)) * max(lengths, default=0.0))


def _share(job: Job, pool: Pool, policy: Policy) -> str:
    name = job.spec.queue
    held = held_by_queue(pool).get(name, 0)
    share = queues_of(policy).get(name, Share())
    if not share.guaranteed:
        return f"Its queue {name} holds {count(held, unit_of(job))} and has no guarantee (weight {share.weight:g})."
    return f"Its queue {name} holds {held} of its {share.guaranteed} guaranteed {unit_of(job)}s."
