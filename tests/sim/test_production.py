"""Our own orders in the simulator decide what the core's `plan` decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, Member, MemberState
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.run_length import Usual
from dlaas_server.core.scheduling.scheduler import Policy, Share
from dlaas_server.sim.replay.event_loop import Decision, Run, Unrunnable, replay
from dlaas_server.sim.replay.production import ByCore, nodes_of
from dlaas_server.sim.trace.trace import NodeSpec, Trace, TraceJob
from jupyter_dlaas.wire.protocol import Elastic, JobSpec, Placement, State
from tests.selection import covering
from tests.sim.builders import times, tjob, trace

NODES = (NodeSpec(name="n0", gpus=4, cpus=8), NodeSpec(name="n1", gpus=3, cpus=8), NodeSpec(name="n2", gpus=2, cpus=4))
GPUS = 9

gangs = st.builds(
    TraceJob,
    id=st.uuids().map(str),
    submit_s=st.integers(0, 40),
    duration_s=st.integers(1, 30) | st.integers(300, 20_000),
    learners=st.integers(1, 3),
    gpus_per_learner=st.integers(1, 2),
    cpus_per_learner=st.integers(0, 3),
)
traces = st.lists(gangs, min_size=1, max_size=20, unique_by=lambda job: job.id).map(lambda jobs: trace(*jobs))


@dataclass
class ByPlan:
    """Plan the whole pool again at each event, as the engine does."""

    policy: Policy
    placement: Placement
    jobs: dict[str, Job] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    seats: list[tuple[int, tuple[Seat, ...]]] = field(default_factory=list)

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
        starts: list[Run] = []
        stops: list[Run] = []
        while True:
            self.known = {
                name: Known(length_s=float(self.runs[name].job.duration_s or 0), executed_s=self._executed(name, now_s))
                for name in self.jobs
            }
            found = plan(Pool(nodes=nodes_of(NODES), jobs=self.jobs, known=self.known), now_s, self.policy)
            for preempt in found.preempts:
                job = self.jobs[preempt.job]
                self.jobs[preempt.job] = replace(job, state=State.QUEUED, members=(), live_generation=0)
                stops.append(self.runs[preempt.job])
            for start in found.starts:
                job = self.jobs[start.job]
                members = tuple(
                    Member(member=i, generation=1, rank=i, seat=seat, state=MemberState.READY)
                    for i, seat in enumerate(start.seats)
                )
                self.jobs[start.job] = replace(
                    job, state=State.PROCESSING, members=members, generation=1, live_generation=1, checkpoint_step=0
                )
                self.seats.append((job.number, start.seats))
                starts.append(self.runs[start.job])
            if not found.preempts:
                return Decision(starts=starts, stops=stops, wake_s=found.wake_s)

    def _executed(self, name: str, now_s: float) -> float:
        return self.runs[name].executed_at(now_s)


@dataclass
class Noted:
    """The rule under test, with all seats that it ever gave."""

    rule: ByCore
    seats: list[tuple[int, tuple[Seat, ...]]] = field(default_factory=list)

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        decision = self.rule.decide(now_s, ended, arrived)
        self.seats += [(run.index, self.rule.asks[run.index].seats) for run in decision.starts]
        return decision


@pytest.mark.parametrize(
    ("order", "placement"), covering((o, p) for o in ("fifo", "fifo-skip", "shortest") for p in Placement)
)
@given(small=traces)
@settings(max_examples=60)
def test_replayed_gangs_get_the_seats_of_a_plan(order: str, placement: Placement, small: Trace) -> None:
    # A plan of the whole pool does not know since when a job that was preempted waits again: without preemption.
    policy = Policy(order=order, preempts=False)
    ours, planned = Noted(ByCore(NODES, policy, placement)), ByPlan(policy, placement)

    assert times(replay(small, GPUS, ours)) == times(replay(small, GPUS, planned))
    assert sorted(ours.seats, key=repr) == sorted(planned.seats, key=repr)


@pytest.mark.parametrize("order", ORDERS)
@given(small=traces)
@settings(max_examples=60)
def test_all_that_was_taken_is_given_back(order: str, small: Trace) -> None:
    rule = ByCore(NODES, Policy(order=order))
    before = [free.copy() for free in rule.scheduler.capacity]

    replay(small, GPUS, rule)

    assert list(rule.scheduler.capacity) == before
    assert (rule.scheduler.waiting_count, rule.scheduler.running) == (0, {})


def test_strict_order_allows_no_passing() -> None:
    small = trace(tjob("a", 0, 2, 10, learners=4), tjob("big", 1, 2, 10, learners=4), tjob("small", 2, 1, 3))

    assert times(replay(small, GPUS, ByCore(NODES, Policy(order="fifo"))))["small"] == (10, 13)
    assert times(replay(small, GPUS, ByCore(NODES, Policy(order="fifo-skip"))))["small"] == (2, 5)


def test_a_gang_kept_waiting_by_fragments_is_counted_as_such() -> None:
    """Two GPUs are free, on two nodes; the job wants them on one."""
    nodes = (NodeSpec(name="n0", gpus=2), NodeSpec(name="n1", gpus=2))
    spread = ByCore(nodes, placement=Placement.SPREAD)

    result = replay(trace(tjob("a", 0, 1, 10, learners=2), tjob("b", 1, 2, 5)), 4, spread)

    assert times(result)["b"] == (10, 15)
    assert (result.blocked_s, result.blocked_free_gpu_s) == (9, 18)


def test_a_gang_that_no_node_can_take_is_named() -> None:
    with pytest.raises(Unrunnable, match=r"job wide \(1 x 12 GPUs\) does not fit an empty pool"):
        replay(trace(tjob("wide", 0, 12, 10)), GPUS, ByCore(NODES))


def test_devices_reclaimed_at_once_are_not_lent() -> None:
    shares = {"lends": Share(guaranteed=4), "borrows": Share(weight=100.0)}
    jobs = [replace(tjob(queue, 0, 4, 10), queue=queue) for queue in ("borrows", "lends")]
    nodes = (NodeSpec(name="n0", gpus=4),)

    result = replay(trace(*jobs), 4, ByCore(nodes, Policy(order="fair", shares=shares)))

    assert times(result) == {"borrows": (10, 20), "lends": (0, 10)}
    assert [one.preemptions for one in result.done] == [0, 0]


@dataclass
class Watched(ByCore):
    """Sees, after each event, whether everybody stands where it would stand had it come just now."""

    looks: list[Usual | None] = field(default_factory=list)

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        decision = ByCore.decide(self, now_s, ended, arrived)
        if not self.looks or self.looks[-1] is not self.history.usual:
            self.looks.append(self.history.usual)
        for number, ask in self.asks.items():
            assert ask.mean_s == self.history.mean_s(self._guesses[number], ask.weight)
            if ask.since_s is None:
                assert ask.rank == self.scheduler.order.rank(ask, now_s)
        line = [(-ask.priority, ask.rank) for ask in self.scheduler.queue_order() if not (ask.lateness or ask.is_spot)]
        assert line == sorted(line)
        return decision


@pytest.mark.parametrize("lends", [False, True])
def test_queue_is_reordered_as_estimates_are_corrected(lends: bool) -> None:
    chance = Random(7)
    jobs = [
        replace(tjob(f"j{i}", 40 * i, chance.choice((1, 2, 4)), round(chance.lognormvariate(6, 1.5))), spot=i % 5 == 0)
        for i in range(150)
    ]
    rule = Watched((NodeSpec(name="n0", gpus=8),), restart_s=1, estimate_error=1.0, seed=3, lends=lends)

    assert len(replay(trace(*jobs), 8, rule, restart_s=1).done) == len(jobs)
    assert len(rule.looks) > 5
