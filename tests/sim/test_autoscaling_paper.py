"""The experiment of Or et al., run again beside what they published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlaas_server.sim.autoscaling.curves import Curve
from dlaas_server.sim.autoscaling.paper import (
    OURS,
    THEIRS,
    TRAININGS,
    Case,
    Training,
    autoscaling,
    cases,
    saved,
    steps_of,
)

CIFAR = replace(TRAININGS[0], steps=2_000)


def flat(high: int = 60) -> Curve:
    """No learner brings anything."""
    return Curve("flat", "flat", (10.0,) * high)


def ran(training: Training, curve: Curve, start: int, rule: str) -> Case:
    return next(case for case in cases(training, curve, 0, (start,)) if case.rule == rule)


def test_a_batch_that_is_cut_among_more_learners_takes_less_time_each_step_until_talking_costs_more() -> None:
    rates = steps_of(CIFAR).rates

    assert rates[0] < rates[1] < rates[3] < rates[11]
    assert rates[59] < rates[11]


@pytest.mark.parametrize("rule", [THEIRS, OURS])
def test_where_nobody_brings_anything_both_rules_give_the_devices_back(rule: str) -> None:
    assert ran(CIFAR, flat(), 40, rule).final == 4


def test_their_rule_keeps_to_its_grid_of_sizes_and_stays_a_hundred_steps_where_it_fails() -> None:
    case = ran(CIFAR, flat(), 4, THEIRS)

    assert case.final == 4
    assert case.settled_s == pytest.approx((12 + 102) / 10, rel=0.1), "a look at 4, then a hundred steps at 8"


def test_what_is_saved_is_told_beside_the_size_that_a_rule_begins_with() -> None:
    found = cases(CIFAR, flat(), 0, (4, 40))

    assert saved(found, THEIRS)[1] > 0.8, "it began with 40 and needed 4"
    assert saved(found, THEIRS)[0] < 0.02, "nobody is faster than the others"


def test_the_command_keeps_what_was_published_apart_from_what_was_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlaas_server.sim.autoscaling.paper.TRAININGS", (CIFAR,))
    published, run_again = autoscaling(0).split("\n\n", 1)

    assert all(said in published for said in ("45 %", "85.1 %", "not given"))
    assert all(said in run_again for said in ("re-run", "their rule: time down by up to", "ours: time down by up to"))
