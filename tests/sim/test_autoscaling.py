"""The autoscaler beside the paper's rule, on curves that are known."""

from __future__ import annotations

import random

import pytest

from dlaas_server.core.model.size_search import Window
from dlaas_server.sim.autoscaling.curves import Curve, drawn, formulas, measured
from dlaas_server.sim.autoscaling.experiment import (
    CONDITION,
    Every,
    Outcome,
    Paper,
    Rule,
    Searching,
    judged,
    main,
    play,
    share,
)


def curve(name: str, high: int) -> Curve:
    return next(c for c in formulas(high) if c.name.startswith(name)).faster(10)


def quiet(one: Curve, rule: Rule) -> Outcome:
    return play([one], rule, CONDITION, random.Random(1), part_s=60.0, noise=0.0)


def test_papers_rule_grows_and_returns_to_the_last_success() -> None:
    outcome = quiet(curve("saturating", 16), Paper(16))

    assert (outcome.final, outcome.best, outcome.changes) == (4, 4, 5)


def test_search_needs_fewer_changes_for_large_best_sizes() -> None:
    linear = curve("linear", 32)
    ours, paper = quiet(linear, Searching(CONDITION, 32)), quiet(linear, Paper(32))

    assert (ours.final, paper.final) == (32, 32)
    assert ours.changes < paper.changes


def test_measured_curves_are_there_for_all_six_applications() -> None:
    names = {one.name.split(",")[0] for one in measured()}

    assert names == {"bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"}
    assert all(one.rates[0] == 1.0 and 12 <= one.high <= 16 for one in measured())


def test_papers_rule_stays_at_a_failing_size_for_evidence() -> None:
    at_once, patient = (quiet(curve("saturating", 16), Paper(16, staying=staying)) for staying in (0, 100))

    assert at_once.final == patient.final == 4
    assert at_once.target_s[0] == patient.target_s[0], "the size that fails is within one of the best"
    assert quiet(curve("saturating", 16), Paper(16, spawn=4, staying=100, windows=Every(10, 0.0))).final == 5


def test_papers_rule_shrinks_from_a_too_large_size() -> None:
    rule, held = Paper(16, spawn=4, low=4), 16
    for n in range(6):
        held = rule(Window(learners=held, at_s=n, steps=20, rate=min(held, 6.0), spread=0.1), held)

    assert held == 8


def test_random_curves_depend_only_on_the_seed() -> None:
    assert drawn(16, 1) == drawn(16, 1)
    assert drawn(16, 1) != drawn(16, 2)
    assert all(one.high == 32 for one in drawn(32, 1))


def test_most_runs_end_near_the_best_size() -> None:
    assert share([run.ours for run in judged(1, groups=[formulas(16)])]) >= 0.8


def test_the_command_prints_both_rules_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlaas_server.sim.autoscaling.experiment.measured", list)
    monkeypatch.setattr("dlaas_server.sim.autoscaling.experiment.PART_S", 20.0)
    assert main(["--seeds", "1"]) == 0

    said = capsys.readouterr().out
    assert said.splitlines()[0].split()[:4] == ["curves", "runs", "within", "±1"]
    assert "saturating at 4" in said
