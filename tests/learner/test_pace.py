"""Windows of steps, and the middle of their times."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.wire.step_windows import QUICK, STEPS, WINDOW_S, Windows, middle


def windows_of(windows: Windows, times_s: list[float]) -> list[list[float]]:
    """Return the windows that these steps make."""
    return [list(found) for found in map(windows.step, times_s) if found]


def test_a_step_that_wrote_a_checkpoint_does_not_count() -> None:
    assert middle([0.1] * 10 + [0.1001] * 10 + [5.0])[0] == pytest.approx(0.1, rel=0.01)


@given(st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=50))
def test_the_middle_lies_among_the_steps(times_s: list[float]) -> None:
    found, spread = middle(times_s)

    assert min(times_s) * (1 - 1e-9) <= found <= max(times_s) * (1 + 1e-9)
    assert spread >= 0


@pytest.mark.parametrize("steps", [5, 10, 20])
def test_few_steps_show_the_same_spread_as_many(steps: int) -> None:
    chance = random.Random(1)
    found = [middle([chance.gauss(1.0, 0.1) for _ in range(steps)])[1] for _ in range(4000)]

    assert sum(found) / len(found) == pytest.approx(0.1, rel=0.1)


def test_first_windows_of_an_autoscaled_job_are_short() -> None:
    found = windows_of(Windows(10.0, is_quick=True), [0.2] * 40)

    assert [len(one) for one in found] == [5, 5, 10, 20]
    assert sum(steps for steps, _ in QUICK) == STEPS
    assert sum(least_s for _, least_s in QUICK) == pytest.approx(WINDOW_S)


def test_windows_grow_while_nothing_changes() -> None:
    found = windows_of(Windows(4.0, is_quick=False), [0.05] * 620)

    assert [round(sum(one)) for one in found] == [1, 1, 1, 1, 2, 4, 4, 4, 4, 4, 4]


def test_changed_speed_is_reported_before_a_long_window_ends() -> None:
    windows = Windows(60.0, is_quick=True)
    windows_of(windows, [0.05] * 4000)

    found = windows_of(windows, [0.1] * 60)

    assert len(found) >= 2
    assert all(middle(one)[0] == pytest.approx(0.1) for one in found[-2:])


def test_windows_of_other_jobs_are_not_cut_short() -> None:
    windows = Windows(60.0, is_quick=False)
    windows_of(windows, [0.05] * 4000)

    assert windows_of(windows, [0.1] * 60) == []


@given(st.lists(st.floats(1e-4, 2.0), max_size=400), st.booleans(), st.sampled_from([1.0, 10.0]))
def test_windows_have_consecutive_steps_without_overlap(times_s: list[float], is_quick: bool, most_s: float) -> None:
    windows, at = Windows(most_s, is_quick=is_quick), 0
    for n, took_s in enumerate(times_s, start=1):
        if found := windows.step(took_s):
            assert n - len(found) >= at
            assert list(found) == times_s[n - len(found) : n]
            at = n
