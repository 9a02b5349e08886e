"""Odd requests and settings in random streams: no job is stuck, no device idle without reason, no reason untrue."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random

from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.placement.feasibility import why_never
from dlaas_server.core.placement.gang_placement import free_of, shape_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning.decisions import Plan
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.plan_state import gained_seats
from dlaas_server.core.planning.pruning import pruned
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.policy import Policy, Share
from jupyter_dlaas.wire.protocol import Elastic, Placement
from tests.core.builders import job
from tests.core.streams import SEEDS
from tests.core.test_idle_devices import PoolRun

SIZES = ((1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 0))
"""Learners, GPUs of each."""
LARGEST = 1_000_000
GIB = 2**30
FAILED_ONCE = (53, 580)
HOLDS = re.compile(r"(job-\d+) holds (\d+)")


def shares(chance: Random) -> dict[str, Share]:
    """Return shares of some queues: none, all devices and more, and weights at their bounds."""
    return {
        queue: Share(guaranteed=chance.choice([0, 0, 1, 2, 5]), weight=chance.choice([0.001, 1.0, 1e6]))
        for queue in "ab"
        if chance.random() < 0.7
    }


@dataclass
class OddRun(PoolRun):
    """A pool whose nodes are cordoned, whose devices fail, whose policy changes, and whose jobs request odd things."""

    cordoned: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    """Devices out of service."""
    has_cpus: bool = False
    """True if nodes have CPUs and memory, and some jobs request them."""
    drains: bool = False
    spot: float = 0.0
    is_open: bool = True
    """False: nothing arrives any more, and nothing stays cordoned."""

    def picture(self) -> Pool:
        picture = super().picture()
        return replace(picture, nodes=tuple(self.in_force(node) for node in picture.nodes))

    def in_force(self, node: Node) -> Node:
        devices = (replace(d, out_of_service="suspect" if d.id in self.suspects else None) for d in node.devices)
        node = replace(node, devices=tuple(devices))
        if self.has_cpus:
            node = replace(node, cpus=4.0 * len(node.devices), memory_bytes=16 * GIB)
        is_cordoned = node.name in self.cordoned
        return replace(node, cordoned="cordoned by ana", drains=self.drains) if is_cordoned else node

    def arrive(self, number: int) -> None:
        chance = self.chance
        for n in range(chance.choice([1, 1, 1, 1, 12])):
            least, gpus = chance.choice(SIZES)
            one = job(
                number * 20 + n,
                (least, chance.choice([least, least, least + 2, 100_000])),
                gpus=gpus,
                priority=chance.choice([0, 0, 0, LARGEST, -LARGEST]),
                elastic=chance.choice([Elastic.OFF, Elastic.MANUAL, Elastic.AUTO]),
                submitted_s=self.now_s,
                cpus=chance.choice([0.0, 2.0, 6.0]) if self.has_cpus else 0.0,
                memory=chance.choice([0, 6 * GIB]) if self.has_cpus else 0,
                placement=chance.choice([Placement.PACK, Placement.SPREAD]),
            )
            one = replace(one, spec=replace(one.spec, queue=chance.choice("abc"), spot=chance.random() < self.spot))
            if why_never(self.picture().nodes, shape_of(one), least, "GPU") is None:
                self.jobs[one.id] = one

    def happens(self) -> None:
        chance, policy = self.chance, self.policy
        if not self.is_open:
            self.cordoned = self.suspects = frozenset()
        elif chance.random() < 0.15:
            names = (f"n{i}" for i in range(len(self.nodes)))
            self.cordoned, self.drains = frozenset(n for n in names if chance.random() < 0.4), chance.random() < 0.3
        elif chance.random() < 0.1:
            self.policy = replace(policy, shares=shares(chance), preempts=chance.random() < 0.7)
        elif chance.random() < 0.1:
            self.suspects = frozenset(
                device.id for node in self.picture().nodes for device in node.devices if chance.random() < 0.2
            )
        elif chance.random() < 0.05:
            self.policy = replace(policy, order=chance.choice(sorted(ORDERS)))
        super().happens()

    def close(self, turns: int) -> None:
        """Let all jobs end."""
        self.is_open = False
        while self.jobs:
            turns -= 1
            self.now_s += self.chance.choice([20.0, 200.0])
            self.happens()
            decided = plan(self.picture(), self.now_s, self.policy)
            self.carry_out(decided)
            assert turns, ("stuck", self.policy.order, [wait.reason for wait in decided.waits])


def reasons_are_true(live: PoolRun, decided: Plan) -> None:
    picture = live.picture()
    idle, in_service = free_of(picture.nodes, live.jobs.values()), free_of(picture.nodes, ())
    queued = {wait.job for wait in decided.waits if wait.is_queued}
    changed = {start.job for start in decided.starts} | {stop.job for stop in decided.preempts}
    changed |= {resize.job for resize in decided.resizes}
    for wait in decided.waits:
        one = live.jobs[wait.job]
        shape, least = shape_of(one, live.policy.placement), one.spec.learners_min
        for name, count in HOLDS.findall(wait.reason):
            held = sum(len(member.seat.devices) for member in live.jobs[name].gang)
            assert name in changed or held == int(count), (name, held, wait)
        if wait.is_queued and "in service" in wait.reason:
            assert in_service.fit_count(shape, least) < least, wait
        elif wait.is_queued and idle.fit_count(shape, least) >= least and not decided.resizes:
            assert "kept for" in wait.reason or "Waits for devices" in wait.reason or "spot job" in wait.reason, wait
        for name in re.findall(r"kept for (job-\d+)", wait.reason):
            assert name != wait.job, wait
            assert name in queued | {stop.job for stop in decided.preempts}, wait


def new_seats_are_idle(live: PoolRun, decided: Plan) -> None:
    """Check that gangs are whole, and that no other job holds their new seats, which are in service."""
    jobs, idle = live.planned.jobs, free_of(live.planned.nodes, live.planned.jobs.values())
    seats = [(start.job, start.seats, start.seats) for start in decided.starts]
    seats += [(one.job, one.seats, gained_seats(jobs[one.job], one)) for one in decided.resizes]
    for name, whole, gained in seats:
        shape = shape_of(jobs[name], live.policy.placement)
        assert len(whole) >= jobs[name].spec.learners_min, (name, whole)
        assert all(len(seat.devices) == shape.gpus for seat in gained), (name, gained)
        assert idle.has(shape, gained), (name, gained)
        idle.claim(shape, gained)


def is_pruned_alike(live: PoolRun) -> None:
    picture, now_s, policy = live.picture(), live.now_s, live.policy
    found, whole = (plan(one, now_s, policy) for one in (pruned(picture, now_s, policy), picture))
    assert (found.starts, found.preempts, found.resizes) == (whole.starts, whole.preempts, whole.resizes)


def look(live: PoolRun, decided: Plan) -> None:
    new_seats_are_idle(live, decided)
    reasons_are_true(live, decided)
    is_pruned_alike(live)


def odd(chance: Random) -> OddRun:
    policy = Policy(
        order=chance.choice(sorted(ORDERS)),
        placement=chance.choice([*Layout]),
        shares=shares(chance),
        age_s=chance.choice([50.0, 3600.0]),
        preempts=chance.random() < 0.8,
        spot_price=chance.choice([0.0, 0.3, 1.0]),
    )
    return OddRun(
        chance,
        policy,
        look,
        [chance.choice([1, 2, 4]) for _ in range(3)],
        spot=chance.choice([0.0, 0.0, 0.3]),
        has_cpus=chance.random() < 0.4,
    )


def test_odd_jobs_and_settings_leave_no_job_stuck() -> None:
    for seed in (*range(3 * SEEDS), *FAILED_ONCE):
        run = odd(Random(seed))
        run.run(20)
        run.close(400)
