"""Experiments come out beside their references."""

from __future__ import annotations

import random

import pytest

from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.sim.experiments.registry import (
    PackSpreadCase,
    gang_outcome,
    is_stuck,
    pack_spread_cases,
    tetris_outcome,
)
from tests.sim.builders import tjob, trace


@pytest.mark.parametrize("case", pack_spread_cases(), ids=lambda c: f"{c.load}-{c.is_pack}-{c.skips}")
def test_reference_rules_reproduce_every_pack_spread_figure(case: PackSpreadCase) -> None:
    assert case.by_rules() == case.reference


def test_the_core_packs_better_than_it_spreads() -> None:
    pack, spread = (case.by_core() for case in pack_spread_cases() if case.load == "0.6" and case.skips)

    assert pack[0] < spread[0] / 4


def test_gangs_run_in_pairs_and_hold_all_or_nothing() -> None:
    found = gang_outcome(seed=0, orders=100)

    assert (found.running_max, found.waiting_max, found.partial_holds, found.makespan_s) == (2, 2, 0, 120)


def test_without_gangs_most_orders_deadlock() -> None:
    found = gang_outcome(seed=0, orders=500)

    assert found.deadlocks > found.orders / 2


def test_single_job_never_deadlocks() -> None:
    assert not is_stuck(trace(tjob("a", 0, 1, 60, learners=4)), 4, random.Random(0))


def test_tetris_matches_the_best_reference_makespan() -> None:
    makespan_s, jct_s = tetris_outcome("srtf", Layout.TETRIS)

    assert makespan_s <= 4270
    assert jct_s <= 1330
