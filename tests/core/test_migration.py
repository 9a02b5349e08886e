"""Migration of running elastic jobs by the plan: for a waiting job, else for locality; rarely, never without a gain."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dlaas_server.core.lifecycle.plan_outcomes import resized
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.placement.gang_placement import FreeCapacity, free_of, place, shape_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.placement.topology import level_of
from dlaas_server.core.planning.decisions import Resized
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.rebalancing.migration import AGAIN_S
from dlaas_server.core.scheduling.policy import Policy
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Elastic, Placement
from tests.core.builders import job, node, pool, seats, training, with_fact

NOW_S = 1000.0


def live(target: Job, *held: Seat) -> Job:
    """Return the job training on these seats, able to change its size live."""
    return replace(training(target, *held), is_live=True)


def moves(on: Pool, policy: Policy | None = None) -> tuple[Resized, ...]:
    found = plan(on, NOW_S, policy or Policy()).resizes
    return tuple(one for one in found if len(one.seats) == len(on.jobs[one.job].gang))


def moved(on: Pool, change: Resized) -> Pool:
    """Return the pool after the change."""
    target, _ = resized(on.jobs[change.job], change.seats, change.by, NOW_S, change.why)
    target = replace(target, members=target.gang)  # those that left are gone
    target = with_fact(target, FactKind.GENERATION, generation=target.generation, live=True, at_s=NOW_S)
    return replace(on, jobs={**on.jobs, change.job: target})


APART = live(job(1, (1, 2)), *seats("a", 1), *seats("b", 1))


def test_spread_live_job_consolidates_with_a_reason() -> None:
    [change] = moves(pool([node("a", 1), node("b", 3)], APART))

    assert (change.job, {seat.node for seat in change.seats}, change.by) == ("job-1", {"b"}, "pool")
    assert change.why == "Its 2 learners fit on one node (b) now and train faster there."


def test_spread_or_fixed_jobs_are_not_consolidated() -> None:
    nodes = [node("a", 1), node("b", 3)]
    for still in (
        replace(APART, elastic=Elastic.OFF),
        replace(APART, is_live=False),  # no checkpoint: work would be lost
        replace(APART, spec=replace(APART.spec, placement=Placement.SPREAD)),
    ):
        assert moves(pool(nodes, still)) == ()
    as_the_pool = replace(APART, spec=replace(APART.spec, placement=None))
    assert moves(pool(nodes, as_the_pool), Policy(placement=Layout.SPREAD)) == ()
    assert moves(pool(nodes, as_the_pool), Policy(placement=Layout.TOPOLOGY)) != ()


def test_migrated_job_is_not_migrated_again_soon() -> None:
    for ago_s, count in ((AGAIN_S - 1, 0), (AGAIN_S, 1)):
        assert len(moves(pool([node("a", 1), node("b", 3)], replace(APART, moved_s=NOW_S - ago_s)))) == count


def test_end_of_a_rest_wakes_the_planner() -> None:
    nodes = [node("a", 1), node("b", 3)]
    for one in (APART, replace(APART, spec=replace(APART.spec, spot=True))):
        for ago_s, wake_s in ((60.0, NOW_S + AGAIN_S - 60), (AGAIN_S, None)):
            resting = replace(one, moved_s=NOW_S - ago_s)
            assert plan(pool(nodes, resting), NOW_S, Policy()).wake_s == wake_s


def test_no_consolidation_while_a_job_waits() -> None:
    waits = job(2, (4, 4))

    assert moves(pool([node("a", 1), node("b", 3)], APART, waits)) == ()


def test_learner_moves_for_a_job_waiting_for_a_node() -> None:
    waits, nodes = job(2, gpus=2), [node("a", 2), node("b", 2)]
    before = pool(nodes, APART, waits)

    [change] = moves(before)

    assert {seat.node for seat in change.seats} in ({"a"}, {"b"})
    assert change.why.endswith("for the waiting job job-2; it fits there afterwards.")
    after = plan(moved(before, change), NOW_S, Policy())
    assert [start.job for start in after.starts] == ["job-2"]
    assert after.resizes == ()


def test_no_migration_for_a_job_that_still_cannot_start() -> None:
    first, waits = job(2, (4, 4)), job(3, gpus=2)

    assert moves(pool([node("a", 2), node("b", 2)], APART, first, waits), Policy(order="fifo")) == ()


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Draw a pool with running jobs and some waiting ones."""
    nodes = [replace(node(f"n{i}", draw(st.integers(1, 4))), rack=draw(st.sampled_from("xy"))) for i in range(4)]
    capacity: FreeCapacity = free_of(nodes, ())
    jobs: list[Job] = []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        learners = draw(st.integers(1, 3))
        one = job(number, (learners, learners), gpus=draw(st.integers(1, 2)))
        spread = replace(shape_of(one), placement=Layout.SPREAD)
        held = place(capacity, spread, learners)
        if held is not None:
            elastic = draw(st.sampled_from([Elastic.MANUAL, Elastic.AUTO, Elastic.OFF]))
            jobs.append(replace(live(one, *held), elastic=elastic, is_live=draw(st.booleans())))
    waiting = [job(9, (1, 1), gpus=2)] if draw(st.booleans()) else []
    return pool(nodes, *jobs, *waiting)


@settings(deadline=None)
@given(pools())
def test_migration_keeps_the_size_and_uses_free_devices_once(on: Pool) -> None:
    capacity = free_of(on.nodes, on.jobs.values())
    found = moves(on)
    for change in found:
        before = [m.seat for m in on.jobs[change.job].gang]
        shape, joins = shape_of(on.jobs[change.job]), [seat for seat in change.seats if seat not in before]
        assert on.jobs[change.job].elastic is not Elastic.OFF
        assert on.jobs[change.job].is_live
        assert len(joins) < len(before), "a learner with the state stays"
        assert capacity.has(shape, joins)
        capacity.claim(shape, joins)
        assert level_of(capacity, change.seats) <= level_of(capacity, tuple(before))
    done = set[str]()
    while found:  # no job moves twice, so it terminates
        assert not {one.job for one in found} & done
        done |= {one.job for one in found}
        for change in found:
            on = moved(on, change)
        found = moves(on)
