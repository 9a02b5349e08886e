"""Experiments come out beside their references."""

from __future__ import annotations

import random

from dlaas_server.sim.experiments import gang_outcome, is_stuck, pack_spread_rows
from tests.sim.builders import tjob, trace


def test_pack_and_spread_by_the_reference_rules_give_every_figure_of_the_reference() -> None:
    rows = pack_spread_rows(["0.6"])

    assert [row.replayed for row in rows] == [row.reference for row in rows]
    assert len(rows) == 4


def test_gangs_run_two_by_two_and_are_never_held_in_part() -> None:
    found = gang_outcome(seed=0, orders=100)

    assert (found.running_max, found.waiting_max, found.partial_holds, found.makespan_s) == (2, 2, 0, 120)


def test_without_gangs_most_orders_deadlock() -> None:
    found = gang_outcome(seed=0, orders=500)

    assert found.deadlocks > found.orders / 2


def test_one_job_alone_is_never_stuck() -> None:
    assert not is_stuck(trace(tjob("a", 0, 1, 60, learners=4)), 4, random.Random(0))
