"""Planning pass over a pool: starts, preemptions, changes of size, and wait reasons.

Each waiting job first gets its least size, in the order of the pool's policy (`scheduler.py`). The remaining devices go
to jobs with larger wishes. A waiting gang takes nothing from jobs behind it, but no job grows while another one waits.
Jobs above their least size shrink for waiting jobs before any job is preempted (`resize.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.elasticity.resize import ahead, make_way, needed, shared_out, without
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, is_settled
from dlaas_server.core.model.phrases import count, unit_of
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, beside, room, shape_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning.decisions import Plan, Preempt, Resized, Start, Wait
from dlaas_server.core.planning.immediate_start import immediate, kept_for
from dlaas_server.core.planning.scheduler_snapshot import scheduled
from dlaas_server.core.planning.wait_reasons import SPOT, lent_out, shortfall, waits_with_reasons
from dlaas_server.core.rebalancing.migration import gathered, made_room, may_move_again, relieved, rested_s
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.scheduler import PassResult, Policy, Preempted
from dlaas_server.core.spot.reclaim import Reclaim, ReservedSeats, free_in, given_back, holding, idle_in, loans_of
from jupyter_dlaas.wire.protocol import Elastic, State

__all__ = ["DEFAULT", "plan"]

DEFAULT: Final = Policy()
BARELY_BEGUN_S: Final = 60.0
ANEW: Final = (
    "another size would begin it anew, since it has no checkpoint to go on from. To do so, halt and resume it."
)


def plan(pool: Pool, now_s: float, policy: Policy = DEFAULT, order: Order | None = None) -> Plan:
    """Return the plan for the whole pool. Pure: the listing order of the pool does not matter.

    `order`: state that the policy's order learned from finished jobs; None: none yet. Ordinary jobs are planned first,
    as if nothing were lent to spot jobs (`spot_scheduler.py`); then spot jobs, on what is left.
    """
    spot = {name: job for name, job in pool.jobs.items() if job.spec.spot}
    if not spot:
        return _plan(pool, now_s, policy, order).plan
    loans = loans_of(spot.values(), lambda job: _may_change(job, now_s))
    others = {name: job for name, job in pool.jobs.items() if name not in spot}
    first = _plan(replace(pool, jobs=others, lent=loans), now_s, policy, order)
    back = {} if first.then is None else given_back(first.then, first.promised, loans, spot)
    got = {start.job: start.seats for start in first.plan.starts}
    got |= {one.job: more for one in first.plan.resizes if (more := _gained(others[one.job], one))}
    got |= {name: its for name, (_, its) in first.promised.items()}
    taken = [holding(job, got.get(name, ())) for name, job in others.items()] + [
        spot[one.job] for one in back.values() if one.is_due
    ]
    rest = {name: job for name, job in spot.items() if name not in back or not back[name].is_due}
    then = _plan(replace(pool, jobs=rest, taken=tuple(taken)), now_s, policy, None).plan
    return _both(pool, first.plan, back.values(), then, policy.spot_notice_s)


def _both(pool: Pool, first: Plan, back: Collection[Reclaim], then: Plan, notice_s: float) -> Plan:
    """Combine the plan for ordinary jobs, the resulting reclaims from spot jobs, and the plan for spot jobs."""
    stops: list[Preempt] = []
    shrinks: list[Resized] = []
    givers: dict[str, list[str]] = {}
    for one in back:
        job, winner = pool.jobs[one.job], pool.jobs[one.winner]
        devices, goes = count(one.given, unit_of(job)), "goes" if one.given == 1 else "go"
        what = f"{devices} {goes} back to {winner.owner}'s {winner.id}"
        givers.setdefault(winner.id, []).append(f"The spot job {job.id} gives {devices} back")
        if not one.is_due:
            continue
        if one.kept:
            shrinks.append(Resized(job.id, one.kept, "pool", f"It is a spot job: {what}.", notice_s))
        else:
            stops.append(Preempt(job.id, winner.id, what, notice_s))
    ahead_of_them = sum(1 for wait in first.waits if wait.place)
    of = ahead_of_them + sum(1 for wait in then.waits if wait.place)
    waits = [
        replace(
            wait,
            of=of if wait.place else 0,
            reason=" ".join((wait.reason, *(f"{said}." for said in givers.get(wait.job, ())))),
        )
        for wait in first.waits
    ]
    waits += [
        replace(wait, place=wait.place + ahead_of_them, of=of, reason=f"{wait.reason} {SPOT}") if wait.place else wait
        for wait in then.waits
    ]
    wakes = [at_s for at_s in (first.wake_s, then.wake_s) if at_s is not None]
    return Plan(
        starts=first.starts + then.starts,
        preempts=(*first.preempts, *stops, *then.preempts),
        resizes=(*first.resizes, *shrinks, *then.resizes),
        waits=tuple(waits),
        wake_s=min(wakes, default=None),
    )


@dataclass(frozen=True, slots=True)
class _Planned:
    """Plan, seats chosen for later starts, and free capacity once leaving jobs have left, without what is lent."""

    plan: Plan
    promised: ReservedSeats
    then: FreeCapacity | None


def _plan(pool: Pool, now_s: float, policy: Policy, order: Order | None) -> _Planned:
    # Devices of leaving jobs can be chosen already, but no job starts on them before they are free.
    capacity, future = free_in(pool), ahead(pool)
    idle = idle_in(pool) if pool.lent else capacity
    queue, line, waiting, choice, ways = _chosen(future, now_s, policy, order)
    places = {request.id: place for place, request in enumerate(line, start=1)}
    queue.sort(key=lambda j: (places.get(j.id, len(places) + 1), j.number))
    moving = {request.id for request in choice.starts}
    preempts = tuple(_preempt(one, pool, policy, moving) for one in choice.stops)
    begun = immediate(choice, places.keys(), idle, capacity, now_s)
    seats = begun.seats
    blocked = bool(waiting) or any(request.id in places and request.id not in seats for request in choice.starts)
    if not blocked:
        for job in queue:
            if job.id in seats:
                shape, has = shape_of(job, policy.placement), seats[job.id]
                seats[job.id] += _more(idle, shape, job.wish - len(has), has)
    if idle is not capacity:
        for job_id, its in seats.items():
            capacity.claim(shape_of(pool.jobs[job_id], policy.placement), its)
    busy = {one.job for one in preempts} | ways.keys()
    resizes, short = _resize(pool.jobs, capacity, busy, now_s, policy.placement, is_crowded=blocked)
    resizes += tuple(
        Resized(name, kept, "pool", f"Makes room: {winner} waits.") for name, (kept, winner) in ways.items()
    )
    if not blocked:
        resizes += _shared_out(future, capacity, seats, resizes, busy, now_s, policy.placement)
    changing = busy | {one.job for one in resizes}
    promised = {request.id: (request.shape, request.seats) for request in choice.starts if request.id not in seats}
    if idle is not capacity:
        resizes, grows = _parted(pool, resizes, idle, policy.placement)
        promised |= grows
        short += tuple(Wait(name, lent_out(pool.jobs[name], its)) for name, (_, its) in grows.items())
    if not (preempts or ways or promised):  # else a job makes room already
        moves = _moved(future, capacity if waiting else idle, changing, waiting, now_s, policy, order)
        if waiting and idle is not capacity:  # lent devices are reclaimed for a waiting job, not for a better placement
            moves, promised = _parted(pool, moves, idle, policy.placement)
        resizes += moves
    then = None
    if idle is not capacity and promised:
        staying = without(future, {name: kept for name, (kept, _) in ways.items()})
        jobs = {name: job for name, job in staying.jobs.items() if name not in {one.job for one in preempts}}
        jobs |= {name: holding(jobs[name], its) for name, its in seats.items() if name in jobs}
        jobs |= {r.job: holding(jobs[r.job], more) for r in resizes if (more := _gained(pool.jobs[r.job], r))}
        then = idle_in(replace(pool, jobs=jobs))
    held_up = moving | {request.id for request in waiting}
    kept = kept_for(choice, begun, line, is_strict=policy.is_strict)
    delayed = [j.not_before_s for j in queue if j.not_before_s > now_s]
    held = (State.DEPLOYING, State.PROCESSING)
    delayed += [j.not_before_s for j in pool.jobs.values() if j.state in held and j.not_before_s > now_s]
    delayed += [at_s for at_s in (choice.wake_s, rested_s(pool.jobs.values(), now_s)) if at_s is not None]
    decided = Plan(
        starts=tuple(Start(job.id, seats[job.id]) for job in queue if job.id in seats),
        preempts=preempts,
        resizes=resizes,
        waits=waits_with_reasons(queue, seats, held_up, pool, idle, now_s, policy.placement, kept) + short,
        wake_s=min(delayed, default=None),
    )
    return _Planned(decided, promised, then)


def _gained(job: Job, change: Resized) -> tuple[Seat, ...]:
    """Return the seats of the change that the job does not hold yet."""
    return tuple((Counter(change.seats) - Counter(m.seat for m in job.gang)).elements())


def _parted(
    pool: Pool, resizes: Sequence[Resized], idle: FreeCapacity, usual: Layout
) -> tuple[tuple[Resized, ...], dict[str, tuple[Shape, tuple[Seat, ...]]]]:
    """Return the changes that are possible now, and for the others the seats to be reclaimed from spot jobs."""
    now: list[Resized] = []
    later: dict[str, tuple[Shape, tuple[Seat, ...]]] = {}
    for one in resizes:
        shape, more = shape_of(pool.jobs[one.job], usual), _gained(pool.jobs[one.job], one)
        if idle.has(shape, more):
            idle.claim(shape, more)
            now.append(one)
        else:
            later[one.job] = shape, more
    return tuple(now), later


def _chosen(
    pool: Pool, now_s: float, policy: Policy, order: Order | None
) -> tuple[list[Job], list[GangRequest], list[GangRequest], PassResult, dict[str, tuple[tuple[Seat, ...], str]]]:
    """Return the queued jobs, the queue, the jobs that still wait, the choice, and the jobs that shrink for it.

    Jobs shrink before any job is preempted.
    """

    def may_change(job: Job) -> bool:
        return _may_change(job, now_s)

    scheduler, queue = scheduled(pool, now_s, policy, order)
    line = scheduler.queue_order()
    kept = make_way(pool, line, may_change) if line else {}
    if kept:
        scheduler, queue = scheduled(without(pool, kept), now_s, policy, order)
    choice = scheduler.decide(now_s)
    if choice.stops:
        more = make_way(pool, line, may_change, {one.winner.id for one in choice.stops})
        if more != kept:
            another, _ = scheduled(without(pool, more), now_s, policy, order)
            milder = another.decide(now_s)
            if len(milder.stops) < len(choice.stops):
                scheduler, choice, kept = another, milder, more
    stopped = {one.victim.id for one in choice.stops}
    kept = {name: seats for name, seats in kept.items() if name not in stopped}
    starting = {request.id for request in choice.starts}
    waiting = [request for request in line if request.id not in starting and scheduler.could_fit(request)]
    return queue, line, waiting, choice, needed(pool, kept, choice.starts)


def _may_change(job: Job, now_s: float) -> bool:
    """Return whether the pool may change the job's size: nothing else is under way, and no work is lost."""
    keeps = job.is_live or job.checkpoint_step is not None
    return job.elastic is not Elastic.OFF and keeps and job.not_before_s <= now_s and is_settled(job)


def _moved(
    pool: Pool,
    capacity: FreeCapacity,
    changing: Collection[str],
    waiting: Sequence[GangRequest],
    now_s: float,
    policy: Policy,
    order: Order | None,
) -> tuple[Resized, ...]:
    """Return the migrations of this pass, which keep the number of learners.

    A learner that slows down the others is moved first. Otherwise a job moves for the first waiting job, or, if none
    waits, to bring its learners closer together. Each job moves only once in a while.
    """

    def may_move(job: Job) -> bool:
        return job.id not in changing and _may_change(job, now_s) and may_move_again(job, now_s)

    def starts_then(then: Pool) -> Collection[str]:
        return {request.id for request in scheduled(then, now_s, policy, order)[0].decide(now_s).starts}

    moves = list(relieved(pool, capacity, may_move, policy.placement))
    if waiting and not moves:
        room = made_room(pool, capacity, waiting, may_move, policy.placement, starts_then)
        moves = [room] if room is not None else []
    elif not moves:
        moves = list(gathered(pool, capacity, may_move, policy.placement))
    return tuple(Resized(one.job, one.seats, "pool", one.why) for one in moves)


def _shared_out(
    pool: Pool,
    capacity: FreeCapacity,
    starts: Mapping[str, tuple[Seat, ...]],
    resizes: Sequence[Resized],
    busy: Collection[str],
    now_s: float,
    usual: Layout,
) -> tuple[Resized, ...]:
    """Distribute the remaining devices among jobs with automatic size."""
    known = {one.job: one.seats for one in resizes}
    taken = [(shape_of(pool.jobs[name]), seats) for name, seats in starts.items()]
    kept: dict[str, tuple[Seat, ...]] = {}
    for name, seats in known.items():
        held = Counter(m.seat for m in pool.jobs[name].gang)
        taken.append((shape_of(pool.jobs[name]), tuple((Counter(seats) - held).elements())))
        kept[name] = tuple((held & Counter(seats)).elements())

    def may_change(job: Job) -> bool:
        return job.id not in known and job.id not in busy and _may_change(job, now_s)

    changes = shared_out(without(pool, kept), taken, capacity, may_change, usual)
    return tuple(Resized(name, seats, "pool") for name, seats in changes.items())


def _preempt(one: Preempted, pool: Pool, policy: Policy, moving: Collection[str]) -> Preempt:
    winner = pool.jobs[one.winner.id]
    victim = pool.jobs[one.victim.id]
    if victim.id in moving:
        why = f"needs {count(winner.spec.gpus_per_learner, unit_of(winner))} on one node; this job fits elsewhere"
    elif winner.priority > victim.priority:
        why = f"has priority {winner.priority}"
    elif policy.order == "fair":
        why = f"takes back for its queue {winner.spec.queue} what {victim.spec.queue} had borrowed of it"
    elif policy.order == "time-slice":
        why = "has its turn"
    elif policy.order in ("las", "gittins", "fair-finish"):
        why = "is ahead in the pool's order"
    else:
        why = "is expected to be much shorter"
    return Preempt(victim.id, winner.id, f"{winner.id} ({winner.owner}) {why}")


def _more(capacity: FreeCapacity, shape: Shape, wished: int, held: Sequence[Seat]) -> tuple[Seat, ...]:
    extra = room(capacity, shape, wished) if wished > 0 else 0
    return (beside(capacity, shape, extra, held) or ()) if extra > 0 else ()


def _resize(
    jobs: Mapping[str, Job], capacity: FreeCapacity, leaving: set[str], now_s: float, usual: Layout, *, is_crowded: bool
) -> tuple[tuple[Resized, ...], tuple[Wait, ...]]:
    resizes: list[Resized] = []
    waits: list[Wait] = []
    for job in sorted(jobs.values(), key=lambda j: (-j.priority, j.submitted_s, j.number)):
        if job.elastic is Elastic.OFF or job.id in leaving or not is_settled(job):
            continue
        held = tuple(m.seat for m in job.gang)
        if job.wish != len(held) and _begins_anew(job, now_s):
            waits.append(Wait(job.id, f"Stays at {count(len(held), 'learner')}: {ANEW}"))
        elif job.wish < len(held):
            resizes.append(Resized(job.id, held[: job.wish], job.wish_by))
        elif job.wish > len(held):
            is_early = job.not_before_s > now_s
            is_shared = job.elastic is Elastic.AUTO
            more = 0 if is_crowded or is_early or is_shared else job.wish - len(held)
            extra = _more(capacity, shape_of(job, usual), more, held)
            if extra:
                last = next((one for one in reversed(job.resizes) if one.before != one.after), None)
                by = "pool" if last is not None and last.by in ("lost", "drain", "pool") else job.wish_by
                resizes.append(Resized(job.id, held + extra, by))
            if len(held) + len(extra) < job.wish and not is_shared:
                waits.append(Wait(job.id, shortfall(job, len(held) + len(extra), is_crowded=is_crowded)))
    return tuple(resizes), tuple(waits)


def _begins_anew(job: Job, now_s: float) -> bool:
    """Return whether another size would discard the job's work, and that work is much.

    A job whose learners share nothing is not protected if that was detected in its first minute: restarting it costs
    less than the devices that it would hold.
    """
    if not job.is_plain or job.checkpoint_step is not None:
        return False
    did_s = now_s - (now_s if job.started_s is None else job.started_s)
    return not (job.wish_by == "program" and job.wish < len(job.gang) and did_s < BARELY_BEGUN_S)
