"""Shrinking for waiting jobs before any preemption; `auto` jobs share the remaining devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.lifecycle.plan_outcomes import resized, started
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.size_search import Point, Search
from dlaas_server.core.planning.decisions import Plan, Resized
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.scheduling.scheduler import Policy
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Elastic
from tests.core.builders import job, node, pool, seats, training, with_fact


def runs(target: Job, *there: Seat) -> Job:
    """Return the job training on these seats, able to change its size live."""
    return replace(training(target, *there), is_live=True)


def auto(number: int, learners: tuple[int, int], **fields: object) -> Job:
    return job(number, learners, elastic=Elastic.AUTO, **fields)  # type: ignore[arg-type]


def applied(picture: Pool, decided: Plan, now_s: float) -> Pool:
    """Return the pool as committed: with starts, and changes under way."""
    jobs = dict(picture.jobs)
    for start in decided.starts:
        jobs[start.job] = started(jobs[start.job], start.seats, now_s)[0]
    for resize in decided.resizes:
        jobs[resize.job] = resized(jobs[resize.job], resize.seats, resize.by, now_s, resize.why)[0]
    return replace(picture, jobs=jobs)


def carried_out(picture: Pool) -> Pool:
    """All changes under way came to their end: who was to leave is gone."""
    jobs = {}
    for one in picture.jobs.values():
        if one.resize is not None or not one.live_generation:
            for member in one.members:
                kind = FactKind.LEARNER_READY if member.generation == one.generation else FactKind.LEARNER_DOWN
                one = with_fact(one, kind, member=member.member)
            if one.members:
                one = with_fact(one, FactKind.GENERATION, generation=one.generation, live=True, step=1)
        jobs[one.id] = one
    return replace(picture, jobs=jobs)


def test_auto_job_shrinks_for_a_waiting_job_before_its_start() -> None:
    running = runs(auto(1, (1, 4)), *seats("n1", 4))
    found = plan(pool([node(devices=4)], running, job(2)), 60.0)

    assert found.resizes == (Resized("job-1", seats("n1", 3), "pool", "Makes room for the waiting job job-2."),)
    assert found.starts == ()


def test_no_further_shrink_while_a_seat_is_released() -> None:
    picture = pool([node(devices=4)], runs(auto(1, (1, 4)), *seats("n1", 4)), job(2))
    picture = applied(picture, plan(picture, 60.0), 60.0)

    again = plan(picture, 61.0)
    assert (again.starts, again.resizes, again.preempts) == ((), (), ())
    assert [start.job for start in plan(carried_out(picture), 62.0).starts] == ["job-2"]


def test_manual_wish_holds_against_equal_priority() -> None:
    running = runs(job(1, (1, 4)), *seats("n1", 4))

    assert plan(pool([node(devices=4)], running, job(2)), 60.0).resizes == ()


def test_manual_job_shrinks_instead_of_being_preempted() -> None:
    running = replace(runs(job(1, (1, 4)), *seats("n1", 4)), checkpoint_step=1)
    found = plan(pool([node(devices=4)], running, job(2, (2, 2), priority=10)), 1e6)

    assert [(r.job, len(r.seats), r.by) for r in found.resizes] == [("job-1", 2, "pool")]
    assert found.preempts == ()


def test_preemption_replaces_insufficient_shrinking() -> None:
    running = replace(runs(job(1, (2, 4)), *seats("n1", 4)), checkpoint_step=1)
    found = plan(pool([node(devices=4)], running, job(2, (4, 4), priority=10)), 1e6)

    assert [one.job for one in found.preempts] == ["job-1"]
    assert found.resizes == ()


def test_manual_job_shrinks_for_a_much_shorter_job() -> None:
    running = replace(runs(job(1, (1, 4)), *seats("n1", 4)), checkpoint_step=1)
    known = {"job-1": Known(length_s=1e6, executed_s=1e4), "job-2": Known(length_s=600.0)}
    picture = replace(pool([node(devices=4)], running, job(2)), known=known)
    rigid = replace(picture, jobs={**picture.jobs, "job-1": replace(running, elastic=Elastic.OFF)})

    assert [one.job for one in plan(rigid, 5e4).preempts] == ["job-1"]
    found = plan(picture, 5e4)
    assert found.preempts == ()
    assert [(r.job, len(r.seats)) for r in found.resizes] == [("job-1", 3)]


@pytest.mark.parametrize("elastic", [Elastic.OFF, Elastic.AUTO])
def test_unsaved_or_fixed_jobs_do_not_shrink(elastic: Elastic) -> None:
    running = training(job(1, (1, 4), elastic=elastic), *seats("n1", 4))  # not live, no checkpoint

    assert plan(pool([node(devices=4)], running, job(2, priority=10)), 60.0).resizes == ()


def test_shrunk_job_grows_back_to_its_wish() -> None:
    picture = pool([node(devices=4)], runs(job(1, (1, 4)), *seats("n1", 4)), job(2, (2, 2), priority=10))
    picture = carried_out(applied(picture, plan(picture, 60.0), 60.0))
    alone = replace(picture, jobs={"job-1": picture.jobs["job-1"]})

    assert [(r.job, len(r.seats), r.by) for r in plan(alone, 70.0).resizes] == [("job-1", 4, "pool")]


def test_idle_devices_go_to_the_largest_gain() -> None:
    points = tuple(Point(learners=k, rate=rate, spread=0.01, steps=100, at_s=0.0) for k, rate in ((1, 1.0), (2, 1.1)))
    stalls = replace(runs(auto(1, (1, 4)), *seats("n1", 1)), search=Search(points=points))
    scales = runs(auto(2, (1, 4)), *seats("n2", 1))
    found = plan(pool([node("n1", 2), node("n2", 2)], stalls, scales), 60.0)

    assert [(r.job, len(r.seats)) for r in found.resizes] == [("job-2", 3)]


def test_auto_jobs_exchange_devices_over_two_plans() -> None:
    held, wants = runs(auto(1, (1, 8)), *seats("n1", 7)), runs(auto(2, (1, 8)), *seats("n2", 1))
    picture = pool([node("n1", 7), node("n2", 1)], held, wants)
    first = plan(picture, 60.0)

    assert [(r.job, r.by) for r in first.resizes] == [("job-1", "pool")]
    after = carried_out(applied(picture, first, 60.0))
    assert [r.job for r in plan(after, 61.0).resizes] == ["job-2"]


# -- what always holds ------------------------------------------------------------------------------------------------


@st.composite
def pictures(draw: st.DrawFn) -> Pool:
    width = draw(st.integers(2, 6))
    nodes, free = [node(f"n{i}", width) for i in range(2)], [*seats("n0", width), *seats("n1", width)]
    jobs: list[Job] = []
    for number in range(1, draw(st.integers(2, 7))):
        least = draw(st.integers(1, 3))
        most = draw(st.integers(least, 6))
        made = job(
            number,
            (least, most),
            elastic=draw(st.sampled_from(list(Elastic))),
            priority=draw(st.integers(0, 1)) * 10,
            wish=draw(st.integers(least, most)),
        )
        size = draw(st.integers(least, most))
        if draw(st.booleans()) and len(free) >= size:
            made, free = runs(made, *free[:size]), free[size:]
        jobs.append(made)
    return pool(nodes, *jobs)


@given(pictures(), st.sampled_from(["shortest", "fifo", "fifo-skip", "las"]))
def test_changes_are_within_bounds_and_come_to_rest(picture: Pool, order: str) -> None:
    policy = Policy(order=order)
    for turn in range(40):
        decided = plan(picture, 60.0 + turn, policy)
        held = [device for one in picture.jobs.values() for m in one.members for device in m.seat.devices]
        given = [d for s in decided.starts for seat in s.seats for d in seat.devices]
        assert len(set(held + given)) == len(set(held)) + len(given)
        for change in decided.resizes:
            target = picture.jobs[change.job]
            assert min(target.spec.learners_min, len(target.gang)) <= len(change.seats) <= target.spec.learners_max
            mine = {d for m in target.members for d in m.seat.devices}
            new = {d for seat in change.seats for d in seat.devices} - mine
            assert not new & set(held + given)
        if not decided.starts and not decided.resizes:
            return
        picture = carried_out(applied(picture, decided, 60.0 + turn))
    raise AssertionError("it does not come to rest")


@given(pictures())
def test_low_priority_auto_job_yields_seats_above_its_minimum(
    picture: Pool,
) -> None:
    for turn in range(40):
        decided = plan(picture, 60.0 + turn, Policy(order="fifo-skip"))
        if not decided.starts and not decided.resizes:
            break
        picture = carried_out(applied(picture, decided, 60.0 + turn))
    jobs = list(picture.jobs.values())
    free = sum(len(n.devices) for n in picture.nodes) - sum(len(j.members) for j in jobs)
    line = sorted((j for j in jobs if not j.members), key=lambda j: (-j.priority, j.submitted_s, j.number))
    for waiting in line[:1]:  # who comes after the first may wait for what is promised to that
        spare = [
            len(j.gang) - j.spec.learners_min
            for j in jobs
            if j.gang and j.elastic is Elastic.AUTO and j.priority <= waiting.priority
        ]
        assert waiting.spec.learners_min > free + sum(spare)
