"""Single plans for odd pools: nothing is given twice, no device is idle without reason, and reasons name true holders.

Pools have devices of several kinds, nodes with CPUs and memory, and refused seats. Jobs leave, change their size, move,
and are lent devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random
from unittest.mock import patch

import pytest

from dlaas_server.core.elasticity.resize import reduced_to
from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized
from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.placement.gang_placement import FreeCapacity, beside, free_of, place, shape_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning import plan as plan_module
from dlaas_server.core.planning.decisions import Plan, Wait
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.plan_state import PlanState, gained_seats
from dlaas_server.core.planning.refused_seats import RefusedSeat, left_out
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.policy import Policy, Share
from jupyter_dlaas.wire.protocol import Elastic, Placement
from tests.core.builders import job, node, pool, training
from tests.core.streams import SEEDS
from tests.core.test_idle_devices import halting
from tests.selection import each_nth

GIB = 2**30
NOW_S = 1e4
SIZES = ((1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 0), (2, 0), (1, 3))
"""Learners, GPUs of each."""
FAILED_ONCE = (294, 404, 1050, 1331, 1333, 1821, 1944, 1948, 2211, 2577)
PLANS = 250


class OddPool:
    """A random pool, some of whose jobs are leaving or changing."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.has_cpus, self.spot = chance.random() < 0.8, chance.choice([0.0, 0.0, 0.4])
        self.kinds = chance.choice([("GPU",), ("P100", "A100")])
        nodes = [self.node(f"n{i}") for i in range(chance.choice([2, 3, 4]))]
        self.policy = Policy(
            order=chance.choice(sorted(ORDERS)),
            placement=chance.choice([Layout.PACK, Layout.PACK, *Layout]),
            shares={queue: Share(guaranteed=chance.choice([0, 1, 3])) for queue in "ab"},
            age_s=chance.choice([50.0, 3600.0, 36000.0]),
            preempts=chance.random() < 0.8,
        )
        self.capacity = free_of(nodes, ())
        jobs = [one for number in range(1, chance.choice([3, 5, 9, 13])) if (one := self.running(number)) is not None]
        jobs += [self.job(number) for number in range(20, chance.choice([23, 25, 28, 32]))]
        lengths = {one.id: chance.choice([None, 10.0, 1000.0, 1e5]) for one in jobs}
        known = {name: Known(length_s=s, restart_s=chance.choice([0.0, 1.0, 30.0])) for name, s in lengths.items()}
        self.picture = replace(pool(left_out(nodes, self.refused(nodes)), *jobs), known=known)

    def node(self, name: str) -> Node:
        """Return a node with up to four devices, mostly of one kind."""
        chance = self.chance
        cpus = chance.choice([4.0, 8.0, 12.0]) if self.has_cpus else 64.0
        memory, kind = chance.choice([8, 16]) * GIB, chance.choice(self.kinds)
        found = node(name, chance.choice([0, 1, 2, 2, 4]), cpus=cpus, memory=memory, kind=kind)
        if chance.random() < 0.1:
            mixed = (replace(device, kind=chance.choice(self.kinds)) for device in found.devices)
            found = replace(found, devices=tuple(mixed))
        return found

    def refused(self, nodes: list[Node]) -> dict[str, RefusedSeat]:
        """Return some devices, and now and then a whole node, that refused a learner."""
        keys = [(n.name, device) for n in nodes for device in ("", *(d.id for d in n.devices))]
        out = [key for key in keys if self.chance.random() < (0.06 if key[1] else 0.03)]
        return {f"{name}/{device}": RefusedSeat(node=name, device=device, at_s=NOW_S - 3.0) for name, device in out}

    def job(self, number: int) -> Job:
        """Return a waiting job."""
        chance = self.chance
        least, gpus = chance.choice(SIZES)
        one = job(
            number,
            (least, least + chance.choice([0, 0, 1, 2])),
            gpus=gpus,
            priority=chance.choice([0, 0, 0, 1, 5]),
            elastic=chance.choice([Elastic.OFF, Elastic.MANUAL, Elastic.AUTO]),
            cpus=chance.choice([0.0, 1.0, 2.0, 3.5, 6.0]) if self.has_cpus else 0.0,
            memory=chance.choice([0, 0, 3, 6]) * GIB if self.has_cpus else 0,
            submitted_s=NOW_S - chance.choice([1.0, 30.0, 300.0, 3000.0]),
        )
        spec = replace(
            one.spec,
            gpu_kind=chance.choice([None, None, *self.kinds]) if gpus else None,
            placement=chance.choice([None, None, Placement.PACK, Placement.SPREAD]),
            queue=chance.choice("ab"),
            spot=chance.random() < self.spot,
        )
        return replace(one, spec=spec)

    def running(self, number: int) -> Job | None:
        """Return a job that runs, leaves or changes; None if it does not fit."""
        chance, one = self.chance, self.job(number)
        shape = shape_of(one, self.policy.placement)
        count = self.capacity.fit_count(shape, chance.randint(one.spec.learners_min, one.spec.learners_max))
        seats = place(self.capacity, shape, count) if count >= one.spec.learners_min else None
        if seats is None:
            return None
        since_s = NOW_S - chance.choice([1.0, 100.0, 3000.0])
        one = replace(training(one, *seats), seated_s=since_s, is_live=chance.random() < 0.5)
        return self.changing(replace(one, checkpoint_step=chance.choice([None, 1, 1])))

    def changing(self, one: Job) -> Job:
        """Return the job as it is, or while it leaves, shrinks, grows or moves."""
        chance, held = self.chance, tuple(member.seat for member in one.gang)
        since_s = NOW_S - chance.choice([0.5, 10.0, 100.0])
        way = chance.choice(["stays", "halts", "halts", "preempted", "shrinks", "grows", "moves"])
        if way == "halts":
            return halting(one)
        if way == "preempted":
            return preempted(one, "job-99 (ana) has priority 5", since_s)[0]
        if way == "shrinks" and len(held) > one.spec.learners_min:
            why = chance.choice(["", "Makes room for the waiting job job-99."])
            return resized(one, held[: one.spec.learners_min], "pool" if why else "ana", since_s, why)[0]
        kept = held[1:] if way == "moves" else held
        if way == "moves" or (way == "grows" and len(held) < one.spec.learners_max):
            more = beside(self.capacity, shape_of(one, self.policy.placement), 1, held)
            if more is not None:
                return resized(one, kept + more, "pool" if way == "moves" else "ana", since_s)[0]
        return one


def planned(odd: OddPool) -> tuple[Plan, list[PlanState]]:
    """Return the plan, and what its phases decided for ordinary jobs and for spot jobs."""
    states: list[PlanState] = []
    after_phases = plan_module._after_phases

    def noted(*args: object) -> PlanState:
        states.append(after_phases(*args))  # type: ignore[arg-type]
        return states[-1]

    with patch.object(plan_module, "_after_phases", noted):
        return plan(odd.picture, NOW_S, odd.policy), states


def gives_nothing_twice(picture: Pool, policy: Policy, found: Plan) -> None:
    """Check that devices, CPUs and memory of new seats are idle, and of the requested kind."""
    jobs, idle = picture.jobs, free_of(picture.nodes, picture.jobs.values())
    kinds = {device.id: device.kind for node in picture.nodes for device in node.devices}
    gained = [(start.job, start.seats) for start in found.starts]
    gained += [(one.job, gained_seats(jobs[one.job], one)) for one in found.resizes]
    for name, seats in gained:
        shape = shape_of(jobs[name], policy.placement)
        assert all(len(seat.devices) == shape.gpus for seat in seats)
        assert shape.gpu_kind is None or {kinds[d] for seat in seats for d in seat.devices} <= {shape.gpu_kind}
        assert idle.has(shape, seats), (name, seats)
        idle.claim(shape, seats)


def uses_idle_devices(state: PlanState, policy: Policy) -> None:
    """Check that a job which fits on idle devices has a reason to wait."""
    for wait in state.waits:
        least = state.pool.jobs[wait.job].spec.learners_min
        if "kept for " in wait.reason:
            names_a_true_holder(state, policy, wait)
        elif state.idle.fit_count(state.shape_of(wait.job), least) >= least:
            assert "Waits for devices" in wait.reason or "that spot jobs give back" in wait.reason, wait


def names_a_true_holder(state: PlanState, policy: Policy, wait: Wait) -> None:
    """Check that the job would fit without what is kept for the named one, and does not fit beside that."""
    kept, rest = state.immediate.kept, state.immediate.rest or state.idle

    def fits(*givers: str) -> bool:
        capacity, least = FreeCapacity(free.copy() for free in rest), state.pool.jobs[wait.job].spec.learners_min
        for shape, seat in (part for giver in {wait.job, *givers} for part in kept.get(giver, ())):
            capacity.give(shape, (seat,))
        return capacity.fit_count(state.shape_of(wait.job), least) >= least

    holder = wait.reason.split("kept for ")[1].split(",")[0]
    assert holder not in (wait.job, *state.starts), wait
    if "which goes first" in wait.reason:
        assert fits(), wait
        assert policy.is_strict or (state.result.reserved is not None and holder == state.result.reserved.id), wait
        return
    others = [name for name in kept if name not in (holder, wait.job)]
    beside_it = [some for n in range(len(others) + 1) for some in combinations(others, n)]
    assert any(fits(holder, *some) and not fits(*some) for some in beside_it), (wait, kept)


def promises_hold(state: PlanState) -> None:
    """Check that chosen jobs which do not start yet can start once all have left that leave by now."""
    after = reduced_to(state.future, {name: kept for name, (kept, _) in state.shrinks.items()})
    leaving = {preempt.job for preempt in state.preempts}
    capacity = free_of(after.nodes, [one for one in after.jobs.values() if one.id not in leaving] + [*after.taken])
    for name, seats in state.starts.items():
        capacity.claim(state.shape_of(name), seats)
    for change in state.resizes:
        capacity.claim(state.shape_of(change.job), gained_seats(state.pool.jobs[change.job], change))
    for name, (shape, seats) in state.reserved.items():
        assert capacity.has(shape, seats), (name, seats)
        capacity.claim(shape, seats)


def stops_none_for_a_start(found: Plan) -> None:
    """Check that no job is stopped or shrinks for one that starts on idle devices."""
    winners = [stop.winner for stop in found.preempts]
    winners += [one.why.rpartition(" ")[2][:-1] for one in found.resizes if "for the waiting job" in one.why]
    assert not {start.job for start in found.starts}.intersection(winners), found


def seeds(first: int) -> Iterator[int]:
    yield from range(first, first + PLANS * SEEDS)
    yield from FAILED_ONCE if first == 0 else ()


@pytest.mark.parametrize("first", each_nth(range(0, 20 * PLANS, PLANS), 20))
def test_odd_pools_leave_nothing_idle_without_a_true_reason(first: int) -> None:
    for seed in seeds(first):
        odd = OddPool(seed)
        try:
            found, states = planned(odd)
            gives_nothing_twice(odd.picture, odd.policy, found)
            stops_none_for_a_start(found)
            for state in states:
                uses_idle_devices(state, odd.policy)
                promises_hold(state)
        except Exception as error:
            error.add_note(f"OddPool({seed}), {odd.policy.order}")
            raise
