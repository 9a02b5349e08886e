"""Our own orders in the simulator decide what the core's `plan` decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlaas_server.core.model import Job, Member, MemberState, Pool, Seat
from dlaas_server.core.plan import plan
from dlaas_server.sim.loop import Decision, Run, Unrunnable, replay
from dlaas_server.sim.production import InOrder, nodes_of
from dlaas_server.sim.trace import NodeSpec, Trace, TraceJob
from jupyter_dlaas.protocol import Elastic, JobSpec, Placement, State
from tests.sim.builders import times, tjob, trace

NODES = (NodeSpec(name="n0", gpus=4, cpus=8), NodeSpec(name="n1", gpus=3, cpus=8), NodeSpec(name="n2", gpus=2, cpus=4))
GPUS = 9

gangs = st.builds(
    TraceJob,
    id=st.uuids().map(str),
    submit_s=st.integers(0, 40),
    duration_s=st.integers(1, 30),
    learners=st.integers(1, 3),
    gpus_per_learner=st.integers(1, 2),
    cpus_per_learner=st.integers(0, 3),
)
traces = st.lists(gangs, min_size=1, max_size=20, unique_by=lambda job: job.id).map(lambda jobs: trace(*jobs))


@dataclass
class ByPlan:
    """The whole pool is planned anew at each event, as the engine does."""

    placement: Placement
    jobs: dict[str, Job] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    seats: dict[int, tuple[Seat, ...]] = field(default_factory=dict)

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        for run in ended:
            del self.jobs[f"j-{run.index}"]
        for run in arrived:
            asked = run.job
            spec = JobSpec(
                learners_min=asked.learners,
                learners_max=asked.learners,
                gpus_per_learner=asked.gpus_per_learner,
                cpus_per_learner=asked.cpus_per_learner,
                placement=self.placement,
            )
            self.runs[f"j-{run.index}"] = run
            self.jobs[f"j-{run.index}"] = Job(
                id=f"j-{run.index}",
                number=run.index,
                owner="ana",
                spec=spec,
                submitted_s=asked.submit_s,
                wish=asked.learners,
                elastic=Elastic.OFF,
            )
        starts = plan(Pool(nodes=nodes_of(NODES), jobs=self.jobs), now_s).starts
        for start in starts:
            members = tuple(
                Member(member=i, generation=1, rank=i, seat=seat, state=MemberState.READY)
                for i, seat in enumerate(start.seats)
            )
            job = self.jobs[start.job]
            self.jobs[start.job] = replace(job, state=State.PROCESSING, members=members, generation=1)
            self.seats[job.number] = start.seats
        return Decision(starts=[self.runs[start.job] for start in starts])


@dataclass
class Noted:
    """The rule under test, with all seats that it ever gave."""

    rule: InOrder
    seats: dict[int, tuple[Seat, ...]] = field(default_factory=dict)

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        decision = self.rule.decide(now_s, ended, arrived)
        self.seats |= {run.index: self.rule.seats[run.index] for run in decision.starts}
        return decision


@pytest.mark.parametrize("placement", Placement)
@given(small=traces)
@settings(max_examples=60)
def test_every_gang_gets_the_time_and_the_seats_that_the_plan_gives(placement: Placement, small: Trace) -> None:
    ours, planned = Noted(InOrder(NODES, placement)), ByPlan(placement)

    assert times(replay(small, GPUS, ours)) == times(replay(small, GPUS, planned))
    assert ours.seats == planned.seats


@pytest.mark.parametrize("skips", [True, False])
@given(small=traces)
@settings(max_examples=60)
def test_all_that_was_taken_is_given_back(skips: bool, small: Trace) -> None:
    rule = InOrder(NODES, skips=skips)
    before = [free.copy() for free in rule.frees]

    replay(small, GPUS, rule)

    assert rule.frees == before


def test_strict_order_lets_nobody_pass() -> None:
    small = trace(tjob("a", 0, 2, 10, learners=4), tjob("big", 1, 2, 10, learners=4), tjob("small", 2, 1, 3))

    assert times(replay(small, GPUS, InOrder(NODES, skips=False)))["small"] == (10, 13)
    assert times(replay(small, GPUS, InOrder(NODES, skips=True)))["small"] == (2, 5)


def test_a_gang_kept_waiting_by_fragments_is_counted_as_such() -> None:
    """Two GPUs are free, on two nodes; the job wants them on one."""
    nodes = (NodeSpec(name="n0", gpus=2), NodeSpec(name="n1", gpus=2))
    spread = InOrder(nodes, Placement.SPREAD)

    result = replay(trace(tjob("a", 0, 1, 10, learners=2), tjob("b", 1, 2, 5)), 4, spread)

    assert times(result)["b"] == (10, 15)
    assert (result.blocked_s, result.blocked_free_gpu_s) == (9, 18)


def test_a_gang_that_no_node_can_take_is_named() -> None:
    with pytest.raises(Unrunnable, match=r"job wide \(1 x 8 GPUs\) does not fit an empty pool"):
        replay(trace(tjob("wide", 0, 8, 10)), GPUS, InOrder(NODES))
