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


def test_step_time_falls_until_communication_dominates() -> None:
    rates = steps_of(CIFAR).rates

    assert rates[0] < rates[1] < rates[3] < rates[11]
    assert rates[59] < rates[11]


@pytest.mark.parametrize("rule", [THEIRS, OURS])
def test_useless_learners_are_released_by_both_rules(rule: str) -> None:
    assert ran(CIFAR, flat(), 40, rule).final == 4


def test_papers_rule_keeps_its_grid_and_waits_hundred_steps() -> None:
    case = ran(CIFAR, flat(), 4, THEIRS)

    assert case.final == 4
    assert case.settled_s == pytest.approx((12 + 102) / 10, rel=0.1), "a look at 4, then a hundred steps at 8"


def test_savings_are_relative_to_the_initial_size() -> None:
    found = cases(CIFAR, flat(), 0, (4, 40))

    assert saved(found, THEIRS)[1] > 0.8, "it began with 40 and needed 4"
    assert saved(found, THEIRS)[0] < 0.02, "no rule is faster than the others"


def test_command_separates_published_and_replayed_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlaas_server.sim.autoscaling.paper.TRAININGS", (CIFAR,))
    published, run_again = autoscaling(0).split("\n\n", 1)

    assert all(said in published for said in ("45 %", "85.1 %", "not given"))
    assert all(said in run_again for said in ("re-run", "their rule: time down by up to", "ours: time down by up to"))
