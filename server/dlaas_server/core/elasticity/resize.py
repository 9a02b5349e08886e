"""Changes of size of running jobs: jobs that shrink for waiting ones, and the distribution of idle devices.

`off`: the size never changes. `manual`: the wish holds; the job shrinks below it for a higher priority, or instead of
being preempted. `auto`: grows up to the wish, too, but also shrinks for its own priority, and exchanges devices with
other `auto` jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dlaas_server.core.elasticity.allocation import Gang, Sizes
from dlaas_server.core.elasticity.throughput_curve import fit
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.interruptions import since_s
from dlaas_server.core.model.job import Job, is_settled
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.resources import Loan, Shape
from dlaas_server.core.placement.feasibility import PoolSize
from dlaas_server.core.placement.free_capacity import FreeCapacity, occupied
from dlaas_server.core.placement.gang_placement import place
from dlaas_server.core.placement.shape import Layout, shape_of
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.spot.reclaim import planning_capacity
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import Elastic

__all__ = [
    "after_pending_changes",
    "cost_s",
    "may_change",
    "redistributed",
    "reduced_to",
    "shrinks_for",
    "used_shrinks",
]

REFUSED_MAX: Final = 64
"""Number of request kinds that do not fit after which the rest of the queue is skipped."""
LEAST_GAIN: Final = 1e-3
NOTHING_KNOWN: Final = Known()


def may_change(job: Job, now_s: float) -> bool:
    """Return whether the pool may change the job's size: nothing else is under way, and no work is lost."""
    keeps_work = job.is_live or job.checkpoint_step is not None
    return job.elastic is not Elastic.OFF and keeps_work and job.not_before_s <= now_s and is_settled(job)


def after_pending_changes(pool: Pool) -> Pool:
    """Return the pool after pending changes. Seats that are being released count as free, and are listed as `leaving`.

    Seats that the pool has released for a waiting job come last, those released for the longest first: the job ahead
    keeps them if others begin to leave for a job behind it. Of jobs that began at the same time, the one with the
    fewest such seats comes first, so that a small gang leaves the others together.
    """
    jobs = {name: job for name, job in pool.jobs.items() if not job.members or job.goal is Goal.RUN}
    resized = {j.id: replace(j, members=j.gang) for j in jobs.values() if j.resize is not None}
    changing = {j.id: j for j in pool.jobs.values() if j.members and j.goal is not Goal.RUN} | resized
    given_up = {name: _given_up(pool.jobs[name], resized.get(name)) for name in changing}
    first = sorted(changing, key=lambda name: (_since_s(pool.jobs[name]), len(given_up[name]), name))
    loans = [loan for name in first for loan in given_up[name]]
    loans.sort(key=lambda loan: loan.is_for_waiting)
    return replace(pool, jobs=jobs | resized, leaving=(*pool.leaving, *loans))


def _since_s(job: Job) -> float:
    """Return the time at which the job began to release seats."""
    return job.resize.since_s if job.resize is not None else (since_s(job) or 0.0)


def _given_up(job: Job, after: Job | None) -> list[Loan]:
    """Return the seats that the job holds but not `after` its change of size; None: it leaves.

    On each node, as many of them have CPUs and memory as learners leave: generations may use these one after the other.
    """
    kept = {m.seat for m in after.members} if after is not None else set[Seat]()
    stay = {name: learners for name, _, learners in occupied(after)} if after is not None else {}
    leave = {name: learners - stay.get(name, 0) for name, _, learners in occupied(job)}
    given = [seat for seat in dict.fromkeys(m.seat for m in job.members) if seat.devices and seat not in kept]
    with_devices = Counter(seat.node for seat in given)
    for name in dict.fromkeys(m.seat.node for m in job.members):
        given += [Seat(name)] * (leave[name] - with_devices[name])
    is_for_waiting = job.preempted is not None or (job.resize is not None and bool(job.resize.why))
    shape = shape_of(job)
    loans: list[Loan] = []
    for seat in given:
        freed = shape if leave[seat.node] > 0 else replace(shape, cpus=0.0, memory_bytes=0)
        leave[seat.node] -= 1
        loans.append(Loan(job.id, job.spec.queue, freed, (seat,), is_for_waiting))
    return loans


def shrinks_for(
    pool: Pool, line: Iterable[GangRequest], is_allowed: Callable[[Job], bool], pressed: Collection[str] = ()
) -> dict[str, tuple[Seat, ...]]:
    """Return the seats that elastic jobs keep, so that waiting jobs get their least size, in queue order.

    `pool`: after pending changes. `pressed`: jobs that would otherwise preempt others.
    """
    gangs = [_giving(job, pool.known.get(job.id, NOTHING_KNOWN)) for job in pool.jobs.values() if is_allowed(job)]
    gangs = [gang for gang in gangs if len(gang.seats) > gang.least]
    if not gangs:
        return {}
    capacity = planning_capacity(pool)
    sizes, refused = Sizes(capacity, gangs), set[tuple[Shape, int, int]]()
    for request in line:
        wanted = (request.shape, request.learners, 2 * request.priority + (request.id in pressed))
        if wanted in refused:
            continue
        if sizes.shrink_for(*wanted):
            place(capacity, request.shape, request.learners)
        else:
            refused.add(wanted)
            if len(refused) >= REFUSED_MAX:
                break
    return sizes.changes()


def reduced_to(pool: Pool, kept: Mapping[str, tuple[Seat, ...]]) -> Pool:
    """Return the pool with these jobs reduced to the seats that they keep."""
    jobs, loans = dict(pool.jobs), list(pool.leaving)
    for name, seats in kept.items():
        left, members = Counter(seats), []
        for member in jobs[name].gang:
            if left[member.seat]:
                left[member.seat] -= 1
                members.append(member)
        jobs[name] = replace(jobs[name], members=tuple(members))
        loans += (replace(loan, is_for_waiting=True) for loan in _given_up(pool.jobs[name], jobs[name]))
    return replace(pool, jobs=jobs, leaving=tuple(loans))


def used_shrinks(
    pool: Pool,
    kept: Mapping[str, tuple[Seat, ...]],
    waiting: Mapping[str, tuple[Shape, Sequence[Seat]]],
    capacity: FreeCapacity,
) -> dict[str, tuple[tuple[Seat, ...], str]]:
    """Return only the shrinks that waiting jobs need: job -> seats that it keeps, job that it shrinks for.

    `waiting`: job -> seats that it gets then. `capacity`: free capacity without these. Shrunk seats that no job needs
    are taken from it.
    """
    takers: dict[tuple[str, str], str] = {}
    for name, (shape, seats) in waiting.items():
        for seat in seats:
            for device in seat.devices if shape.is_plain and shape.gpus else ("", *seat.devices):
                takers.setdefault((seat.node, device), name)
    out: dict[str, tuple[tuple[Seat, ...], str]] = {}
    for name, seats in sorted(kept.items()):
        left, stay, given = Counter(seats), [], []
        shape = shape_of(pool.jobs[name])
        for member in pool.jobs[name].gang:
            seat = member.seat
            left[seat] -= 1
            taker = _taker(takers, shape, seat, capacity) if left[seat] < 0 else None
            if taker is None:
                stay.append(seat)
            else:
                given.append(taker)
        if given:
            out[name] = tuple(stay), given[0]
    return out


def _taker(takers: Mapping[tuple[str, str], str], shape: Shape, seat: Seat, capacity: FreeCapacity) -> str | None:
    """Return the job that needs this seat or a part of it; None, and the seat taken, if none does."""
    node = capacity.named(seat.node)
    if node is not None:
        usable = Seat(seat.node, tuple(device for device in seat.devices if device in node.order))
        if capacity.has(shape, (usable,)):
            capacity.claim(shape, (usable,))
            return None
    return next((takers[seat.node, d] for d in (*seat.devices, "") if (seat.node, d) in takers), None)


def redistributed(
    pool: Pool,
    taken: Iterable[tuple[Shape, Sequence[Seat]]],
    free: FreeCapacity,
    is_allowed: Callable[[Job], bool],
    usual: Layout = Layout.PACK,
) -> dict[str, tuple[Seat, ...]]:
    """Return new seats of `auto` jobs: idle devices go where they gain most, and between jobs where that clearly pays.

    Idle devices cost nothing: up to its wish a job may try them, whatever its estimated throughput.

    `pool`: after pending changes, but without the seats that are `taken` now. A job grows onto seats that another job
    releases once they are `free`.
    """
    size = PoolSize.of(pool.nodes)
    gangs = [
        _taking(job, pool.known.get(job.id, NOTHING_KNOWN), size, usual)
        for job in pool.jobs.values()
        if job.elastic is Elastic.AUTO and is_allowed(job)
    ]
    if not gangs:
        return {}
    sizes = Sizes(planning_capacity(pool), [replace(g, cost_s=0.0, rates=_rising(g)) for g in gangs])
    for shape, seats in taken:
        sizes.capacity.claim(shape, seats)
    sizes.grow()
    sizes = Sizes(sizes.capacity, gangs, {name: state.seats for name, state in sizes.states.items()})
    while sizes.exchange():
        sizes.grow()
    changes: dict[str, tuple[Seat, ...]] = {}
    for name, seats in sorted(sizes.changes().items()):
        held = sizes.states[name].gang.seats
        shape, more = sizes.states[name].gang.shape, tuple((Counter(seats) - Counter(held)).elements())
        if not more:
            changes[name] = seats
        elif len(seats) > len(held) and free.has(shape, more):
            free.claim(shape, more)
            changes[name] = held + more
    return changes


def _rising(gang: Gang) -> dict[int, float]:
    """Return the rates, raised so that each is a little above those of all smaller sizes."""
    rising, best = {}, 0.0
    for size, rate in sorted(gang.rates.items()):
        rising[size] = best = max(rate, best * (1 + LEAST_GAIN))
    return rising


def _giving(job: Job, known: Known) -> Gang:
    """Return a job as a possible donor. Priorities are doubled, and `manual` adds 1, half a priority level."""
    return _gang(job, known, len(job.gang), priority=2 * job.priority + (job.elastic is not Elastic.AUTO))


def _taking(job: Job, known: Known, size: PoolSize, usual: Layout) -> Gang:
    held = len(job.gang)
    return _gang(job, known, held + size.growth(job, held), usual, priority=job.priority)


def _gang(job: Job, known: Known, most: int, usual: Layout = Layout.PACK, *, priority: int) -> Gang:
    held = tuple(m.seat for m in job.gang)
    least = min(job.spec.learners_min, len(held))
    # Until measurements exist, each learner is assumed to add as much as the first.
    speed = fit(job.search.points)
    rates = {k: speed.rate(k) if speed else float(k) for k in range(least, most + 1)}
    left_s = None
    if known.length_s is not None and held:
        left_s = max(known.length_s - known.executed_s, 0.0) * rates[len(held)] / rates[least]
    return Gang(
        id=job.id,
        number=job.number,
        shape=shape_of(job, usual),
        rates=rates,
        least=least,
        seats=held,
        priority=priority,
        left_s=left_s,
        cost_s=cost_s(job, known),
    )


def cost_s(job: Job, known: Known) -> float:
    """Return the cost of a change: the measured pause if the job changes while it trains, else its restart cost."""
    return job.search.idle_s if job.is_live else known.restart_s
