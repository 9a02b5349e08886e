"""Usual run lengths: meaning of an estimate, given the lengths of other jobs."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.forecast.start_time import Arrival
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.run_length import History
from tests.core.test_scheduler import HOUR, entered, request, scheduler

lengths_s = st.floats(10.0, 1e7)


def history(wrong: float, count: int = 100, seed: int = 0, going: tuple[tuple[int, float], ...] = ()) -> History:
    """Jobs of half an hour or so on one device, and guesses about them that are wrong by factors of σ `wrong`."""
    found, chance = History(), Random(seed)
    for _ in range(count):
        actual_s = chance.lognormvariate(7.5, 1)
        found.learn(actual_s * chance.lognormvariate(0, wrong), actual_s, 1)
    found.look(going)
    return found


def mean_s(of: History, guess_s: float, weight: int = 1) -> float:
    found = of.mean_s(guess_s, weight)
    assert found is not None
    return found


@given(lengths_s)
def test_guesses_that_have_been_right_are_taken_at_their_word(guess_s: float) -> None:
    assert mean_s(history(0.0), guess_s) == pytest.approx(guess_s)


def test_poor_estimate_is_shrunk_to_the_usual_length() -> None:
    assert 1 * HOUR < mean_s(history(1.5), 20 * HOUR) < 10 * HOUR


def test_running_jobs_count_as_longer_than_their_run_time() -> None:
    long = ((1, 50 * HOUR),) * 10

    assert mean_s(history(1.5, going=long), 100 * HOUR) > 2 * mean_s(history(1.5), 100 * HOUR)


def test_usual_length_is_per_size_if_observed_else_overall() -> None:
    found = history(1.5)
    before_s = mean_s(found, 10 * HOUR, 8)
    for _ in range(50):
        found.learn(100 * HOUR, 100 * HOUR, 8)
    found.look(())

    assert mean_s(found, 10 * HOUR, 8) > 3 * before_s
    assert mean_s(found, 10 * HOUR, 8) > 30 * HOUR > mean_s(found, 10 * HOUR, 1)
    assert mean_s(found, 10 * HOUR, 1) < mean_s(found, 10 * HOUR, 4) < mean_s(found, 10 * HOUR, 8)


@given(lengths_s, st.floats(0.0, 3.0), st.integers(0, 9), st.integers(1, 8))
def test_a_longer_guess_means_a_longer_job(guess_s: float, wrong: float, seed: int, weight: int) -> None:
    found = history(wrong, 20, seed, ((1, 1e5), (8, 3e4), (2, 0.0)))

    assert mean_s(found, guess_s, weight) < mean_s(found, 2 * guess_s, weight)


def test_usual_lengths_are_recomputed_after_an_eighth_more_ends() -> None:
    found = history(1.0, 80)
    due = []
    for _ in range(10):
        found.learn(HOUR, HOUR, 1)
        due.append(found.is_due)

    assert due == [False] * 9 + [True]


def test_shortest_ranks_by_the_posterior_mean() -> None:
    on = scheduler()
    drawn, word = request(1, 4, length=50 * HOUR), request(2, 4, length=20 * HOUR)
    drawn.mean_s = 3 * HOUR
    entered(on, 0.0, request(0, 4), drawn, word)

    assert on.queue_order() == [drawn, word]


def test_simulated_arrival_ranks_like_its_model() -> None:
    shape, order = request(0).shape, ORDERS["shortest"]()
    again = [Arrival(gap_s=1.0, shape=shape, learners=1, length_s=50 * HOUR, mean_s=mean) for mean in (3 * HOUR, None)]

    assert order.rank(again[0].request(1, 0.0), 0.0) < order.rank(again[1].request(2, 0.0), 0.0)


@pytest.mark.parametrize("mean", [None, 2 * HOUR, 90 * HOUR])
def test_rank_of_a_running_job_changes_when_announced(mean: float | None) -> None:
    order, one = ORDERS["shortest"](), request(0, 3, length=40 * HOUR)
    one.mean_s, one.since_s = mean, 0.0
    at_s, ranks = 0.0, [order.rank(one, 0.0)]
    while (changes_s := order.rank_until(one, at_s)[1]) is not None and changes_s < 200 * HOUR:
        assert order.rank(one, changes_s - 2e-3) == ranks[-1]
        at_s = changes_s
        ranks.append(order.rank(one, at_s))

    assert all(a != b for a, b in pairwise(ranks) if b > 5)
    assert len(ranks) > 5


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_rank_until_agrees_with_rank(name: str) -> None:
    order = ORDERS[name]()
    chance = Random(name)
    for ended in (0, 60, 200):
        for _ in range(ended):
            order.learn(chance.lognormvariate(8.0, 3.0), chance.gauss(0.0, 1.0))
        for number in range(200):
            one = request(number, chance.randint(1, 8), length=chance.choice([None, chance.lognormvariate(8.0, 3.0)]))
            one.since_s, one.executed_s = (
                chance.uniform(0.0, HOUR),
                chance.choice([0.0, chance.lognormvariate(8.0, 3.0)]),
            )
            one.batch_s, one.submitted_s = chance.choice([0.0, HOUR]), chance.uniform(-HOUR, 0.0)
            now_s = chance.uniform(0.0, 4 * HOUR)

            assert order.rank_until(one, now_s)[0] == order.rank(one, now_s)
