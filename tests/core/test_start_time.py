"""Start estimates of waiting jobs, by simulating the scheduler."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlaas_server.core.forecast.size_offers import offers
from dlaas_server.core.forecast.start_time import Arrival, Outlook, forecast, outlooks, world_of
from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.core.planning.plan import DEFAULT
from dlaas_server.core.scheduling.ordering import Order, new_order
from dlaas_server.core.scheduling.run_length import length_s
from dlaas_server.core.scheduling.scheduler import Policy
from tests.core.builders import job, node, pool, seats, training

FIFO = Policy(order="fifo")
LENGTHS = st.lists(st.floats(1.0, 1e5), min_size=1, max_size=5)


def waiting(*lengths: float | None, executed: float = 40.0, running: float = 100.0) -> Pool:
    """Return a job of 100 s that has run for `executed`, and jobs of these lengths behind it. Each takes the pool."""
    runs = training(job(1, (2, 2)), *seats("n1", 2))
    behind = [job(n, (2, 2)) for n in range(2, 2 + len(lengths))]
    known = {j.id: Known(length_s=length) for j, length in zip(behind, lengths, strict=True)}
    known[runs.id] = Known(length_s=running, executed_s=executed)
    return replace(pool([node(devices=2)], runs, *behind), known=known)


def seen(picture: Pool, spread: float = 0.0, policy: Policy = FIFO, recent: tuple[Arrival, ...] = ()) -> list[Outlook]:
    """Outlooks by place in line."""
    found = outlooks(world_of(picture, 1000.0, policy), 1000.0, spread=spread, draws=20, recent=recent)
    return [found[number] for number in sorted(found)]


def test_each_starts_when_those_before_it_have_ended() -> None:
    assert [one.expected_s for one in seen(waiting(30.0, 50.0, 10.0))] == [1060.0, 1090.0, 1140.0]


def test_no_estimate_behind_a_job_of_unknown_length() -> None:
    assert forecast(waiting(None, 50.0), 1000.0, FIFO, 0.0) == {"job-2": (1060.0, 1060.0)}


def test_forecast_uses_the_lengths_that_the_order_learnt() -> None:
    """All jobs took 10,000 GPU-seconds until now, so one that had 9,800 of them is soon through; others know nothing
    but that it had much already."""
    picture = waiting(5000.0, 5000.0)
    known = {**picture.known, "job-3": Known(length_s=5000.0, executed_s=4900.0)}
    policy, learnt = Policy(order="gittins", preempts=False), new_order("gittins")
    for _ in range(60):
        learnt.learn(10_000.0)

    def first(order: Order | None) -> str:
        found = forecast(replace(picture, known=known), 1000.0, policy, 0.0, order=order)
        return min(found, key=lambda job: found[job])

    assert (first(None), first(learnt)) == ("job-2", "job-3")


def test_seats_that_are_being_given_up_count_as_free() -> None:
    """A gang is just being moved off the node that one waits for."""
    gang = training(job(1, (2, 2)), *seats("n1", 1), *seats("n2", 1))
    moved = replace(gang, is_live=True)
    moved, _ = resized(moved, seats("n2", 2), "pool", 1000.0)
    picture = pool([node("n1", 2), node("n2", 2)], moved, job(2, gpus=2))
    known = {"job-1": Known(length_s=5000.0), "job-2": Known(length_s=10.0)}

    assert forecast(replace(picture, known=known), 1000.0, FIFO, 0.0) == {"job-2": (1000.0, 1000.0)}


def lent(number: int, *held: Seat) -> Job:
    one = job(number, (2, 2))
    return training(replace(one, spec=replace(one.spec, spot=True)), *held)


def test_job_waiting_for_a_spot_job_starts_within_its_notice() -> None:
    leaving, _ = preempted(lent(1, *seats("n1", 2)), "2 GPUs go back", 1000.0, 12.0)
    picture = pool([node(devices=2)], leaving, job(2, (2, 2)), job(3, (2, 2)))
    known = {"job-2": Known(length_s=100.0), "job-3": Known(length_s=100.0)}

    found = forecast(replace(picture, known=known), 1000.0, FIFO, 0.0)

    assert found == {"job-2": (1000.0, 1012.0), "job-3": (1100.0, 1112.0)}


def test_notice_of_a_later_reclaim_begins_then() -> None:
    runs, spot = training(job(1, (2, 2)), *seats("n1", 2)), lent(2, *seats("n2", 2))
    picture = pool([node("n1", 2), node("n2", 2)], runs, spot, job(3, (4, 4)))
    known = {"job-1": Known(length_s=60.0), "job-2": Known(length_s=9000.0), "job-3": Known(length_s=100.0)}

    found = forecast(replace(picture, known=known), 1000.0, Policy(order="fifo", spot_notice_s=12.0), 0.0)

    assert found["job-3"] == (1060.0, 1072.0)


def test_forecast_waits_for_the_checkpoint_before_a_preemption() -> None:
    urgent = replace(job(2, (2, 2)), priority=100)

    def expected(runs: Job, policy: Policy = DEFAULT) -> float:
        known = {"job-1": Known(length_s=3600.0, executed_s=40.0, restart_s=3.0), "job-2": Known(length_s=60.0)}
        picture = replace(pool([node(devices=2)], replace(runs, seated_s=990.0), urgent), known=known)
        return forecast(picture, 1000.0, policy, 0.0)["job-2"][0]

    runs = training(job(1, (2, 2)), *seats("n1", 2))
    assert expected(runs) == expected(replace(runs, checkpoint_step=0)) == 990.0 + 10 * 3.0
    assert expected(replace(runs, is_plain=True)) == expected(runs, Policy(preempts=False)) == 1000.0 + 3560.0


def test_overrun_job_is_expected_to_take_as_long_again() -> None:
    assert [one.expected_s for one in seen(waiting(30.0, executed=150.0))] == [1050.0]


@pytest.mark.parametrize(("share", "length"), [(0.5, 3000.0), (0.75, 6000.0)])
def test_half_of_far_overrun_jobs_end_within_twice_the_time(share: float, length: float) -> None:
    assert length_s(100.0, 1500.0, 0.25, share) == pytest.approx(length)


@given(st.floats(1.0, 1e5), st.floats(0.0, 1e5), st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_quantiles_of_the_end_are_ordered_and_not_past(
    guess: float, executed: float, spread: float, one: float, other: float
) -> None:
    early, late = (length_s(guess, executed, spread, share) for share in sorted((one, other)))

    assert executed < early <= late


@settings(max_examples=50)
@given(LENGTHS, st.floats(0.01, 1.0), st.floats(0.1, 5.0), st.floats(1.0, 3.0))
def test_intervals_nest_and_hold_the_middle(lengths: list[float], spread: float, factor: float, more: float) -> None:
    for one in seen(waiting(*lengths), spread):
        half, most, wider = one.between(0.5, factor), one.between(0.8, factor), one.between(0.8, factor * more)

        assert 1000.0 <= wider[0] <= most[0] + 1e-6
        assert most[0] <= half[0] + 1e-6
        assert half[0] <= one.at(0.5) + 1e-6
        assert one.at(0.5) <= half[1] + 1e-6
        assert half[1] <= most[1] + 1e-6
        assert most[1] <= wider[1] + 1e-6
        assert one.drawn_s[0] - 60.0 <= one.likely_s <= one.drawn_s[-1] * 1.4


@settings(max_examples=50)
@given(LENGTHS, st.floats(0.0, 1.0), st.floats(1.0, 10.0))
def test_fifo_starts_are_ordered_and_monotone_in_lengths(lengths: list[float], spread: float, factor: float) -> None:
    found = seen(waiting(*lengths), spread)
    longer = seen(waiting(*lengths, running=100.0 * factor), spread)

    for before, after in itertools.pairwise(found):
        assert all(a <= b for a, b in zip(before.drawn_s, after.drawn_s, strict=True))
    for one, other in zip(found, longer, strict=True):
        assert one.expected_s <= other.expected_s + 1e-6
        assert all(a <= b + 1e-6 for a, b in zip(one.drawn_s, other.drawn_s, strict=True))


def test_the_same_pool_has_the_same_outlook_again() -> None:
    assert seen(waiting(30.0, 50.0), 0.5) == seen(waiting(30.0, 50.0), 0.5)


def arrival(length: float) -> Arrival:
    shape = Shape(1, 0.0, 0, None, Layout.PACK)
    return Arrival(gap_s=20.0, shape=shape, learners=2, length_s=length)


def test_later_arrivals_may_pass_if_the_order_allows() -> None:
    arrivals = (arrival(5.0), arrival(5.0))

    first_come, shortest = seen(waiting(5e4), recent=arrivals), seen(waiting(5e4), recent=arrivals, policy=Policy())
    assert first_come[0].at(0.9) == 1060.0
    assert shortest[0].at(0.9) > 1060.0


def test_smaller_size_that_would_start_at_once_is_offered() -> None:
    runs, waits = training(job(1, (1, 1)), *seats("n1", 1)), job(2, (4, 4))
    known = {runs.id: Known(length_s=100.0), waits.id: Known(length_s=50.0)}

    assert offers(replace(pool([node(devices=4)], runs, waits), known=known), 1000.0, FIFO) == {"job-2": 3}


def test_seats_of_jobs_ahead_are_not_offered() -> None:
    runs, ahead, waits = training(job(1, (1, 1)), *seats("n1", 1)), job(2, (4, 4)), job(3, (4, 4))

    assert offers(pool([node(devices=4)], runs, ahead, waits), 1000.0, FIFO) == {"job-2": 3}


def test_starts_beyond_the_horizon_have_no_interval() -> None:
    assert Outlook(0.0, 10.0, (5.0, 10.0, inf, inf)).between(0.8)[1] == inf
