"""Planning pass over a pool: starts, preemptions, changes of size, and wait reasons.

Each waiting job first gets its least size, in the order of the pool's policy (`scheduler.py`). The remaining devices go
to jobs with larger wishes. A waiting gang takes nothing from jobs behind it, but no job grows while another one waits.
Jobs above their least size shrink for waiting jobs before any job is preempted (`resize.py`). The steps are listed in
`phases.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from dlaas_server.core.elasticity.resize import may_change
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count, unit_of
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.planning.decisions import Plan, Preempt, Resized, Wait
from dlaas_server.core.planning.phases import PHASES
from dlaas_server.core.planning.plan_state import PlanState
from dlaas_server.core.planning.wait_reasons import SPOT
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.spot.reclaim import PROMISED, Reclaim, loans_of, with_seats

__all__ = ["DEFAULT", "plan"]

DEFAULT: Final = Policy()


def plan(pool: Pool, now_s: float, policy: Policy = DEFAULT, order: Order | None = None) -> Plan:
    """Return the plan for the whole pool. Pure: the listing order of the pool does not matter.

    `order`: state that the policy's order learned from finished jobs; None: none yet. Ordinary jobs are planned first,
    as if nothing were lent to spot jobs (`spot_scheduler.py`). Devices that they need are reclaimed from spot jobs, and
    spot jobs are planned on what is left.
    """
    spot = {name: job for name, job in pool.jobs.items() if job.spec.spot}
    if not spot:
        return _after_phases(pool, now_s, policy, order).plan()
    loans = loans_of(spot.values(), lambda job: may_change(job, now_s))
    ordinary = {name: job for name, job in pool.jobs.items() if name not in spot}
    state = _after_phases(replace(pool, jobs=ordinary, lent=loans), now_s, policy, order)
    reclaims = state.reclaims(loans, spot)
    leaving = {name for name, reclaim in reclaims.items() if reclaim.is_due}
    new_seats = state.new_seats()
    taken = [
        with_seats(job, new_seats.get(name, ()), PROMISED if name in state.reserved else -1)
        for name, job in ordinary.items()
    ]
    taken += [spot[name] for name in reclaims if name in leaving]
    staying: dict[str, Job] = {name: job for name, job in spot.items() if name not in leaving}
    spot_plan = _after_phases(replace(pool, jobs=staying, taken=tuple(taken)), now_s, policy, None).plan()
    return _combined(pool, state.plan(), reclaims.values(), spot_plan, policy.spot_notice_s)


def _after_phases(pool: Pool, now_s: float, policy: Policy, order: Order | None) -> PlanState:
    state = PlanState.of(pool, now_s, policy, order)
    for phase in PHASES:
        phase(state)
    return state


def _combined(pool: Pool, ordinary: Plan, reclaims: Collection[Reclaim], spot: Plan, notice_s: float) -> Plan:
    """Combine the plan for ordinary jobs, the resulting reclaims from spot jobs, and the plan for spot jobs."""
    stops: list[Preempt] = []
    shrinks: list[Resized] = []
    givers: dict[str, list[str]] = {}
    for reclaim in reclaims:
        job, winner = pool.jobs[reclaim.job], pool.jobs[reclaim.winner]
        devices, goes = count(reclaim.given, unit_of(job)), "goes" if reclaim.given == 1 else "go"
        what = f"{devices} {goes} back to {winner.owner}'s {winner.id}"
        givers.setdefault(winner.id, []).append(f"The spot job {job.id} gives {devices} back")
        if not reclaim.is_due:
            continue
        if reclaim.kept:
            shrinks.append(Resized(job.id, reclaim.kept, "pool", f"It is a spot job: {what}.", notice_s))
        else:
            stops.append(Preempt(job.id, winner.id, what, notice_s))
    wakes = [at_s for at_s in (ordinary.wake_s, spot.wake_s) if at_s is not None]
    return Plan(
        starts=ordinary.starts + spot.starts,
        preempts=(*ordinary.preempts, *stops, *spot.preempts),
        resizes=(*ordinary.resizes, *shrinks, *spot.resizes),
        waits=_combined_waits(ordinary, spot, givers),
        wake_s=min(wakes, default=None),
    )


def _combined_waits(ordinary: Plan, spot: Plan, givers: dict[str, list[str]]) -> tuple[Wait, ...]:
    """Return the waits of both plans in one queue, in which spot jobs come behind all others.

    `givers`: job -> sentences about spot jobs that give back devices for it.
    """
    ahead = sum(1 for wait in ordinary.waits if wait.is_queued)
    of = ahead + sum(1 for wait in spot.waits if wait.is_queued)
    waits = [
        replace(
            wait,
            of=of if wait.is_queued else 0,
            reason=" ".join((wait.reason, *(f"{sentence}." for sentence in givers.get(wait.job, ())))),
        )
        for wait in ordinary.waits
    ]
    waits += [
        replace(wait, place=wait.place + ahead, of=of, reason=f"{wait.reason} {SPOT}") if wait.is_queued else wait
        for wait in spot.waits
    ]
    return tuple(waits)
