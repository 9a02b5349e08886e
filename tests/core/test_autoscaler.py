"""Autoscaler: conditions, the fitted curve, the search for the best size."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.elasticity.autoscaler import REFUSED, look
from dlaas_server.core.elasticity.objective import Deadline, Efficiency, Goodput, Utility, Work, best_size
from dlaas_server.core.elasticity.throughput_curve import evened, fit
from dlaas_server.core.model.size_search import Point, Search, Window

Speed = Callable[[int], float]
CONDITION = Efficiency(0.1)


def curve(speed: Speed, high: int = 32) -> dict[int, float]:
    return {k: speed(k) for k in range(1, high + 1)}


def amdahl(serial: float) -> Speed:
    return lambda k: k / (1 + serial * (k - 1))


def window(learners: int, rate: float, at_s: float, spread: float = 0.0) -> Window:
    return Window(learners=learners, at_s=at_s, steps=20, rate=rate, spread=spread)


def trained(
    speed: Speed,
    *,
    high: int = 32,
    low: int = 1,
    start: int = 1,
    windows: int = 40,
    search: Search | None = None,
    noise: float = 0.0,
    begin_s: float = 0.0,
    most: int | None = None,
) -> tuple[Search, list[int]]:
    """Windows of 10 s, one after the other; `most`: what the pool has. Returns the search and the size of each."""
    chance, search, wish, sizes = random.Random(1), search or Search(), start, []
    for n in range(windows):
        held = min(wish, most or wish)
        sizes.append(held)
        seen = window(held, speed(held) * (1 + noise * chance.gauss(0, 0.22)), begin_s + 10.0 * n, noise)
        search, wish, _ = look(search, seen, CONDITION, low=low, high=high, wish=wish)
    return search, sizes


def test_efficiency_equals_the_rule_of_the_paper_at_each_step() -> None:
    speeds: list[Speed] = [amdahl(0.2), amdahl(0.05), lambda k: k**0.3, lambda k: min(k, 4)]
    for speed in speeds:
        rates = curve(speed)
        stops = next(k for k in range(1, 33) if k == 32 or (rates[k + 1] / rates[k] - 1) * k <= 0.1)

        assert best_size(rates, CONDITION) == stops


def test_efficiency_looks_past_a_dip() -> None:
    rates = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 2.0, 6: 3.0, 7: 5.0, 8: 7.0}

    assert best_size(rates, CONDITION) == 8


def test_value_of_an_hour_decides_the_number_of_devices() -> None:
    rates = curve(amdahl(0.1))

    sizes = [best_size(rates, Utility(worth, 1.0)) for worth in (0.0, 10.0, 1000.0)]

    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] == 32


@pytest.mark.parametrize(("left_s", "size"), [(2000.0, 1), (300.0, 4), (10.0, 16)])
def test_deadline_uses_the_fewest_learners_that_finish_in_time(left_s: float, size: int) -> None:
    work = Work(samples_left=1000.0, left_s=left_s)

    assert best_size(curve(lambda k: k, 16), Deadline(), work) == size


def test_goodput_stops_where_larger_batches_teach_less() -> None:
    rates, work = curve(lambda k: k), Work(batch=100)

    assert best_size(rates, Goodput(), work) == 32
    assert best_size(rates, Goodput(noise=20.0), work) < best_size(rates, Goodput(noise=2000.0), work)


@given(
    st.floats(0, 0.3), st.floats(0, 0.004), st.sets(st.integers(1, 32), min_size=4, max_size=8), st.floats(0.01, 1e5)
)
def test_the_fit_finds_the_curve_that_the_points_lie_on(
    serial: float, talk: float, sizes: set[int], scale: float
) -> None:
    points = [
        Point(learners=k, rate=scale / (serial + (1 - serial) / k + talk * k), spread=0.1, steps=2000, at_s=0.0)
        for k in sorted(sizes)
    ]
    found = fit(points)

    assert found is not None
    assert found.is_good
    for point in points:
        assert found.rate(point.learners) == pytest.approx(point.rate, rel=0.05)


def points(speed: Speed, sizes: Iterable[int], steps: float = 40) -> list[Point]:
    return [Point(learners=k, rate=speed(k), spread=0.1, steps=steps, at_s=0.0) for k in sizes]


def test_a_peak_is_not_explained_by_a_smooth_curve() -> None:
    found = fit(points(lambda k: k if k <= 8 else 64 / k, (1, 2, 4, 8, 12, 16)))

    assert found is not None
    assert not found.is_good


@given(st.integers(2, 12), st.floats(0.01, 1e5))
def test_fit_finds_the_size_at_which_throughput_saturates(cap: int, scale: float) -> None:
    found = fit(points(lambda k: scale * min(k, cap), (1, 2, 4, 8, 16, 32), steps=400))

    assert found is not None
    assert best_size({k: found.rate(k) for k in range(1, 33)}, CONDITION) == pytest.approx(cap, abs=1)


def test_spread_of_few_steps_is_pooled_over_all_sizes() -> None:
    few = Point(learners=1, rate=1.0, spread=0.0, steps=5, at_s=0.0)
    many = Point(learners=2, rate=2.0, spread=0.1, steps=400, at_s=0.0)

    first, second = evened([few, many])

    assert first.spread > 0.07
    assert second.spread == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize(
    ("speed", "best"),
    [(lambda k: k, 32), (amdahl(0.3), 20), (lambda k: min(k, 4), 4), (lambda k: k if k <= 8 else 12 - k / 2, 8)],
)
def test_the_search_comes_to_the_best_size_and_stays(speed: Speed, best: int) -> None:
    search, sizes = trained(speed, windows=25)

    assert search.is_settled
    assert abs(sizes[-1] - best) <= 1
    assert len(set(sizes[-8:])) == 1


@given(st.integers(1, 6), st.integers(0, 20), st.integers(0, 26), st.sampled_from([0.0, 0.1]), st.integers(1, 40))
def test_no_size_outside_the_bounds_is_ever_asked_for(low: int, more: int, at: int, noise: float, kink: int) -> None:
    high = low + more
    start = min(low + at, high)
    _, sizes = trained(lambda k: min(k, kink), low=low, high=high, start=start, noise=noise)

    assert all(low <= size <= high for size in sizes)


def test_search_restarts_for_a_job_that_slows_down() -> None:
    search, sizes = trained(lambda k: k, high=16, windows=12)
    assert sizes[-1] == 16

    _, sizes = trained(lambda k: min(k, 4) * 0.8, high=16, start=16, search=search, begin_s=120.0, windows=20)

    assert abs(sizes[-1] - 4) <= 1
    assert len(set(sizes[-8:])) == 1


@pytest.mark.parametrize(("gain", "stays"), [(1.9, False), (1.08, True)])
def test_five_steps_decide_only_between_clearly_different_sizes(gain: float, stays: bool) -> None:
    def few(learners: int, rate: float) -> Window:
        return Window(learners=learners, at_s=0.0, steps=5, rate=rate, spread=0.1)

    search, wish, _ = look(Search(), few(1, 1.0), CONDITION, low=1, high=16, wish=1)
    assert wish == 2, "there is nothing to compare with yet"
    _, wish, _ = look(search, few(2, gain), CONDITION, low=1, high=16, wish=2)

    assert (wish == 2) is stays


@pytest.mark.parametrize("peak", [6, 11, 13])
def test_a_peak_between_the_sizes_that_were_doubled_is_found(peak: int) -> None:
    _, sizes = trained(lambda k: k if k <= peak else peak * (peak / k) ** 1.2, windows=30, noise=0.05)

    assert abs(sizes[-1] - peak) <= 1


def test_dip_at_two_machines_is_tested_with_a_larger_size() -> None:
    _, sizes = trained(lambda k: k if k <= 4 else k / 2, high=16, windows=30, noise=0.05)

    assert sizes[-1] == 16


def test_single_slow_window_changes_nothing() -> None:
    search, sizes = trained(lambda k: min(k, 6), high=16, windows=20)
    slow = window(sizes[-1], 1.0, 210.0)

    after, size, _ = look(search, slow, CONDITION, low=1, high=16, wish=sizes[-1])

    assert size == sizes[-1]
    assert after.is_settled


def test_settled_size_is_rechecked_ever_more_rarely() -> None:
    search, first = trained(lambda k: min(k, 4), high=8, windows=200)

    assert search.patience_s > 1000.0
    assert sum(1 for size in first if size == 4) > 150


def test_size_that_the_pool_does_not_grant_is_dropped() -> None:
    search, sizes = trained(lambda k: k, high=16, most=3, windows=3 + 2 * REFUSED)

    assert sizes[-1] == 3
    assert search.cap == 3


def test_a_job_that_is_almost_through_is_left_alone() -> None:
    search, size, _ = look(Search(idle_s=2.0), window(1, 1.0, 0.0), CONDITION, low=1, high=8, wish=1, left_s=30.0)

    assert size == 1
    assert search.points


def test_gain_below_the_cost_of_the_change_is_ignored() -> None:
    search, sizes = trained(amdahl(0.3), windows=15)
    here = sizes[-1]
    assert search.is_settled
    points = tuple(replace(p, rate=p.rate * (0.9 if p.learners == here else 1.0)) for p in search.points)

    def size(idle_s: float) -> int:
        known = replace(search, points=points, idle_s=idle_s)
        slower = window(here, amdahl(0.3)(here) * 0.9, 160.0)
        return look(known, slower, CONDITION, low=1, high=32, wish=here)[1]

    assert size(0.1) != here
    assert size(10_000.0) == here
