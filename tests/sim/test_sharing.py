"""Queues lend and reclaim, jobs take turns, and who is treated fairly."""

from __future__ import annotations

import pytest

from dlaas_server.sim.experiments.fairness import fairness_of, fairness_outcome
from dlaas_server.sim.experiments.queues import TRACES, earlier, fair_share_outcome, slices_outcome
from dlaas_server.sim.replay.event_loop import replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec
from tests.sim.builders import tjob, trace


def test_queues_get_guarantees_and_idle_devices_are_lent() -> None:
    jobs = earlier(read_trace(TRACES / "fairshare_two_queues.csv"), "B", 900)
    found, strict = (fair_share_outcome("fair", jobs, preempts=preempts) for preempts in (True, False))

    assert (found.honoured, found.reclaim_max_s, found.borrowed) == (1, 0, 1)
    assert found.preemptions == 40
    assert (strict.honoured < 1, strict.preemptions) == (True, 0)


def test_jobs_that_take_turns_all_begin_early_and_stay_together() -> None:
    turns, fifo = slices_outcome("time-slice", slice_s=60), slices_outcome("fifo")

    assert turns.last_start_s <= 2 * 60
    assert turns.spread_s <= 2 * 60
    assert turns.overhead < 0.02
    assert fifo.spread_s == 1200


def test_immediately_started_job_has_a_ratio_below_its_share() -> None:
    result = replay(trace(tjob("a", 0, 1, 100), tjob("b", 0, 1, 100)), 1, ByCore((NodeSpec(name="n", gpus=1),)))

    assert fairness_of(result) == pytest.approx([0.5, 1.0])


def test_fair_finish_is_fairer_than_shockwave_at_moderate_errors() -> None:
    found = fairness_outcome("fair-finish", 0.5, seeds=2)

    assert found.unfair <= 0.05
    assert found.worst <= 1.78


def test_overestimated_jobs_are_detected_in_time() -> None:
    found = fairness_outcome("fair-finish", 1.0)

    assert found.unfair <= 0.05
    assert found.worst <= 2.0


def test_reported_lengths_reduce_unfairness_of_poor_estimates() -> None:
    reported = fairness_outcome("fair-finish", 1.0, reports_after=0.05)

    assert reported.unfair_most <= 0.05
    assert reported.worst <= 2.0
    assert reported.preemptions < fairness_outcome("fair-finish", 1.0).preemptions
