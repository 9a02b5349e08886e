"""Stragglers are reported after a while, and only if all learners have reported their step times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.runtime.guardian.stragglers import AGAIN_S, FRESH_S, PATIENCE_S, STEPS, Profile, Slow, Stragglers


def heard(
    one: Stragglers, times_s: dict[int, float], now_s: float, steps: int = STEPS, step_s: float = 0.5
) -> Slow | None:
    for member, seconds in times_s.items():
        one.receive(member, seconds, step_s, steps, now_s)
    return one.slow(times_s, now_s)


def over(times_s: dict[int, float], until_s: float, step_s: float = 0.5) -> Slow | None:
    """Return what is found if times are reported each second, from 0 on."""
    one = Stragglers()
    found = None
    for second in range(int(until_s) + 1):
        found = heard(one, times_s, second, step_s=step_s)
    return found


def test_straggler_is_reported_after_a_while_with_its_speed() -> None:
    times_s = {0: 0.10, 1: 0.20, 2: 0.10}

    assert over(times_s, PATIENCE_S - 1) is None
    assert over(times_s, PATIENCE_S) == Slow(1, 0.5)


def test_straggler_of_two_is_compared_with_their_mean() -> None:
    assert over({0: 0.10, 1: 0.14}, 60) is None
    found = over({0: 0.10, 1: 0.30}, 60)
    assert found is not None
    assert found.member == 1


def test_no_straggler_if_steps_would_hardly_be_shorter() -> None:
    times_s = {0: 0.010, 1: 0.030, 2: 0.010}

    assert over(times_s, 60, step_s=0.25) is None
    found = over(times_s, 60, step_s=0.15)
    assert found is not None
    assert found.member == 1
    assert found.speed == pytest.approx(1 / 3)


def test_transient_slowness_is_dropped() -> None:
    one = Stragglers()
    for second in range(60):
        is_slow = second % int(PATIENCE_S) != 0
        assert heard(one, {0: 0.1, 1: 0.1, 2: 0.3 if is_slow else 0.1}, second) is None


def test_missing_reports_delay_the_verdict() -> None:
    one = Stragglers()
    for second in range(30):
        one.receive(2, 0.1, 0.5, STEPS - 1, second)
        one.receive(0, 0.1, 0.5, STEPS, second)
        one.receive(1, 0.5, 0.5, STEPS, second)
        assert one.slow((0, 1, 2), second) is None
    assert heard(one, {0: 0.1, 1: 0.5}, 30.0) is None, "its time begins when all are known"
    found = heard(one, {0: 0.1, 1: 0.5}, 30.0 + PATIENCE_S)
    assert found is not None
    assert found.member == 1
    assert one.slow((0, 1), 30.0 + PATIENCE_S + FRESH_S + 1) is None


@given(st.dictionaries(st.integers(0, 20), st.floats(0.001, 100), min_size=1, max_size=8))
def test_only_a_clear_slowest_learner_is_named(times_s: dict[int, float]) -> None:
    found = over(times_s, 2 * PATIENCE_S)

    assert found is None or (times_s[found.member] == max(times_s.values()) and found.speed < 0.8)
    if max(times_s.values()) <= 1.2 * min(times_s.values()):
        assert found is None


def profiles(
    one: Stragglers, waits_s: dict[int, float], seconds: range, step_s: float = 0.5
) -> list[tuple[int, Profile]]:
    """Return the reported communication costs of the gang, each with its second."""
    found = []
    for second in seconds:
        for member, wait_s in waits_s.items():
            one.receive(member, 0.1, step_s, STEPS, second, wait_s=wait_s, skew=0.25)
        profile = one.profile(waits_s, second)
        found += [(second, profile)] if profile is not None else []
    return found


def test_communication_cost_is_the_minimum_wait_reported_once() -> None:
    one = Stragglers()

    assert profiles(one, {0: 0.30, 1: 0.05, 2: 0.20}, range(600)) == [(int(PATIENCE_S), Profile(0.1, 0.25))]


def test_changed_communication_cost_is_reported_again() -> None:
    one = Stragglers()
    began = int(PATIENCE_S)

    assert profiles(one, {0: 0.05, 1: 0.05}, range(20)) == [(began, Profile(0.1, 0.25))]
    assert profiles(one, {0: 0.25, 1: 0.25}, range(20, 200)) == [(began + int(AGAIN_S), Profile(0.5, 0.25))]
    assert profiles(one, {0: 0.25, 2: 0.25}, range(200, 300)) == [(200 + began, Profile(0.5, 0.25))]


def test_communication_cost_needs_reports_of_all_learners() -> None:
    assert profiles(Stragglers(), {0: 0.0}, range(60)) == []
    one = Stragglers()
    for second in range(60):
        one.receive(0, 0.1, 0.5, STEPS, second, wait_s=0.1)
        one.receive(1, 0.1, 0.5, STEPS - 1, second, wait_s=0.1)
        assert one.profile((0, 1), second) is None
