"""Drain of a node: in any pool, no work is lost and no device is allocated twice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.placement.gang_placement import free_of, place, shape_of
from dlaas_server.core.rebalancing.drain import Leave, Way, drain
from jupyter_dlaas.wire.protocol import Elastic, Placement
from tests.core.builders import job, node, pool, seats, training


def drained(*names: str, of: Pool) -> Pool:
    nodes = tuple(replace(n, cordoned="being drained by ana", drains=True) if n.name in names else n for n in of.nodes)
    return replace(of, nodes=nodes)


def safe(one: Job, *where: Seat, is_live: bool = False) -> Job:
    """Return a job that trains there and has a checkpoint."""
    return replace(training(one, *where), checkpoint_step=5, step=7, is_live=is_live)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Up to four nodes, one or two of them drained, with jobs that train; some live, some without a checkpoint."""
    nodes = [node(f"n{i}", draw(st.integers(1, 4))) for i in range(draw(st.integers(1, 4)))]
    capacity = free_of(nodes, ())
    jobs: list[Job] = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        low, more = draw(st.integers(1, 3)), draw(st.integers(0, 2))
        one = job(
            number,
            (low, low + more),
            gpus=draw(st.integers(1, 2)),
            priority=draw(st.integers(-1, 1)),
            placement=draw(st.sampled_from(Placement)),
            elastic=draw(st.sampled_from(Elastic)),
        )
        where = place(capacity, shape_of(one), draw(st.integers(low, low + more)))
        if where is not None:
            made = training(one, *where)
            at = draw(st.sampled_from([None, 3]))
            jobs.append(replace(made, checkpoint_step=at, step=4, is_live=draw(st.booleans())))
    names = draw(st.lists(st.sampled_from([n.name for n in nodes]), min_size=1, max_size=2))
    return drained(*names, of=pool(nodes, *jobs))


def carried_out(before: Pool, leaves: tuple[Leave, ...]) -> Pool:
    jobs = dict(before.jobs)
    for leave in leaves:
        if leave.seats:
            jobs[leave.job] = resized(jobs[leave.job], leave.seats, "drain", 10.0)[0]
        elif leave.way is not Way.STAY:
            jobs[leave.job] = preempted(jobs[leave.job], "n1 is being drained", 10.0)[0]
    return replace(before, jobs=jobs)


@given(pools())
def test_seats_are_whole_off_the_node_and_given_once(before: Pool) -> None:
    gone = {n.name for n in before.nodes if n.drains}
    held = [(m.seat.node, d) for j in before.jobs.values() for m in j.members for d in m.seat.devices]
    taken: list[tuple[str, str]] = []
    for leave in drain(before):
        one = before.jobs[leave.job]
        kept = {m.seat for m in one.gang}
        assert not {seat.node for seat in leave.seats} & gone
        if leave.seats:
            least = one.spec.learners_min if one.elastic is not Elastic.OFF else leave.before
            assert least <= len(leave.seats) <= leave.before
            assert all(len(seat.devices) == one.spec.gpus_per_learner for seat in leave.seats)
        taken += [(seat.node, d) for seat in leave.seats if seat not in kept for d in seat.devices]
    assert len(set(taken)) == len(taken)
    assert not set(taken) & set(held)


@given(pools())
def test_no_work_is_lost(before: Pool) -> None:
    for leave in drain(before):
        one = before.jobs[leave.job]
        if leave.way is not Way.STAY:
            assert one.is_live or one.checkpoint_step is not None
        if leave.seats and one.is_live:
            assert {m.seat for m in one.gang} & set(leave.seats), "a learner that has the state stays"


@given(pools())
def test_drain_covers_exactly_the_jobs_on_the_node(before: Pool) -> None:
    gone = {n.name for n in before.nodes if n.drains}
    there = {j.id for j in before.jobs.values() if any(m.seat.node in gone for m in j.gang)}

    assert sorted(leave.job for leave in drain(before)) == sorted(there)


@given(pools())
def test_completed_drain_requests_nothing_more(before: Pool) -> None:
    leaves = drain(before)
    again = drain(carried_out(before, leaves))

    assert {leave.job for leave in again} <= {leave.job for leave in leaves if leave.way is Way.STAY}


@given(pools())
def test_the_order_of_a_listing_decides_nothing(before: Pool) -> None:
    turned = Pool(nodes=before.nodes[::-1], jobs=dict(reversed(list(before.jobs.items()))))

    assert drain(turned) == drain(before)


def test_shrinking_comes_before_moving_and_moving_before_preempting() -> None:
    wide = safe(job(1, (1, 2)), Seat("n1", ("n1/0",)), Seat("n2", ("n2/0",)), is_live=True)
    fixed = safe(job(2), Seat("n1", ("n1/1",)))
    last = safe(job(3, (2, 2)), Seat("n1", ("n1/2",)), Seat("n1", ("n1/3",)))
    found = drain(drained("n1", of=pool([node("n1", 4), node("n2", 2)], wide, fixed, last)))

    assert [(leave.job, leave.way) for leave in found] == [
        ("job-1", Way.SHRINK),
        ("job-2", Way.MOVE),
        ("job-3", Way.PREEMPT),
    ]
    assert found[0].text == "job-1 shrinks from 2 to 1 learner and continues"
    assert found[1].seats == (Seat("n2", ("n2/1",)),)
    assert found[2].text == (
        "job-3 is preempted, because 2 more GPUs would have to be free on other nodes. "
        "It writes a checkpoint, then returns to its place in the queue"
    )


def test_elastic_job_moves_with_fewer_learners_if_only_these_fit() -> None:
    whole = safe(job(1, (1, 3)), *seats("n1", 3))
    [leave] = drain(drained("n1", of=pool([node("n1", 3), node("n2", 2)], whole)))

    assert (leave.way, leave.before, leave.after) == (Way.MOVE, 3, 2)
    assert leave.text == "job-1 moves 2 learners to n2 and continues with 2 of 3"


def test_a_job_that_changes_its_size_just_now_leaves_afterwards() -> None:
    busy = resized(safe(job(1, (1, 2)), *seats("n1", 1)), seats("n1", 2), "you", 9.0)[0]
    [leave] = drain(drained("n1", of=pool([node("n1", 2), node("n2", 2)], busy)))

    assert not leave.is_due
