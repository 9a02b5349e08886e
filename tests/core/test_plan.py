"""Plans: starts, changes of size, waits and their reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized, started
from dlaas_server.core.lifecycle.user_requests import apply_request
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.states import Event
from dlaas_server.core.planning.phases import RESTARTS_FROM_BEGINNING
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.scheduler_snapshot import scheduler_of
from dlaas_server.core.planning.wait_reasons import check_feasible
from dlaas_server.core.scheduling.policy import Policy
from jupyter_dlaas.wire.journal import FactKind, Goal
from jupyter_dlaas.wire.protocol import Elastic, Refused
from tests.core.builders import carried_out, deploying, job, node, pool, seats, training, with_fact


def starts(picture: Pool) -> dict[str, int]:
    return {s.job: len(s.seats) for s in plan(picture, 60.0).starts}


def reasons(picture: Pool) -> dict[str, str]:
    return {w.job: w.reason for w in plan(picture, 60.0).waits}


def test_two_of_four_gangs_of_four_start_on_eight_slots() -> None:
    found = plan(pool([node(devices=8)], *(job(n, (4, 4)) for n in range(1, 5))), 60.0)

    assert [s.job for s in found.starts] == ["job-1", "job-2"]
    assert [(w.job, w.place, w.of) for w in found.waits] == [("job-3", 1, 2), ("job-4", 2, 2)]


def test_high_priority_job_starts_before_older_ones() -> None:
    found = starts(pool([node(devices=4)], job(1, (4, 4)), job(2, (4, 4), priority=100)))

    assert found == {"job-2": 4}


def test_a_gang_that_waits_takes_nothing_from_the_next() -> None:
    assert starts(pool([node(devices=2)], job(1, (4, 4), priority=1), job(2, (2, 2)))) == {"job-2": 2}


def test_every_waiting_job_gets_its_least_before_any_gets_more() -> None:
    assert starts(pool([node(devices=4)], job(1, (1, 4)), job(2, (1, 4)))) == {"job-1": 3, "job-2": 1}


def test_no_job_grows_while_another_waits() -> None:
    running = training(job(1, (1, 4), wish=4), *seats("n1", 1))
    found = plan(pool([node(devices=4)], running, job(2, (4, 4))), 60.0)

    assert found.resizes == ()
    assert {w.job: w.reason for w in found.waits}["job-1"] == "1 of 4 learners; waiting jobs have precedence."


def test_wait_reason_names_need_free_devices_and_holders() -> None:
    running = training(job(1, (3, 3)), *seats("n1", 3))

    assert reasons(pool([node(devices=4)], running, job(2, (4, 4)))) == {
        "job-2": "Needs 4 GPUs at once; 1 is free. job-1 holds 3."
    }


def test_wait_reason_of_a_job_without_devices_names_cpus() -> None:
    assert reasons(pool([node(devices=0, cpus=2)], job(1, (1, 1), gpus=0, cpus=4))) == {
        "job-1": "Needs 1 learner with 4 CPUs; 0 would fit on the devices in service."
    }


def test_smaller_wish_releases_the_last_seats() -> None:
    running = replace(training(job(1, (1, 4)), *seats("n1", 4)), wish=2)

    assert [r.seats for r in plan(pool([node(devices=4)], running), 60.0).resizes] == [seats("n1", 2)]


def test_larger_wish_keeps_the_seats_and_adds_more() -> None:
    running = replace(training(job(1, (1, 4), wish=2), *seats("n1", 2)), wish=4)

    assert [r.seats for r in plan(pool([node(devices=4)], running), 60.0).resizes] == [seats("n1", 4)]


def test_a_wish_is_kept_though_only_part_can_be_granted() -> None:
    running = replace(training(job(1, (1, 4), wish=2), *seats("n1", 2)), wish=4)
    other = training(job(2), Seat("n1", ("n1/3",)))
    found = plan(pool([node(devices=4)], running, other), 60.0)

    assert [len(r.seats) for r in found.resizes] == [3]
    assert [w.reason for w in found.waits] == ["3 of 4 learners; waiting for 1 GPU."]


@pytest.mark.parametrize(
    ("request_", "size"),
    [({}, 4), ({"gpus": 2}, 2), ({"gpus": 0}, 8), ({"gpus": 0, "cpus": 2.0}, 4), ({"gpus": 0, "memory": 2**30}, 16)],
)
@pytest.mark.parametrize("elastic", [Elastic.MANUAL, Elastic.AUTO])
def test_wish_beyond_the_pool_grows_to_what_it_holds(request_: dict[str, Any], size: int, elastic: Elastic) -> None:
    wishes = job(1, (1, 100_000), elastic=elastic, **request_)
    picture = pool([node(devices=4, cpus=8.0, memory=16 * 2**30)], wishes)

    [start] = plan(picture, 60.0).starts
    after = carried_out(picture, 60.0)
    found = plan(after, 200.0)

    assert (len(start.seats), found.resizes) == (size, ())
    if elastic is Elastic.MANUAL:
        assert [w.reason for w in found.waits] == [f"{size} of 100,000 learners; the pool has no room for more."]


def test_job_that_holds_the_pool_is_not_advised_to_resume() -> None:
    """It has no checkpoint; but no other size is possible anyway."""
    found = plan(pool([node(devices=4)], replace(plain(4, 4), wish=100_000)), 200.0)

    assert [w.reason for w in found.waits] == ["4 of 100,000 learners; the pool has no room for more."]


def test_learners_that_request_nothing_are_limited_by_cpus() -> None:
    nodes = [node("n1", cpus=8.0), node("n2", cpus=8.0)]

    check_feasible(job(1, (16, 16), gpus=0), nodes)
    with pytest.raises(Refused, match="requests 100,000 learners without devices, but the pool has room for only 16"):
        check_feasible(job(1, (100_000, 100_000), gpus=0), nodes)


def plain(held: int, wish: int, **fields: object) -> Job:
    """Return a plain job that trains since 100 s and wishes for another size."""
    one = training(job(1, (1, 4), wish=held), *seats("n1", held))
    one = with_fact(one, FactKind.GENERATION, generation=1, step=0, plain=True)
    return replace(one, wish=wish, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("held", "wish"), [(1, 2), (3, 1)])
def test_job_without_checkpoint_keeps_its_size_with_a_reason(held: int, wish: int) -> None:
    found = plan(pool([node(devices=4)], plain(held, wish)), 110.0)

    assert found.resizes == ()
    assert [w.reason for w in found.waits] == [f"Stays at {count(held, 'learner')}: {RESTARTS_FROM_BEGINNING}"]


@pytest.mark.parametrize(("held", "wish"), [(1, 2), (3, 1)])
def test_job_changes_its_size_once_it_has_a_checkpoint(held: int, wish: int) -> None:
    begun = with_fact(plain(held, wish), FactKind.BEGUN, generation=1)

    for one in (begun, plain(held, wish, checkpoint_step=7)):
        assert [len(r.seats) for r in plan(pool([node(devices=4)], one), 110.0).resizes] == [wish]
    assert with_fact(plain(held, wish), FactKind.BEGUN, generation=0).is_plain, "of an older generation"


@pytest.mark.parametrize(("after_s", "size"), [(10.0, [1]), (70.0, [])])
def test_independent_learners_restart_only_if_barely_begun(after_s: float, size: list[int]) -> None:
    alone = plain(3, 1, wish_by="program")

    assert [len(r.seats) for r in plan(pool([node(devices=4)], alone), 100.0 + after_s).resizes] == size


def test_a_job_in_transition_is_not_resized_again() -> None:
    running = replace(training(job(1, (1, 4), wish=1), *seats("n1", 1)), wish=2)
    changing = resized(running, seats("n1", 2), "you", 60.0)[0]

    assert plan(pool([node(devices=4)], replace(changing, wish=4)), 60.0).resizes == ()


def test_elastic_off_keeps_the_initial_size() -> None:
    running = training(job(1, (1, 4), wish=4, elastic=Elastic.OFF), *seats("n1", 2))

    assert plan(pool([node(devices=4)], running), 60.0).resizes == ()


def test_a_halting_job_is_not_resized() -> None:
    running = apply_request(training(job(1, (1, 4), wish=1), *seats("n1", 1)), Event.HALT, by="ana", now_s=1.0)[0]

    assert plan(pool([node(devices=4)], replace(running, wish=4)), 60.0).resizes == ()


def test_infeasible_job_is_refused_with_the_fix() -> None:
    with pytest.raises(Refused, match=r"requests 16 GPUs, but the pool has only 8\. Request at most 8"):
        check_feasible(job(1, (16, 16)), [node(devices=8)])


def test_job_that_could_start_later_is_not_refused() -> None:
    check_feasible(job(1, (8, 8)), [replace(node(devices=8), cordoned="maintenance")])


def test_a_gang_whose_learners_fit_no_node_is_refused() -> None:
    with pytest.raises(Refused, match=r"3 GPUs, but no node has all of that; the pool's nodes have up to 2 GPUs\."):
        check_feasible(job(1, gpus=3), [node("a", 2), node("b", 2)])


def test_gang_that_fits_in_part_is_refused_with_a_number() -> None:
    with pytest.raises(Refused, match=r"3 learners with 2 GPUs each, but only 2 fit on the pool's nodes\. Request at"):
        check_feasible(job(1, (3, 3), gpus=2), [node("a", 3), node("b", 3)])


def checkpointed(number: int, learners: int, slots: tuple[Seat, ...], ran_s: float = 1000.0) -> tuple[Job, Known]:
    one = replace(training(job(number, (learners, learners)), *slots), checkpoint_step=5)
    return one, Known(executed_s=ran_s, restart_s=1.0)


def test_higher_priority_preempts_a_checkpointed_job_and_waits() -> None:
    running, known = checkpointed(1, 4, seats("n1", 4))
    picture = replace(pool([node(devices=4)], running, job(2, (4, 4), priority=9)), known={running.id: known})
    found = plan(picture, 60.0)

    assert [(p.job, p.winner) for p in found.preempts] == [("job-1", "job-2")]
    assert found.preempts[0].reason == "job-2 (ana) has priority 9"
    assert found.starts == ()

    leaving = preempted(running, found.preempts[0].reason, 60.0)[0]
    again = plan(replace(picture, jobs={**picture.jobs, running.id: leaving}), 61.0)
    assert (again.preempts, again.starts) == ((), ())


def test_devices_being_freed_are_reserved_for_their_job() -> None:
    running, known = checkpointed(1, 3, seats("n1", 3))
    leaving = preempted(running, "job-2", 60.0)[0]
    picture = pool([node(devices=4)], leaving, job(2, (4, 4), priority=9), job(3))

    assert plan(replace(picture, known={running.id: known}), 61.0).starts == ()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"checkpoint_step": None}, "it would start over"),
        ({"goal": Goal.HALT}, "it leaves already"),
        ({"priority": 9}, "it is as important"),
    ],
)
def test_job_that_could_not_continue_is_not_preempted(changed: dict[str, object], why: str) -> None:
    running, known = checkpointed(1, 4, seats("n1", 4))
    running = replace(running, **changed)  # type: ignore[arg-type]
    picture = pool([node(devices=4)], running, job(2, (4, 4), priority=9))

    assert plan(replace(picture, known={running.id: known}), 60.0).preempts == (), why


jobs = st.builds(
    lambda n, low, more, gpus, priority, at: job(n, (low, low + more), gpus=gpus, priority=priority, submitted_s=at),
    st.integers(1, 10_000),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(0, 3),
    st.integers(-2, 2),
    st.integers(0, 5).map(float),
)
queues = st.lists(jobs, max_size=10, unique_by=lambda j: j.number)
clusters = st.lists(st.integers(0, 8), min_size=1, max_size=4)


def drained(picture: Pool) -> Pool:
    """Return the pool after its plan was carried out."""
    found = plan(picture, 60.0)
    after = dict(picture.jobs)
    for start in found.starts:
        after[start.job] = started(after[start.job], start.seats, 60.0)[0]
    for resize in found.resizes:
        after[resize.job] = resized(after[resize.job], resize.seats, resize.by, 60.0)[0]
    return replace(picture, jobs=after)


@given(queues, clusters)
def test_no_device_is_given_twice_and_gangs_are_whole(queue: list[Job], sizes: list[int]) -> None:
    nodes = [node(f"n{i}", n) for i, n in enumerate(sizes)]
    after = drained(pool(nodes, *queue))
    used = [(m.seat.node, d) for j in after.jobs.values() for m in j.members for d in m.seat.devices]
    there = {(n.name, d.id) for n in nodes for d in n.devices}

    assert len(used) == len(set(used))
    assert set(used) <= there
    for j in after.jobs.values():
        assert not j.members or j.spec.learners_min <= len(j.members) <= j.spec.learners_max


@given(queues, clusters)
def test_a_plan_applied_and_planned_again_starts_nothing(queue: list[Job], sizes: list[int]) -> None:
    after = drained(pool([node(f"n{i}", n) for i, n in enumerate(sizes)], *queue))
    again = plan(after, 60.0)

    assert (again.starts, again.resizes) == ((), ())


@given(queues, clusters, st.randoms(use_true_random=False))
def test_the_order_of_a_listing_decides_nothing(queue: list[Job], sizes: list[int], chance: object) -> None:
    nodes = [node(f"n{i}", n) for i, n in enumerate(sizes)]
    shuffled, mixed = list(queue), list(nodes)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    chance.shuffle(mixed)  # type: ignore[attr-defined]

    assert plan(pool(mixed, *shuffled), 60.0) == plan(pool(nodes, *queue), 60.0)


@given(queues, clusters)
def test_every_waiting_job_has_a_reason_and_a_place(queue: list[Job], sizes: list[int]) -> None:
    found = plan(pool([node(f"n{i}", n) for i, n in enumerate(sizes)], *queue), 60.0)
    waiting = [w for w in found.waits if w.place]

    assert len(found.starts) + len(waiting) == len(queue)
    assert [w.place for w in waiting] == list(range(1, len(waiting) + 1))
    assert all(w.reason.startswith("Needs ") and w.reason.endswith(".") for w in waiting)


def test_a_job_that_starts_holds_its_seats_at_once() -> None:
    assert deploying(job(learners=(2, 2)), *seats("n1", 2)).held == 2


def test_order_receives_the_spread_of_a_length() -> None:
    picture = replace(pool([node()], job(1)), known={"job-1": Known(length_s=60.0, spread=0.1)})

    (waiting,) = scheduler_of(picture, 60.0, Policy())[0].queue_order()
    assert waiting.spread == 0.1
