"""Plans in random streams in which jobs leave slowly: idle devices are used, and reasons are true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random

import pytest

from dlaas_server.core.elasticity.resize import after_pending_changes
from dlaas_server.core.forecast.size_offers import offers
from dlaas_server.core.forecast.start_time import forecast
from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized, started
from dlaas_server.core.lifecycle.user_requests import apply_request
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.states import Event
from dlaas_server.core.placement.gang_placement import FreeCapacity, free_of, shape_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning.decisions import Plan
from dlaas_server.core.planning.phases import PHASES
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.plan_state import PlanState
from dlaas_server.core.presentation.explain import why_it_waits
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.policy import Policy, Share
from jupyter_dlaas.wire.journal import FactKind, Goal
from jupyter_dlaas.wire.protocol import Elastic, State
from tests.core.builders import job, node, pool, seats, training, with_fact
from tests.core.streams import SEEDS

FAILED_ONCE = (56, 68, 549)
FAILED_BY_ORDER = {
    "fifo-skip": (10, 316),
    "shortest": (119,),
    "srtf": (246, 3125, 9300105),
    "gittins": (644,),
    "las": (733,),
}


def in_plan_streams(times: int, tried: Callable[[Random], None], *failed_once: int) -> None:
    """Try so many streams, and those that failed once: whole plans cost more than single decisions."""
    for seed in (*range(times * SEEDS), *FAILED_ONCE, *failed_once):
        tried(Random(seed))


def halting(target: Job) -> Job:
    """Request a halt of the job, which has not left yet."""
    return apply_request(target, Event.HALT, by="ana", now_s=55.0)[0]


def test_free_device_is_used_while_another_job_leaves() -> None:
    leaves = halting(training(job(1), Seat("n1", ("n1/0",))))

    found = plan(pool([node(devices=2)], leaves, job(2)), 60.0)

    assert [(start.job, start.seats) for start in found.starts] == [("job-2", (Seat("n1", ("n1/1",)),))]


def test_gang_starts_on_two_nodes_instead_of_waiting() -> None:
    leaves = halting(training(job(1, (2, 2)), *seats("n1", 2)))

    found = plan(pool([node("n1", 2), node("n2", 1), node("n3", 1)], leaves, job(2, (2, 2))), 60.0)

    assert [sorted(seat.node for seat in start.seats) for start in found.starts] == [["n2", "n3"]]


def test_shrinking_job_does_not_delay_jobs_fitting_idle_devices() -> None:
    runs = replace(training(job(1, (1, 2), elastic=Elastic.AUTO), *seats("n1", 2)), is_live=True)

    found = plan(pool([node("n1", 2), node("n2", 1)], runs, job(2), job(3)), 60.0)

    assert ([start.job for start in found.starts], [one.job for one in found.resizes]) == (["job-2"], ["job-1"])


def test_devices_that_are_left_first_are_promised_first() -> None:
    late, early = training(job(1), Seat("n1", ("n1/0",))), training(job(2), Seat("n1", ("n1/1",)))
    early = apply_request(early, Event.HALT, by="ana", now_s=150.0)[0]
    late, _ = preempted(late, "job-3 (ana) has priority 5", 160.0)

    assert [loan.job for loan in after_pending_changes(pool([node(devices=2)], late, early)).leaving] == [
        "job-2",
        "job-1",
    ]


def test_leaving_learners_free_the_cpus_that_they_use() -> None:
    """Learners without devices have equal seats. Two generations on one node use its CPUs one after the other."""
    leaves = halting(training(job(1, (2, 2), gpus=0, cpus=2.0), Seat("n1"), Seat("n1")))
    moves = resized(training(job(2, cpus=2.0), Seat("n1", ("n1/0",))), [Seat("n1", ("n1/1",))], "pool", 60.0)[0]

    leaving = after_pending_changes(pool([node()], leaves, moves)).leaving

    assert sorted((loan.job, loan.shape.cpus, *loan.seats) for loan in leaving) == [
        ("job-1", 2.0, Seat("n1")),
        ("job-1", 2.0, Seat("n1")),
        ("job-2", 0.0, Seat("n1", ("n1/0",))),
    ]


def test_reason_names_the_job_an_idle_device_is_for() -> None:
    leaves = halting(training(job(1), Seat("n1", ("n1/0",))))

    found = plan(pool([node(devices=2)], leaves, job(2, (2, 2)), job(3)), 60.0, Policy(order="fifo-skip"))

    assert found.starts == ()
    assert found.waits[1].reason.startswith(
        "Needs 1 learner with 1 GPU; 1 fits now, kept for job-2, "
        "which starts as soon as the rest of its devices is free."
    )


def test_reason_names_a_job_whose_chosen_seats_were_taken() -> None:
    """job-3 cannot wait for n3/0 and starts on n1 and n2, which were chosen for job-4 and job-5."""
    leaves, runs = halting(training(job(1), Seat("n3", ("n3/0",)))), training(job(2), Seat("n3", ("n3/3",)))
    nodes = [node("n1", 1), node("n2", 2), node("n3", 4)]

    found = plan(pool(nodes, leaves, runs, job(3, (3, 3)), job(4), job(5, gpus=2), job(6)), 60.0)

    assert [(start.job, {seat.node for seat in start.seats}) for start in found.starts] == [
        ("job-3", {"n1", "n2"}),
        ("job-4", {"n3"}),
    ]
    assert [wait.reason.partition(", which")[0] for wait in found.waits] == [
        "Needs 2 GPUs; 1 is free. job-1 holds 1 and job-2 holds 1.",
        "Needs 1 learner with 1 GPU; 1 fits now, kept for job-5",
    ]


def test_devices_freed_for_a_job_are_left_to_it() -> None:
    """job-6 is ahead and could be on one node with what job-4 leaves for job-7; then job-5 would leave for that one."""
    first = [training(job(n), Seat(at, (f"{at}/{n}",))) for n, at in ((1, "n1"), (2, "n1"), (3, "n2"))]
    for_six = [preempted(one, "job-6 (ana) has priority 5", 1e4)[0] for one in first]
    for_seven = preempted(
        training(job(4, (2, 2)), Seat("n1", ("n1/0",)), Seat("n1", ("n1/3",))), "job-7 (ana) has priority 5", 1e4 + 2
    )[0]
    runs = replace(training(job(5, priority=1), Seat("n2", ("n2/1",))), checkpoint_step=1)
    waits = job(6, (3, 3), priority=5), job(7, gpus=2, priority=5)
    picture = pool([node("n1", 4), node("n2", 2)], *for_six, for_seven, runs, *waits)

    found = plan(picture, 1e4 + 4)

    assert (found.starts, found.preempts) == ((), ())


def test_reason_names_the_job_its_devices_are_kept_for() -> None:
    """The devices that are kept for job-3, the winner of a preemption, would not be enough for job-5."""
    saved = replace(training(job(1, gpus=3), Seat("n1", ("n1/1", "n1/2", "n1/3"))), checkpoint_step=1)
    leaves = halting(training(job(2), Seat("n2", ("n2/2",))))
    waits = job(3, gpus=4, priority=5), job(4, gpus=3, priority=1), job(5, gpus=2)

    found = plan(pool([node("n1", 4), node("n2", 3)], saved, leaves, *waits), 1e4)

    assert [(stop.job, stop.winner) for stop in found.preempts] == [("job-1", "job-3")]
    assert found.waits[2].reason.startswith("Needs 1 learner with 2 GPUs; 1 fits now, kept for job-4, which starts")


def test_preempted_job_does_not_shrink_for_another_job_besides() -> None:
    """job-3 could shrink for job-5 and be preempted for job-4; the next plan would not know which device is whose."""
    at = *seats("n1", 2), Seat("n0", ("n0/1",))
    runs = replace(training(job(1, (2, 4), elastic=Elastic.OFF), *at), checkpoint_step=1)
    leaves = halting(training(job(2, (2, 2)), *seats("n2", 2)))
    at = Seat("n0", ("n0/0",)), Seat("n2", ("n2/2",)), Seat("n2", ("n2/3",))
    elastic = replace(training(job(3, (1, 3)), *at), checkpoint_step=1)
    waits = job(4, gpus=2, priority=1), job(5, (3, 3), priority=5)
    picture = pool([node("n0", 2), node("n1", 2), node("n2", 4)], runs, leaves, elastic, *waits)

    found = plan(picture, 1e4)
    left = {stop.job: preempted(picture.jobs[stop.job], stop.reason, 1e4)[0] for stop in found.preempts}
    again = plan(replace(picture, jobs={**picture.jobs, **left}), 1e4 + 1)

    assert (found.resizes, again.preempts, again.resizes) == ((), (), ())


def test_reason_names_the_job_its_cpus_are_kept_for() -> None:
    leaves = halting(training(job(1), Seat("n1", ("n1/0",))))

    found = plan(pool([node(devices=1, cpus=8.0)], leaves, job(2, cpus=6.0), job(3, gpus=0, cpus=4.0)), 60.0)

    assert found.starts == ()
    assert found.waits[1].reason.startswith(
        "Needs 1 learner with 4 CPUs; 1 fits now, kept for job-2, which starts as soon as the rest of its devices"
    )


def test_reason_names_the_locality_that_devices_kept_for_others_leave() -> None:
    """job-2 gets all of n1; the idle devices of n2 and n3 are apart."""
    leaves = halting(training(job(1), Seat("n1", ("n1/0",))))
    waits = job(2, gpus=4), replace(job(3, (2, 2)), spec=replace(job(3, (2, 2)).spec, placement=None))
    picture = pool([node("n1", 4), node("n2", 1), node("n3", 1)], leaves, *waits)

    found = plan(picture, 60.0, Policy(placement=Layout.TOPOLOGY))

    assert found.starts == ()
    assert "Waits for devices on one node" in found.waits[1].reason


def test_job_starts_on_seats_that_another_chosen_job_leaves() -> None:
    """job-2 was to be on n3, and starts on n1 and n2, which have too few CPUs for job-3."""
    leaves = halting(training(job(1), Seat("n3", ("n3/1",))))
    nodes = [node("n1", 1, cpus=1.0), node("n2", 1, cpus=1.0), node("n3", 2, cpus=4.0)]

    found = plan(pool(nodes, leaves, job(2, (2, 2)), job(3, cpus=4.0)), 60.0)

    assert {start.job: [*start.seats] for start in found.starts} == {
        "job-2": [Seat("n1", ("n1/0",)), Seat("n2", ("n2/0",))],
        "job-3": [Seat("n3", ("n3/0",))],
    }


def test_no_job_is_preempted_for_a_job_that_starts_elsewhere() -> None:
    """As above, but a job runs on n4 which the scheduler had preempted for job-3."""
    leaves = halting(training(job(1), Seat("n3", ("n3/1",))))
    runs = replace(training(job(4, priority=-1, cpus=4.0), Seat("n4", ("n4/0",))), checkpoint_step=1)
    nodes = [node("n1", 1, cpus=1.0), node("n2", 1, cpus=1.0), node("n3", 2, cpus=4.0), node("n4", 1, cpus=4.0)]

    found = plan(pool(nodes, leaves, runs, job(2, (2, 2)), job(3, cpus=4.0)), 1e4)

    assert ([start.job for start in found.starts], found.preempts, found.waits) == (["job-2", "job-3"], (), ())


def test_job_whose_cpus_were_taken_keeps_its_turn() -> None:
    """job-2 cannot wait for the CPUs of n1, and takes those of n2, which were for job-3. That one gets those of n1."""
    leaves = halting(training(job(1, gpus=0, cpus=2.0), Seat("n1")))
    nodes = [node("n1", 2, cpus=4.0), node("n2", 1, cpus=4.0), node("n3", 1, cpus=2.0)]
    waits = job(2, (2, 2), cpus=2.0), job(3, gpus=0, cpus=4.0), job(4, cpus=2.0)

    found = plan(pool(nodes, leaves, *waits), 60.0, Policy(order="fifo-skip"))

    assert [(start.job, {seat.node for seat in start.seats}) for start in found.starts] == [("job-2", {"n2", "n3"})]
    assert "1 fits now, kept for job-3, which starts" in found.waits[1].reason


def test_job_shrinks_for_one_that_needs_only_its_cpus() -> None:
    elastic = replace(training(job(1, (1, 2), cpus=4.0, elastic=Elastic.AUTO), *seats("n1", 2)), is_live=True)

    found = plan(pool([node(cpus=8.0)], elastic, job(2, gpus=0, cpus=4.0), job(3, gpus=0)), 60.0)

    assert [start.job for start in found.starts] == ["job-3"]
    assert [(one.job, len(one.seats), one.why) for one in found.resizes] == [
        ("job-1", 1, "Makes room for the waiting job job-2.")
    ]


def test_locality_reason_counts_the_devices_kept_for_the_job() -> None:
    """job-2 gets both devices of n1. With one of them and that of n2 it could start, but apart."""
    leaves = halting(training(job(1), Seat("n1", ("n1/0",))))
    gang = replace(job(2, (2, 2)), spec=replace(job(2, (2, 2)).spec, placement=None))

    found = plan(pool([node("n1", 2), node("n2", 1)], leaves, gang), 60.0, Policy(placement=Layout.TOPOLOGY))

    assert found.starts == ()
    assert "Waits for devices on one node" in found.waits[0].reason


def test_reason_says_that_idle_devices_are_further_apart() -> None:
    spot = training(job(1), Seat("n1", ("n1/0",)))
    spot = replace(spot, spec=replace(spot.spec, spot=True))

    found = plan(pool([node("n1", 2), node("n2", 1)], spot, job(2, (2, 2))), 60.0)

    assert (found.starts, [stop.job for stop in found.preempts]) == ((), ["job-1"])
    assert "2 fit now, but on more nodes than the devices that spot jobs give back." in found.waits[0].reason


def test_first_holder_in_queue_order_is_named() -> None:
    """job-4 needs the device that is kept for job-2, and CPUs that are kept for job-3."""
    leaves = halting(training(job(1, cpus=1.0), Seat("n1", ("n1/0",))))
    waits = job(2, (2, 2)), job(3, gpus=0, cpus=4.0), job(4, cpus=3.0)

    found = plan(pool([node("n1", 2, cpus=4.0)], leaves, *waits), 60.0, Policy(order="fifo-skip"))

    assert found.starts == ()
    assert [wait.reason.partition("kept for ")[2][:5] for wait in found.waits] == ["", "", "job-2"]


@dataclass
class PoolRun:
    """A pool whose plans are carried out, slowly; `look` sees each plan, and the pool after it."""

    chance: Random
    policy: Policy
    look: Callable[[PoolRun, Plan], None]
    nodes: list[int]
    jobs: dict[str, Job] = field(default_factory=dict)
    leaves_s: dict[str, float] = field(default_factory=dict)
    """Job -> when it has left."""
    ends_s: dict[str, float] = field(default_factory=dict)
    now_s: float = 1000.0
    planned: Pool = field(default_factory=lambda: pool([]))
    """Pool for which the last plan was made."""

    def picture(self) -> Pool:
        """Return the pool as the engine would know it."""
        known = {name: Known(length_s=self.length(name), restart_s=1.0) for name in self.jobs}
        picture = pool([node(f"n{i}", devices) for i, devices in enumerate(self.nodes)], *self.jobs.values())
        return replace(picture, known=known)

    @staticmethod
    def length(name: str) -> float | None:
        """Return the length of a job; a third are unknown."""
        number = int(name.removeprefix("job-"))
        return None if number % 3 == 0 else 10.0 * (1 + number * 7919 % 97)

    def arrive(self, number: int) -> None:
        """Another job comes."""
        chance = self.chance
        least, gpus = chance.choice([(1, 1), (1, 1), (1, 1), (2, 1), (3, 1), (1, 2)])
        one = job(
            number,
            (least, least + chance.choice([0, 0, 2])),
            gpus=gpus,
            priority=chance.choice([0, 0, 0, 1, 5]),
            elastic=chance.choice([Elastic.OFF, Elastic.MANUAL, Elastic.AUTO]),
            submitted_s=self.now_s,
        )
        if least * gpus <= max(self.nodes):
            self.jobs[one.id] = replace(one, spec=replace(one.spec, queue=chance.choice("ab")))

    def run(self, turns: int) -> None:
        """So many turns, in each of which something happens, the plan is made, and carried out."""
        for number in range(turns):
            self.now_s += self.chance.choice([0.5, 2.0, 20.0, 200.0])
            if self.chance.random() < 0.6:
                self.arrive(number)
            self.happens()
            self.planned = self.picture()
            decided = plan(self.planned, self.now_s, self.policy)
            self.carry_out(decided)
            self.look(self, decided)

    def happens(self) -> None:
        """Jobs that leave are gone, changes of size are over, jobs end."""
        for name, one in list(self.jobs.items()):
            if one.members and one.goal is not Goal.RUN and self.leaves_s.setdefault(name, self.later()) <= self.now_s:
                del self.leaves_s[name]
                gone = with_fact(one, FactKind.HALTED, step=1, has_checkpoint=True)
                self.jobs[name] = with_fact(gone, FactKind.CLOSED)
            elif one.resize is not None and self.leaves_s.setdefault(name, self.later()) <= self.now_s:
                del self.leaves_s[name]
                self.jobs[name] = self.trains(one)
            elif one.members and one.goal is Goal.RUN and one.resize is None and self.has_ended(name):
                if self.chance.random() < 0.5:
                    self.jobs[name] = apply_request(one, Event.HALT, by="ana", now_s=self.now_s)[0]
                else:
                    del self.jobs[name]
            if name in self.jobs and self.jobs[name].state is State.HALTED:
                del self.jobs[name]

    def has_ended(self, name: str) -> bool:
        """Its time is over."""
        return self.ends_s.setdefault(name, self.now_s + self.chance.expovariate(1 / 300)) <= self.now_s

    def later(self) -> float:
        return self.now_s + self.chance.choice([0.0, 1.0, 30.0, 300.0])

    @staticmethod
    def trains(one: Job) -> Job:
        one = with_fact(one, FactKind.GENERATION, generation=one.generation, step=1, live=True)
        return replace(one, members=one.gang, checkpoint_step=1, is_live=True, resize=None)

    def carry_out(self, decided: Plan) -> None:
        """Begin to carry out the decisions."""
        for stop in decided.preempts:
            self.jobs[stop.job] = preempted(self.jobs[stop.job], stop.reason, self.now_s)[0]
        for start in decided.starts:
            self.jobs[start.job] = self.trains(started(self.jobs[start.job], start.seats, self.now_s)[0])
        for one in decided.resizes:
            self.jobs[one.job] = resized(self.jobs[one.job], one.seats, one.by, self.now_s, one.why)[0]


def nothing_is_idle_without_reason(live: PoolRun, decided: Plan) -> None:
    idle = free_of(live.picture().nodes, live.jobs.values())
    line = {wait.job: wait for wait in decided.waits if wait.place}
    for name, wait in line.items():
        one = live.jobs[name]
        shape = shape_of(one, live.policy.placement)
        if idle.fit_count(shape, one.spec.learners_min) < one.spec.learners_min:
            assert "kept for" not in wait.reason or decided.resizes, wait  # a move may just have taken them
            continue
        if "Waits for devices" in wait.reason:
            assert live.policy.placement is Layout.TOPOLOGY
            continue
        assert "kept for" in wait.reason, (name, wait, decided)
        holder = wait.reason.split("kept for ")[1].split(",")[0].split(":")[0]
        assert holder in line or holder in {stop.job for stop in decided.preempts}, (name, wait, decided)
        assert holder != name, (name, wait, decided)


@pytest.mark.parametrize("order", ORDERS)
def test_no_feasible_job_waits_beside_idle_devices_without_reason(order: str) -> None:
    def tried(chance: Random) -> None:
        nodes = [chance.choice([1, 2, 4]) for _ in range(3)]
        placement = chance.choice([Layout.PACK, Layout.PACK, Layout.SPREAD, Layout.TOPOLOGY])
        shares = {"a": Share(guaranteed=2)} if order == "fair" else {}
        policy = Policy(order=order, placement=placement, shares=shares, age_s=chance.choice([50.0, 3600.0]))
        PoolRun(chance, policy, nothing_is_idle_without_reason, nodes).run(25)

    in_plan_streams(1, tried, *FAILED_BY_ORDER.get(order, ()))


def state_of(live: PoolRun) -> PlanState:
    """Return what the phases of the last plan decided."""
    state = PlanState.of(live.planned, live.now_s, live.policy, None)
    for phase in PHASES:
        phase(state)
    return state


def names_true_holders(live: PoolRun, decided: Plan) -> None:
    """Check that a job for which devices are kept is in the way of the one that waits."""
    if not any("kept for " in wait.reason for wait in decided.waits):
        return
    state = state_of(live)
    kept, rest = state.immediate.kept, state.immediate.rest or state.idle

    def fits(name: str, *givers: str) -> bool:
        given = [part for giver in {name, *givers} for part in kept.get(giver, ())]
        capacity, least = FreeCapacity(free.copy() for free in rest), live.planned.jobs[name].spec.learners_min
        for shape, seat in given:
            capacity.give(shape, (seat,))
        return capacity.fit_count(state.shape_of(name), least) >= least

    for wait in (wait for wait in decided.waits if "kept for " in wait.reason):
        holder = wait.reason.split("kept for ")[1].split(",")[0]
        if "which goes first" in wait.reason:
            reserved = None if state.result.reserved is None else state.result.reserved.id
            assert fits(wait.job), wait
            assert live.policy.is_strict or holder == reserved, wait
        else:
            others = [name for name in kept if name not in (holder, wait.job)]
            beside = [some for n in range(len(others) + 1) for some in combinations(others, n)]
            assert any(fits(wait.job, holder, *some) and not fits(wait.job, *some) for some in beside), (wait, kept)


@pytest.mark.parametrize("order", ["fifo", "fifo-skip", "shortest", "fair"])
def test_reason_names_the_holder_of_kept_devices(order: str) -> None:
    def tried(chance: Random) -> None:
        shares = {"a": Share(guaranteed=2)} if order == "fair" else {}
        policy = Policy(order=order, shares=shares, age_s=chance.choice([50.0, 3600.0]))
        PoolRun(chance, policy, names_true_holders, [chance.choice([1, 2, 4]) for _ in range(3)]).run(25)

    in_plan_streams(1, tried, 227)


def test_room_is_made_once_for_an_urgent_job() -> None:
    """While victims leave for it, no others are preempted, unless jobs ahead preempt, too, or are chosen only now.

    The end of a change of size is another exception, and so are idle devices that an ended job or a victim has left: a
    job ahead may now be placed better, and take devices that were released for the urgent job.
    """
    chosen_then: dict[str, set[str]] = {}
    """Urgent job -> jobs for which there was room when victims were chosen for it."""
    changing: set[tuple[str, float]] = set()
    ran: dict[str, Job] = {}

    def is_due_to_idle_devices(live: PoolRun, winner: str, ahead: set[str]) -> bool:
        """Return whether it would preempt no other if no job had left since the last plan."""
        jobs = live.planned.jobs
        left = {name: one for name, one in ran.items() if name not in jobs or not jobs[name].members}
        before = replace(live.planned, jobs={**jobs, **left})
        winners = {stop.winner for stop in plan(before, live.now_s, live.policy).preempts}
        return bool(ahead) and (winner not in winners or bool(ahead & winners))

    def look(live: PoolRun, decided: Plan) -> None:
        then = {(name, one.resize.since_s) for name, one in live.jobs.items() if one.resize is not None}
        if changing - then:
            chosen_then.clear()
        changing.clear()
        changing.update(then)
        for name in [n for n in chosen_then if n not in live.jobs or not live.jobs[n].waits]:
            del chosen_then[name]
        if decided.starts:
            chosen_then.clear()
        places = {wait.job: wait.place for wait in decided.waits if wait.place}
        winners = {stop.winner for stop in decided.preempts}
        chosen = {request.id for request in state_of(live).result.starts} if winners else set[str]()
        for winner in sorted(winners):
            ahead = {name for name, place in places.items() if place < places.get(winner, 0)}
            is_first = winner not in chosen_then or ahead & (chosen - chosen_then[winner]) or ahead & winners
            assert is_first or is_due_to_idle_devices(live, winner, ahead), (winner, decided)
            chosen_then[winner] = chosen
        ran.clear()
        ran.update((name, one) for name, one in live.jobs.items() if one.members)

    def tried(chance: Random) -> None:
        chosen_then.clear()
        changing.clear()
        ran.clear()
        PoolRun(chance, Policy(), look, [chance.choice([1, 2, 4]) for _ in range(3)]).run(40)

    in_plan_streams(3, tried, 519, 770, 7000153, 9500221, 9600231, 31000391, 41000328, 41000362, 41000462)


def test_urgent_job_starts_on_what_becomes_free_first() -> None:
    """One job leaves for it slowly, another ends meanwhile: it starts there, and no other job is stopped."""
    urgent = replace(job(3), priority=5)
    slow, other = (replace(training(job(n), Seat("n1", (f"n1/{n}",))), checkpoint_step=1) for n in (0, 1))
    picture = pool([node(devices=2)], slow, other, urgent)
    [stop] = plan(picture, 1e4).preempts
    leaving = preempted(picture.jobs[stop.job], stop.reason, 1e4)[0]
    picture = replace(picture, jobs={**picture.jobs, leaving.id: leaving})
    assert (plan(picture, 1e4 + 1).preempts, plan(picture, 1e4 + 1).starts) == ((), ())

    rest = {name: one for name, one in picture.jobs.items() if name in (leaving.id, urgent.id)}
    found = plan(replace(picture, jobs=rest), 1e4 + 2)

    assert ([start.job for start in found.starts], found.preempts) == (["job-3"], ())


def has_consistent_estimates(live: PoolRun, decided: Plan) -> None:
    """Check that start estimates agree with the holders that `why` names, and that offered sizes start."""
    picture = live.picture()
    spans = forecast(picture, live.now_s, live.policy, 0.5, draws=4)
    for name in [wait.job for wait in decided.waits if wait.place]:
        one = picture.jobs[name]
        text = " ".join(why_it_waits(one, picture, decided.waits, live.policy, has_estimate=name in spans))
        stays = [o for o in picture.jobs.values() if f"{o.id} (ana) holds" in text and "for an unknown time" in text]
        unknown = [
            o for o in stays if f"{o.id} (ana) holds" in text and _sentence(text, o.id).count("for an unknown time")
        ]
        idle = free_of(picture.nodes, unknown)
        has_room = idle.fit_count(shape_of(one, live.policy.placement), one.spec.learners_min) >= one.spec.learners_min
        assert has_room or name not in spans or "assumes that devices are reclaimed" in text, (name, text, spans)
        assert name in spans or "Its start estimate" not in text


def _sentence(text: str, name: str) -> str:
    return text.split(f"{name} (ana) holds", 1)[1].split(". ", 1)[0]


def test_holders_and_expected_start_never_contradict_each_other() -> None:
    def tried(chance: Random) -> None:
        PoolRun(chance, Policy(), has_consistent_estimates, [1, 2, 4]).run(30)

    in_plan_streams(2, tried)


def starts_if_offered(live: PoolRun, decided: Plan) -> None:
    picture = live.picture()
    for name, learners in offers(picture, live.now_s, live.policy).items():
        one = picture.jobs[name]
        smaller = replace(one, spec=replace(one.spec, learners_min=learners))
        again = plan(replace(picture, jobs={**picture.jobs, name: smaller}), live.now_s, live.policy)
        assert name in {start.job for start in again.starts}, (name, learners, decided, again)


def test_job_offered_fewer_learners_starts_in_the_next_turn() -> None:
    def tried(chance: Random) -> None:
        PoolRun(chance, Policy(), starts_if_offered, [1, 2, 4]).run(40)

    in_plan_streams(3, tried, 100)


def test_protection_time_of_a_borrower_is_part_of_the_forecast() -> None:
    """Borrowers of unknown length are protected for 30 s after their start; 10 s of these have passed."""
    policy = Policy(order="fair", shares={"a": Share(guaranteed=2)})
    runs = [replace(training(job(n), Seat("n1", (f"n1/{n}",))), seated_s=990.0, checkpoint_step=1) for n in (0, 1)]
    owner = replace(job(3), spec=replace(job(3).spec, queue="a"))
    known = {f"job-{n}": Known(executed_s=10.0, restart_s=3.0) for n in (0, 1)}
    picture = replace(pool([node(devices=2)], *runs, owner), known=known)

    low_s, high_s = forecast(picture, 1000.0, policy, 0.5)["job-3"]

    assert 1020.0 <= low_s <= high_s <= 1024.0
