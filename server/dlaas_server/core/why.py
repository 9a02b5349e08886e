"""Why a job waits, in full: its place, who is before it, who holds what it needs and until when, its queue's share."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from dlaas_server.core.asks import Late
from dlaas_server.core.model import Job, Pool
from dlaas_server.core.orders import length_counts, made
from dlaas_server.core.plan import Wait, is_settled
from dlaas_server.core.scheduler import Policy, Share
from dlaas_server.core.settings import held_by_queue, is_entitled, queues_of
from dlaas_server.core.shapes import Layout, relaxed
from dlaas_server.core.words import count, duration, ordinal, unit_of

__all__ = ["why_it_waits"]

NAMED_MOST: Final = 5
CANNOT_SAVE: Final = "wrote no checkpoint to go on from, so it is not preempted"
SAVES: Final = "has no checkpoint yet: it is asked for one, and then makes room"
NO_BOUND: Final = "while they leave it no room, nobody can say by when it starts"


def why_it_waits(job: Job, pool: Pool, waits: Sequence[Wait], policy: Policy, *, is_foretold: bool = True) -> list[str]:
    """Sentences about a job that is in the queue; none for others.

    `waits`: all that is waited for, as planned. Lengths that are not known are not guessed. `is_foretold`: it was told
    when it is expected to start.
    """
    line = sorted((w for w in waits if w.place), key=lambda w: w.place)
    own = next((w for w in line if w.job == job.id), None)
    if own is None or not job.waits:
        return []
    preempts = "" if policy.preempts else ", without preemption"
    order = f"the pool's order is {policy.order}{preempts}, its priority {job.priority}"
    if job.spec.spot:
        order += ". It is a spot job: it goes behind all others, and gives its devices back when one of them needs them"
    out = [f"It is {ordinal(own.place)} of {own.of} in line; {order}."]
    ahead = [w.job for w in line if w.place < own.place]
    if ahead:
        out.append(f"Ahead of it: {_some(ahead)}.")
    out += _holders(job, pool, policy)
    if not is_foretold:
        out += _untold(job, pool, ahead)
    out += _anywhere(job, policy)
    if policy.order == "fair":
        out.append(_share(job, pool, policy))
    return out + _first_always(job, pool, policy)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MOST} more" if len(names) > NAMED_MOST else ""
    return ", ".join(names[:NAMED_MOST]) + more


def _holders(job: Job, pool: Pool, policy: Policy) -> list[str]:
    """Who has devices, those that end first before the others; and who of them would make room, but cannot."""
    unit = unit_of(job)
    found: list[tuple[float, int, str]] = []
    for other in pool.jobs.values():
        held = sum(len(m.seat.devices) for m in other.members)
        if other.id == job.id or not held:
            continue
        left_s = _left_s(other.id, pool)
        ends = "nobody knows until when" if left_s == inf else f"until in about {duration(left_s)}"
        nodes = ", ".join(sorted({m.seat.node for m in other.members}))
        spot = ", spot" if other.spec.spot else ""
        text = f"{other.id} ({other.owner}{spot}) holds {count(held, unit)} on {nodes}, {ends}"
        is_unsaved = is_settled(other) and other.checkpoint_step is None
        if policy.preempts and other.priority < job.priority and is_unsaved and not other.spec.spot:
            text += f"; its priority is lower, but it {CANNOT_SAVE if other.is_plain else SAVES}"
        found.append((left_s, other.number, text))
    found.sort()
    more = len(found) - NAMED_MOST
    out = [f"{text}." for _, _, text in found[:NAMED_MOST]]
    return out + ([f"{count(more, 'more job')} hold devices."] if more > 0 else [])


def _left_s(name: str, pool: Pool) -> float:
    """How long a job is expected to go on; infinite where nobody knows."""
    known = pool.known.get(name)
    if known is None or known.length_s is None or known.length_s <= known.executed_s:
        return inf
    return known.length_s - known.executed_s


def _untold(job: Job, pool: Pool, ahead: Sequence[str]) -> list[str]:
    """Why it is not told when it starts, where that is for want of somebody's length."""
    before = [*ahead, *(one.id for one in pool.jobs.values() if one.members and one.id != job.id)]
    unknown = [name for name in before if _left_s(name, pool) == inf]
    if not unknown:
        return []
    tells = "--epochs at submit tells it, and what has ended teaches it"
    return [f"When it starts cannot be told: nobody knows how long {_some(unknown)} will run ({tells})."]


def _anywhere(job: Job, policy: Policy) -> list[str]:
    """That it does not wait for seats close together, in a pool in which gangs do, and why."""
    profile, learners = job.profile, job.spec.learners_min
    usual = policy.placement if job.spec.placement is None else Layout.PACK
    if learners == 1 or relaxed(usual, profile) is usual:
        return []
    if profile.communication is not None:
        why = f"over several nodes they waited {profile.communication:.0%} of a step for each other"
    else:
        why = f"what they exchange is even, its largest tensor is {profile.skew or 0.0:.0%} of it"
    return [f"Its learners may sit on any nodes: {why}."]


def _first_always(job: Job, pool: Pool, policy: Policy) -> list[str]:
    """Against whom no bound of its waiting holds, or a long one (see `Policy.age_s`), if such jobs are there now."""
    rivals = [
        other
        for other in pool.jobs.values()
        if other.id != job.id and not other.state.is_final and (job.spec.spot or not other.spec.spot)
    ]
    out = []
    if any(other.priority > job.priority for other in rivals):
        until = f"until it has waited {duration(_forgotten_s(job, pool, policy))}; then it goes before them once"
        out.append(
            f"Jobs of a higher priority {f'always go first: {NO_BOUND}' if job.spec.spot else f'go first {until}'}."
        )
    shares = queues_of(policy)
    owners = {other.spec.queue for other in rivals if shares.get(other.spec.queue, Share()).guaranteed}
    if (
        policy.order == "fair"
        and not job.spec.spot
        and not is_entitled(job, held_by_queue(pool), shares)
        and owners - {job.spec.queue}
    ):
        out.append(f"It would borrow: jobs that take what is guaranteed to their queue always go first: {NO_BOUND}.")
    return out


def _forgotten_s(job: Job, pool: Pool, policy: Policy) -> float:
    """After so long it goes before higher priorities."""
    known = pool.known.get(job.id)
    lengths = [] if known is None else [known.length_s or 0.0, known.usual_s or 0.0]
    return Late.FORGOTTEN * max(policy.age_s, length_counts(made(policy.order)) * max(lengths, default=0.0))


def _share(job: Job, pool: Pool, policy: Policy) -> str:
    name = job.spec.queue
    held = held_by_queue(pool).get(name, 0)
    share = queues_of(policy).get(name, Share())
    if not share.guaranteed:
        return f"Its queue {name} holds {held}, and is guaranteed nothing (weight {share.weight:g})."
    return f"Its queue {name} holds {held} of the {count(share.guaranteed, unit_of(job))} that it is guaranteed."
