"""Spot jobs in a plan: they use idle devices, and return them after a notice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized
from dlaas_server.core.lifecycle.reconcile import reconcile, wanted
from dlaas_server.core.lifecycle.user_requests import apply_request
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.states import Event
from dlaas_server.core.planning.decisions import Plan
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.scheduler_snapshot import scheduler_of
from dlaas_server.core.scheduling.policy import Policy, Share
from jupyter_dlaas.wire.journal import FactKind, Goal
from jupyter_dlaas.wire.protocol import Elastic
from tests.core.builders import carried_out, job, node, pool, seats, training, with_fact

GIB = 2**30


def spot(one: Job) -> Job:
    return replace(one, spec=replace(one.spec, spot=True), owner="ben")


def by(one: str, found: Plan) -> str:
    return next(wait.reason for wait in found.waits if wait.job == one)


def test_spot_job_uses_idle_guarantees_of_other_queues() -> None:
    policy = Policy(order="fair", shares={"research": Share(guaranteed=4)})

    found = plan(pool([node(devices=4)], spot(job(1, (4, 4)))), 60.0, policy)

    assert [start.job for start in found.starts] == ["job-1"]


def test_spot_job_waits_behind_all_ordinary_jobs() -> None:
    picture = pool([node(devices=4)], spot(job(1, (4, 4), priority=9)), job(2, (4, 4)), job(3, (4, 4), priority=-9))

    found = plan(picture, 60.0)

    assert [start.job for start in found.starts] == ["job-2"]
    assert [(wait.job, wait.place, wait.of) for wait in found.waits] == [("job-3", 1, 2), ("job-1", 2, 2)]
    assert by("job-1", found) == (
        "Needs 4 GPUs at once; 0 are free. job-2 holds 4. A spot job uses only devices that ordinary jobs leave idle."
    )


def test_spot_job_without_checkpoint_is_reclaimed_with_notice() -> None:
    lent = spot(training(job(1, (4, 4)), *seats("n1", 4)))
    picture = pool([node(devices=4)], lent, job(2, (2, 2)))

    found = plan(picture, 60.0, Policy(preempts=False, spot_notice_s=12.0))
    assert [(one.job, one.winner, one.notice_s) for one in found.preempts] == [("job-1", "job-2", 12.0)]
    assert found.preempts[0].reason == "4 GPUs go back to ana's job-2"
    assert (found.starts, found.resizes) == ((), ())
    assert by("job-2", found) == "Needs 2 GPUs at once; 0 are free. The spot job job-1 gives 4 GPUs back."

    leaving, events = preempted(lent, found.preempts[0].reason, 60.0, 12.0)
    assert events[0].text == (
        "Preempted: 4 GPUs go back to ana's job-2. "
        "It writes a checkpoint within 12 s, then returns to its place in the queue."
    )
    document = wanted(leaving)
    assert document is not None
    assert (document.goal, document.grace_s) == (Goal.HALT, 12.0)

    again = plan(replace(picture, jobs={**picture.jobs, "job-1": leaving}), 61.0)
    assert (again.starts, again.preempts, again.resizes) == ((), (), ())
    assert "The spot job job-1 gives 4 GPUs back." in by("job-2", again)

    back = with_fact(with_fact(leaving, FactKind.HALTED, step=3, has_checkpoint=False), FactKind.CLOSED)
    after = plan(replace(picture, jobs={**picture.jobs, "job-1": back}), 62.0)
    assert [start.job for start in after.starts] == ["job-2"]


def test_notice_applies_once_and_also_to_shrinking() -> None:
    def grace_s(one: Job) -> float:
        document = wanted(one)
        assert document is not None
        return document.grace_s

    runs = spot(training(job(1, (1, 2)), *seats("n1", 2)))

    assert grace_s(preempted(runs, "job-2", 60.0, 5.0)[0]) == 5.0
    smaller = resized(runs, seats("n1", 1), "pool", 60.0, notice_s=5.0)[0]
    assert grace_s(smaller) == 5.0
    assert grace_s(apply_request(smaller, Event.HALT, by="ben", now_s=61.0)[0]) == 30.0, "its owner's halt has no hurry"


def test_spot_job_between_two_retries_is_reclaimed_at_once() -> None:
    waits = replace(spot(training(job(1), *seats("n1", 1))), not_before_s=999.0)

    acts = reconcile([preempted(waits, "job-2", 60.0, 5.0)[0]], {}, 60.0)

    assert [(act.job, act.wanted.goal) for act in acts] == [("job-1", Goal.HALT)]


def elastic(number: int, count: int, first: int = 0) -> Job:
    one = spot(training(job(number, (1, 4)), *seats("n1", 8)[first : first + count]))
    return replace(one, checkpoint_step=5)


def test_spot_job_shrinks_before_another_is_stopped() -> None:
    rigid = spot(training(job(2, (4, 4)), *seats("n1", 8)[4:]))

    found = plan(pool([node(devices=8)], elastic(1, 4), rigid, job(3, (3, 3))), 60.0)

    assert [(one.job, len(one.seats), one.why, one.notice_s) for one in found.resizes] == [
        ("job-1", 1, "It is a spot job: 3 GPUs go back to ana's job-3.", 30.0)
    ]
    assert found.preempts == ()


def test_remaining_devices_are_reclaimed_from_the_youngest_spot_job() -> None:
    old = replace(spot(training(job(2, (2, 2)), *seats("n1", 8)[4:6])), seated_s=1.0)
    young = replace(spot(training(job(3, (2, 2)), *seats("n1", 8)[6:])), seated_s=2.0)

    found = plan(pool([node(devices=8)], elastic(1, 4), old, young, job(4, (5, 5))), 60.0)

    assert [one.job for one in found.preempts] == ["job-3"]
    assert [(one.job, len(one.seats)) for one in found.resizes] == [("job-1", 1)]


def test_as_long_as_others_are_idle_nothing_is_taken_back() -> None:
    lent = spot(training(job(1, (2, 2)), *seats("n1", 2)))

    found = plan(pool([node(devices=4)], lent, job(2, (2, 2))), 60.0)

    assert ([start.job for start in found.starts], found.preempts) == (["job-2"], ())


def test_spot_jobs_do_not_worsen_locality_of_gangs() -> None:
    lent = spot(training(job(1, (2, 2)), *seats("n1", 2)))
    other = training(job(2, (2, 2)), *seats("n2", 2))

    found = plan(pool([node("n1"), node("n2")], lent, other, job(3, (4, 4))), 60.0)

    assert [one.job for one in found.preempts] == ["job-1"]


def test_growing_job_reclaims_spot_devices() -> None:
    lent = spot(training(job(1, (2, 2)), *seats("n1", 4)[2:]))
    grows = replace(training(job(2, (1, 4), wish=4), *seats("n1", 2)), checkpoint_step=5)

    found = plan(pool([node(devices=4)], lent, grows), 60.0)

    assert [(one.job, one.reason) for one in found.preempts] == [("job-1", "2 GPUs go back to ana's job-2")]
    assert found.resizes == ()
    assert by("job-2", found) == (
        "2 of 4 learners; waiting for 2 GPUs to be reclaimed from spot jobs. The spot job job-1 gives 2 GPUs back."
    )


def test_reason_names_the_job_that_gets_spot_devices() -> None:
    """The 4 GPUs are still held by the spot job that gives them back: job-2 does not hold them yet."""
    lent = spot(training(job(1, (4, 4)), *seats("n1", 4)))

    found = plan(pool([node(devices=4)], lent, job(2, (4, 4)), spot(job(3))), 60.0)

    assert by("job-3", found).startswith("Needs 1 GPU; 0 are free. job-1 holds 4 and job-2 gets 4.")


def test_spot_devices_are_not_reclaimed_for_locality() -> None:
    lent = spot(training(job(1, (2, 2)), *seats("n1", 4)[2:]))
    apart = training(job(2, (2, 2)), seats("n1", 1)[0], seats("n2", 1)[0])
    apart = replace(apart, is_live=True, checkpoint_step=5, spec=replace(apart.spec, learners_max=2))
    filled = training(job(3, (3, 3)), *seats("n2", 4)[1:])
    picture = pool([node("n1"), node("n2")], lent, apart, filled)

    found = plan(picture, 60.0)
    assert (found.preempts, [one.job for one in found.resizes]) == ((), ["job-2"]), "one device of n1 is idle"

    other = spot(training(job(4, (1, 1)), seats("n1", 2)[1]))
    full = plan(replace(picture, jobs={**picture.jobs, other.id: other}), 60.0)
    assert (full.preempts, full.resizes) == ((), ())


def test_reclaimed_devices_go_to_no_other_spot_job() -> None:
    lent = spot(training(job(1, (2, 2)), *seats("n1", 2)))
    picture = pool([node(devices=4)], lent, job(2, (4, 4)), spot(job(3, (1, 1))))

    found = plan(picture, 60.0)

    assert ([one.job for one in found.preempts], found.starts) == (["job-1"], ())


def test_spot_job_storing_results_is_not_reclaimed() -> None:
    ending = with_fact(spot(training(job(1, (4, 4)), *seats("n1", 4))), FactKind.STORING)

    assert plan(pool([node(devices=4)], ending, job(2, (4, 4))), 60.0).preempts == ()


def test_queue_is_charged_the_spot_price() -> None:
    """The two wait for the last device; the queue that has 4 spot devices counts them as 1.2, or as 4."""
    lent = spot(training(job(1, (4, 4)), *seats("n1", 4)))
    lent = replace(lent, spec=replace(lent.spec, queue="a"))
    other = training(job(2, (2, 2)), *seats("n1", 6)[4:])
    other = replace(other, spec=replace(other.spec, queue="b"))
    mine, theirs = (replace(one, spec=replace(one.spec, queue=q)) for one, q in ((job(3), "a"), (job(4), "b")))
    picture = pool([node(devices=7)], lent, other, mine, theirs)

    def first(price: float) -> str:
        scheduler, _ = scheduler_of(picture, 60.0, Policy(order="fair", spot_price=price))
        return scheduler.decide(60.0).starts[0].id

    assert (first(0.3), first(1.0)) == ("job-3", "job-4")


def test_spot_job_partly_on_a_cordoned_node_is_spared() -> None:
    lent = spot(training(job(1, (2, 2)), Seat("n1", ("n1/0",)), Seat("n2", ("n2/0",))))
    nodes = [node("n1", 2), replace(node("n2", 2), cordoned="cordoned by ana")]

    found = plan(pool(nodes, lent, job(2)), 60.0)

    assert ([start.seats for start in found.starts], found.preempts) == ([(Seat("n1", ("n1/1",)),)], ())


def test_idle_device_is_used_while_a_spot_gang_leaves() -> None:
    """job-2 needs all of n2, so the gang leaves; job-3 starts on the idle device of n1 meanwhile."""
    lent = spot(training(job(1, (2, 2)), Seat("n1", ("n1/0",)), Seat("n2", ("n2/0",))))

    found = plan(pool([node("n1", 2), node("n2", 3)], lent, job(2, gpus=3), job(3)), 60.0)

    assert [(stop.job, stop.winner) for stop in found.preempts] == [("job-1", "job-2")]
    assert [(start.job, start.seats) for start in found.starts] == [("job-3", (Seat("n1", ("n1/1",)),))]


def test_memory_of_leaving_learners_without_devices_is_in_use() -> None:
    """Two learners share a node; the one that leaves holds a seat equal to that of the one that stays."""
    two = replace(spot(training(job(1, (1, 2), gpus=0, memory=6 * GIB), Seat("n1"), Seat("n1"))), is_live=True)
    shrinks = resized(replace(two, checkpoint_step=1), (Seat("n1"),), "pool", 60.0)[0]
    assert len(shrinks.members) == 2

    found = plan(pool([node(memory=16 * GIB)], shrinks, job(2, gpus=0, memory=6 * GIB)), 61.0)

    assert found.starts == ()
    assert by("job-2", found).startswith("Needs 1 learner with 6.0 GiB; 0 fit now.")


# -- properties -------------------------------------------------------------------------------------------------------

jobs = st.builds(
    lambda n, low, more, gpus, priority, is_spot: (spot if is_spot else replace)(
        job(n, (low, low + more), gpus=gpus, priority=priority)
    ),
    st.integers(1, 10_000),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(-1, 1),
    st.booleans(),
)
queues = st.lists(jobs, max_size=8, unique_by=lambda j: j.number)
clusters = st.lists(st.integers(0, 6), min_size=1, max_size=3)


def without_spot(picture: Pool) -> Pool:
    return replace(picture, jobs={name: one for name, one in picture.jobs.items() if not one.spec.spot})


def running(picture: Pool) -> dict[str, int]:
    return {name: len(one.gang) for name, one in picture.jobs.items() if one.gang and not one.spec.spot}


def settled(picture: Pool, now_s: float) -> Pool:
    for _ in range(12):
        found = plan(picture, now_s)
        if not (found.starts or found.preempts or found.resizes):
            return picture
        picture = carried_out(picture, now_s)
    raise AssertionError("it never comes to rest")


@given(queues, queues, clusters)
@example(  # job-2 leaves although spot job-3 gives back one device more than is needed, and restarts with one learner
    there=[job(1, (3, 3)), job(2, (1, 2)), spot(job(3, (2, 5), priority=1))],
    come=[job(4, (3, 5), priority=1), job(5, (4, 4), priority=1)],
    sizes=[1, 2, 6],
)
def test_arriving_ordinary_jobs_are_placed_as_without_spot_jobs(
    there: list[Job], come: list[Job], sizes: list[int]
) -> None:
    """Learners that can sit anywhere: the same jobs run, with as many in all. Who grows goes by who comes first.

    While ordinary jobs wait, none grows: one that was preempted beside a spot job may then have fewer learners.
    """
    there = [replace(one, spec=replace(one.spec, gpus_per_learner=1)) for one in there]
    come = [replace(o, id=f"new-{o.number}", number=o.number + 10_000, submitted_s=o.submitted_s + 9e4) for o in come]
    come = [replace(one, spec=replace(one.spec, gpus_per_learner=1)) for one in come]
    nodes = [node(f"n{i}", n) for i, n in enumerate(sizes)]
    first = settled(pool(nodes, *there), 60.0)
    then = settled(replace(first, jobs={**first.jobs, **{one.id: one for one in come}}), 70.0)

    alone = settled(without_spot(pool(nodes, *there)), 60.0)
    ordinary = {one.id: one for one in come if not one.spec.spot}
    alone = settled(replace(alone, jobs={**alone.jobs, **ordinary}), 70.0)

    assert running(then).keys() == running(alone).keys()
    waits = any(not one.gang and not one.spec.spot for one in then.jobs.values())
    assert sum(running(then).values()) == sum(running(alone).values()) or waits


@given(queues, clusters)
def test_no_device_is_given_twice_and_gangs_are_whole(there: list[Job], sizes: list[int]) -> None:
    nodes = [node(f"n{i}", n) for i, n in enumerate(sizes)]
    after = settled(pool(nodes, *there), 60.0)
    used = [(m.seat.node, d) for j in after.jobs.values() for m in j.members for d in m.seat.devices]

    assert len(used) == len(set(used))
    assert set(used) <= {(n.name, d.id) for n in nodes for d in n.devices}
    assert all(not j.gang or j.spec.learners_min <= len(j.gang) <= j.spec.learners_max for j in after.jobs.values())


@given(queues, clusters, st.randoms(use_true_random=False))
def test_the_order_of_a_listing_decides_nothing(there: list[Job], sizes: list[int], chance: object) -> None:
    nodes = [node(f"n{i}", n) for i, n in enumerate(sizes)]
    picture = carried_out(pool(nodes, *[one for one in there if one.spec.spot]), 60.0)
    others = {one.id: one for one in there if not one.spec.spot}
    listed = list({**picture.jobs, **others}.items())
    chance.shuffle(listed)  # type: ignore[attr-defined]

    assert plan(replace(picture, jobs=dict(listed)), 61.0) == plan(
        replace(picture, jobs={**picture.jobs, **others}), 61.0
    )


@given(queues, queues, clusters)
@example(  # the scheduler's seat for new-2 is still held by the job that leaves for new-1
    there=[job(1, gpus=0), job(2), job(3, (3, 3), gpus=2)],
    come=[job(1, (3, 3), priority=1), job(2)],
    sizes=[3, 3, 3],
)
@example(  # new-3 starts on an idle device that was chosen for job-5, which gets the device of new-3 in exchange
    there=[job(1, gpus=0), job(2), job(3, gpus=2), job(4, (4, 4), gpus=2), job(5, (3, 3)), spot(job(6))],
    come=[job(1, gpus=0), job(2, gpus=2, priority=1), job(3), job(4, (3, 3))],
    sizes=[3, 5, 5],
)
def test_incremental_spot_scheduler_equals_a_new_one(there: list[Job], come: list[Job], sizes: list[int]) -> None:
    """Among spot jobs a plan decides when those who were stopped have left; the scheduler does at once."""

    def rigid(one: Job) -> Job:
        return replace(one, elastic=Elastic.OFF, wish=one.spec.learners_min)

    nodes = [node(f"n{i}", n) for i, n in enumerate(sizes)]
    picture = carried_out(pool(nodes, *(rigid(one) for one in there)), 60.0)
    new = [rigid(replace(o, id=f"new-{o.number}", number=o.number + 10_000)) for o in come]
    known = {name: Known(executed_s=100.0, restart_s=1.0) for name in picture.jobs}
    picture = replace(picture, jobs={**picture.jobs, **{one.id: one for one in new}}, known=known)

    found, (scheduler, _) = plan(picture, 200.0), scheduler_of(picture, 200.0, Policy())
    choice = scheduler.decide(200.0)

    stopped = {one.job for one in found.preempts if not picture.jobs[one.winner].spec.spot}
    assert stopped == {one.victim.id for one in choice.stops if not one.winner.is_spot}
    chosen = {start.id: start.seats for start in choice.starts if not start.is_spot}
    started = {one.job: one.seats for one in found.starts if not picture.jobs[one.job].spec.spot}
    assert chosen.keys() >= started.keys()
    held = {device for one in picture.jobs.values() for member in one.members for device in member.seat.devices}
    for name, given_seats in started.items():  # on devices that are idle now, where the chosen ones still are held
        assert given_seats == chosen[name] or held & {device for seat in chosen[name] for device in seat.devices}


def test_spot_price_does_not_reorder_spot_jobs() -> None:
    def line(price: float, order: str) -> list[str]:
        jobs = [spot(job(n, (2, 2))) for n in range(1, 5)]
        known = {
            one.id: Known(length_s=9e5, executed_s=served_s)
            for one, served_s in zip(jobs, (9e4, 10, 9e3, 0), strict=True)
        }
        picture = replace(pool([node(devices=2)], *jobs), known=known)
        scheduler, _ = scheduler_of(picture, 60.0, Policy(order=order, spot_price=price))
        return [one.id for one in scheduler.queue_order()]

    for order in ("las", "gittins"):
        assert line(0.0, order) == line(0.3, order) == line(1.0, order) == ["job-2", "job-4", "job-3", "job-1"]
