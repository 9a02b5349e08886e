"""Phases of a plan, in order. Each adds its decisions to the `PlanState`.

1. `schedule`: jobs that start, jobs preempted for them, and elastic jobs that shrink for them
2. `start`: chosen jobs that can start on idle devices at once; others keep their devices reserved
3. `grow_starts`: more learners for starting jobs, if no job waits
4. `resize`: sizes that owners ask for, and the shrinks of the first phase
5. `redistribute`: remaining devices among jobs with automatic size, if no job waits
6. `defer_growth`: growth onto lent devices waits until spot jobs give these back
7. `migrate`: moves of running jobs that make room or bring learners together
8. `explain`: wait reasons, and the time of the next plan
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from dlaas_server.core.elasticity.resize import may_change, redistributed, reduced_to, shrinks_for, used_shrinks
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, is_settled
from dlaas_server.core.model.phrases import count, unit_of
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.placement.gang_placement import beside, fit_count
from dlaas_server.core.planning.decisions import Preempt, Resized, Wait
from dlaas_server.core.planning.immediate_start import held_devices, immediate_starts
from dlaas_server.core.planning.plan_state import PlanState, gained_seats
from dlaas_server.core.planning.scheduler_snapshot import scheduler_of
from dlaas_server.core.planning.wait_reasons import lent_out, shortfall, waits_with_reasons
from dlaas_server.core.rebalancing.migration import defragmented, gathered, may_move_again, relieved, rested_s
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.pass_result import PassResult, Preempted
from dlaas_server.core.scheduling.scheduler import Scheduler
from dlaas_server.core.spot.spot_scheduler import SpotScheduler
from jupyter_dlaas.wire.protocol import Elastic, State

__all__ = ["PHASES", "RESTARTS_FROM_BEGINNING"]

BARELY_BEGUN_S: Final = 60.0
RESTARTS_FROM_BEGINNING: Final = (
    "another size would restart it from the beginning, since it has no checkpoint. To do so, halt and resume it."
)


def schedule(state: PlanState) -> None:
    """Choose the jobs that start as if leaving jobs had left. Jobs shrink before any job is preempted.

    A job that would shrink for one job and be preempted for another does not shrink: it leaves all its devices at once,
    so the next plan could not know which of them were for whom.
    """
    whole: set[str] = set()
    while True:
        scheduler, queue, requests, result, kept = _decide(state, whole)
        stopped = {one.victim.id for one in result.stops}
        seats = {request.id: (request.shape, request.seats) for request in result.starts}
        waiting = [request for request in requests if request.id not in seats and scheduler.could_fit(request)]
        shrinks = used_shrinks(state.future, kept, seats, scheduler.capacity)
        leaves_twice = stopped & shrinks.keys()
        if not leaves_twice:
            break
        whole |= leaves_twice
    positions = {request.id: position for position, request in enumerate(requests, start=1)}
    queue.sort(key=lambda job: (positions.get(job.id, len(positions) + 1), job.number))
    state.queue, state.requests, state.waiting, state.result = queue, requests, waiting, result
    state.shrinks, state.unchosen = shrinks, scheduler.capacity
    state.preempts = tuple(_preempt(one, state, seats) for one in result.stops)


def _decide(
    state: PlanState, whole: Collection[str]
) -> tuple[Scheduler | SpotScheduler, list[Job], list[GangRequest], PassResult, dict[str, tuple[Seat, ...]]]:
    """Return a scheduler, the queued jobs, their requests, the decisions, and the seats that shrinking jobs keep.

    `whole`: jobs that do not shrink.
    """
    future, now_s, policy, order = state.future, state.now_s, state.policy, state.order

    def may_shrink(job: Job) -> bool:
        return job.id not in whole and may_change(job, now_s)

    scheduler, queue = scheduler_of(future, now_s, policy, order)
    requests = scheduler.queue_order()
    kept = shrinks_for(future, requests, may_shrink) if requests else {}
    if kept:
        scheduler, queue = scheduler_of(reduced_to(future, kept), now_s, policy, order)
    result = scheduler.decide(now_s)
    if result.stops:
        more = shrinks_for(future, requests, may_shrink, {preempted.winner.id for preempted in result.stops})
        if more != kept:
            another, _ = scheduler_of(reduced_to(future, more), now_s, policy, order)
            milder = another.decide(now_s)
            if len(milder.stops) < len(result.stops):
                scheduler, result, kept = another, milder, more
    return scheduler, queue, requests, result, kept


def start(state: PlanState) -> None:
    """Assign idle devices to the chosen jobs. Those that cannot start at once get their seats reserved."""
    queue, policy = state.requests, state.policy
    state.immediate = immediate_starts(
        state.result, queue, state.idle, state.capacity, state.unchosen, state.now_s, is_strict=policy.is_strict
    )
    later = state.immediate.later
    state.reserved = {one.id: (one.shape, later[one.id]) for one in state.result.starts if one.id in later}
    kept = {name: seats for name, (seats, _) in state.shrinks.items()}
    state.shrinks = used_shrinks(state.future, kept, state.reserved, state.unchosen)
    if state.immediate.differs:
        could_fit = {one.id for one in (*state.result.starts, *state.waiting)} - state.starts.keys() - later.keys()
        state.waiting = [request for request in queue if request.id in could_fit]
        _withdraw_preemptions(state)
    state.is_blocked = bool(state.waiting) or any(request.id in later for request in queue)


def _withdraw_preemptions(state: PlanState) -> None:
    """Withdraw preemptions of jobs whose seats no job uses, since jobs got other seats than the chosen ones."""
    capacity, chosen = state.unchosen, {request.id for request in state.result.starts}
    used: list[Preempt] = []
    for preempt in state.preempts:
        shape, held = state.shape_of(preempt.job), [member.seat for member in state.pool.jobs[preempt.job].gang]
        if preempt.job in chosen or not capacity.has(shape, held):
            used.append(preempt)
        else:
            capacity.claim(shape, held)
    state.preempts = tuple(used)


def grow_starts(state: PlanState) -> None:
    """Add learners to starting jobs up to their wish, if no job waits for the devices."""
    if not state.is_blocked:
        for job in state.queue:
            seats = state.immediate.seats.get(job.id)
            if seats is not None:
                more = _beside(state.idle, state.shape_of(job.id), state.size.growth(job, len(seats)), seats)
                state.immediate.seats[job.id] = seats + more
    state.claim_starts()


def resize(state: PlanState) -> None:
    """Change the sizes of running jobs: as their owners ask, and of those that make room for a waiting job."""
    leaving = {one.job for one in state.preempts} | state.shrinks.keys()
    jobs = state.pool.jobs.values()
    resizable = [j for j in jobs if j.elastic is not Elastic.OFF and j.id not in leaving and is_settled(j)]
    for job in sorted(resizable, key=lambda j: (-j.priority, j.submitted_s, j.number)):
        _resize_to_wish(job, state)
    state.changes += [
        Resized(name, kept, "pool", f"Makes room for the waiting job {winner}.")
        for name, (kept, winner) in state.shrinks.items()
    ]


def _resize_to_wish(job: Job, state: PlanState) -> None:
    held = tuple(m.seat for m in job.gang)
    growth = state.size.growth(job, len(held))
    if (growth or job.wish < len(held)) and _would_discard_work(job, state.now_s):
        state.shortfalls.append(Wait(job.id, f"Stays at {count(len(held), 'learner')}: {RESTARTS_FROM_BEGINNING}"))
    elif job.wish < len(held):
        state.changes.append(Resized(job.id, held[: job.wish], job.wish_by))
    elif job.wish > len(held):
        is_early = job.not_before_s > state.now_s
        is_shared = job.elastic is Elastic.AUTO  # see `redistribute`
        missing = 0 if state.is_blocked or is_early or is_shared else growth
        extra = _beside(state.capacity, state.shape_of(job.id), missing, held)
        if extra:
            last = next((resize for resize in reversed(job.resizes) if resize.before != resize.after), None)
            by = "pool" if last is not None and last.by in ("lost", "drain", "pool") else job.wish_by
            state.changes.append(Resized(job.id, held + extra, by))
        has = len(held) + len(extra)
        if has < job.wish and not is_shared:
            state.shortfalls.append(Wait(job.id, shortfall(job, has, len(held) + growth, is_blocked=state.is_blocked)))


def redistribute(state: PlanState) -> None:
    """Distribute the remaining devices among jobs with automatic size, if no job waits for them."""
    if state.is_blocked:
        return
    jobs, taken = state.pool.jobs, [(state.shape_of(name), seats) for name, seats in state.starts.items()]
    kept: dict[str, tuple[Seat, ...]] = {}
    for change in state.changes:
        taken.append((state.shape_of(change.job), gained_seats(jobs[change.job], change)))
        held = Counter(m.seat for m in jobs[change.job].gang)
        kept[change.job] = tuple((held & Counter(change.seats)).elements())
    changing = _changing(state)

    def may_join(job: Job) -> bool:
        return job.id not in changing and may_change(job, state.now_s)

    changes = redistributed(reduced_to(state.future, kept), taken, state.capacity, may_join, state.policy.placement)
    state.changes += [Resized(name, seats, "pool") for name, seats in changes.items()]


def defer_growth(state: PlanState) -> None:
    """Apply the changes that idle devices suffice for. The others wait for spot jobs to give back devices."""
    for name in state.add_possible(state.changes):
        state.shortfalls.append(Wait(name, lent_out(state.pool.jobs[name], state.reserved[name][1])))


def migrate(state: PlanState) -> None:
    """Move running jobs, which keep their number of learners, unless a job makes room already.

    A learner that slows down the others is moved first. Otherwise a job moves for the first waiting job, or, if none
    waits, to bring its learners closer together. Each job moves only once in a while. Lent devices are reclaimed for a
    waiting job, not for a better placement.
    """
    if state.preempts or state.shrinks or state.reserved:
        return
    future, now_s, policy, waiting = state.future, state.now_s, state.policy, state.waiting
    changing = _changing(state)

    def may_move(job: Job) -> bool:
        return job.id not in changing and may_change(job, now_s) and may_move_again(job, now_s)

    def starts_then(then: Pool) -> Collection[str]:
        return {request.id for request in scheduler_of(then, now_s, policy, state.order)[0].decide(now_s).starts}

    capacity = state.capacity if waiting else state.idle
    moves = list(relieved(future, capacity, may_move, policy.placement))
    if waiting and not moves:
        move = defragmented(future, capacity, waiting, may_move, policy.placement, starts_then)
        moves = [] if move is None else [move]
    elif not moves:
        moves = list(gathered(future, capacity, may_move, policy.placement))
    changes = [Resized(move.job, move.seats, "pool", move.why) for move in moves]
    if waiting:
        state.add_possible(changes)
    else:
        state.resizes += changes  # their seats are taken from the idle ones already


def explain(state: PlanState) -> None:
    """Give each waiting job its reason, and set the time of the next plan if no event occurs before."""
    pool, now_s, policy = state.pool, state.now_s, state.policy
    could_fit = {one.id for one in (*state.result.starts, *state.waiting)}
    held = held_devices(state.result, state.immediate, state.requests, is_strict=policy.is_strict)
    state.waits = waits_with_reasons(
        state.queue, state.starts, could_fit, pool, state.idle, now_s, policy.placement, held
    )
    training = [job for job in pool.jobs.values() if job.state in (State.DEPLOYING, State.PROCESSING)]
    times = [job.not_before_s for job in (*state.queue, *training) if job.not_before_s > now_s]
    times += [at_s for at_s in (state.result.wake_s, rested_s(pool.jobs.values(), now_s)) if at_s is not None]
    state.wake_s = min(times, default=None)


PHASES: Final[Sequence[Callable[[PlanState], None]]] = (
    schedule,
    start,
    grow_starts,
    resize,
    redistribute,
    defer_growth,
    migrate,
    explain,
)


def _changing(state: PlanState) -> set[str]:
    """Return the jobs that the plan preempts or changes."""
    preempted = {preempt.job for preempt in state.preempts}
    return preempted | {change.job for change in (*state.changes, *state.resizes)} | state.shrinks.keys()


def _preempt(one: Preempted, state: PlanState, chosen: Collection[str]) -> Preempt:
    winner = state.pool.jobs[one.winner.id]
    victim = state.pool.jobs[one.victim.id]
    order = state.policy.order
    if victim.id in chosen:
        why = f"needs {count(winner.spec.gpus_per_learner, unit_of(winner))} on one node; this job fits elsewhere"
    elif winner.priority > victim.priority:
        why = f"has priority {winner.priority}"
    elif order == "fair":
        why = f"takes back for its queue {winner.spec.queue} what {victim.spec.queue} had borrowed of it"
    elif order == "time-slice":
        why = "has its turn"
    elif order in ("las", "gittins", "fair-finish"):
        why = "is ahead in the pool's order"
    else:
        why = "is expected to be much shorter"
    return Preempt(victim.id, winner.id, f"{winner.id} ({winner.owner}) {why}")


def _beside(capacity: FreeCapacity, shape: Shape, learners: int, held: Sequence[Seat]) -> tuple[Seat, ...]:
    """Take and return seats for up to so many learners, near the seats that the job holds."""
    fitting = fit_count(capacity, shape, learners) if learners > 0 else 0
    return (beside(capacity, shape, fitting, held) or ()) if fitting > 0 else ()


def _would_discard_work(job: Job, now_s: float) -> bool:
    """Return whether another size would discard the job's work, and that work is much.

    A job whose learners share nothing is not protected if that was detected in its first minute: restarting it costs
    less than the devices that it would hold.
    """
    if not job.is_plain or job.checkpoint_step is not None:
        return False
    ran_s = now_s - (now_s if job.started_s is None else job.started_s)
    return not (job.wish_by == "program" and job.wish < len(job.gang) and ran_s < BARELY_BEGUN_S)
