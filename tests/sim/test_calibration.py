"""Start estimates are scored by what then happens."""

from __future__ import annotations

import random
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.scheduling.run_length import width_factor
from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.experiments.calibration import WithEstimates, part_of, scores
from dlaas_server.sim.replay.event_loop import replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.trace import NodeSpec, Trace
from tests.sim.builders import tjob, trace


def burst(jobs: int, seed: int = 0) -> Trace:
    """Many short jobs on few GPUs, so that nearly all wait."""
    chance = random.Random(seed)
    return trace(
        *(tjob(str(n), 10 * n, chance.choice([1, 1, 2, 4]), round(chance.lognormvariate(4, 1), 3)) for n in range(jobs))
    )


def foretold(order: str, error: float, jobs: Trace, draws: int = 20) -> WithEstimates:
    core = ByCore((NodeSpec(name="n", gpus=4),), Policy(order=order), estimate_error=error)
    rule = WithEstimates(core, error, draws=draws)
    replay(jobs, 4, rule)
    return rule


def test_known_lengths_give_exact_estimates_in_fifo() -> None:
    found = scores(foretold("fifo", 0.0, burst(40), draws=4).estimates)

    assert found.waits > 20
    assert (found.close, found.held_most) == (1.0, 1.0)


def test_estimates_of_uncertain_lengths_are_calibrated() -> None:
    found = scores(foretold("fifo", 0.25, burst(60), draws=10).estimates)

    assert found.close > 0.5
    assert 0.2 < found.held_half < found.held_most


def test_estimates_do_not_change_the_replay() -> None:
    jobs, ends = burst(30), []
    for has_estimates in (False, True):
        core = ByCore((NodeSpec(name="n", gpus=4),), Policy(order="fifo-skip"), estimate_error=0.25)
        result = replay(jobs, 4, WithEstimates(core, 0.25, draws=4) if has_estimates else core)
        ends.append([done.end_s for done in result.done])

    assert ends[0] == ends[1]


def test_estimate_of_a_job_does_not_depend_on_others() -> None:
    jobs, reported = burst(30), []
    for asked in (None, frozenset({3, 7})):
        rule = WithEstimates(ByCore((NodeSpec(name="n", gpus=4),), Policy(), estimate_error=0.25), 0.25, asked, draws=4)
        replay(jobs, 4, rule)
        reported.append({(one.at_s, one.likely_s, one.started_s) for one in rule.estimates})

    assert len(reported[1]) == 2
    assert reported[1] < reported[0]


def test_a_part_of_a_trace_begins_at_zero() -> None:
    part = part_of(burst(10), 0.5, 0.8)

    assert [job.id for job in part.jobs] == ["5", "6", "7"]
    assert [job.submit_s for job in part.jobs] == [0, 10, 20]


def test_interval_widths_adapt_to_their_coverage() -> None:
    assert width_factor([False] * 5) > 1 > width_factor([True] * 20)
    assert width_factor([]) == 1


@given(st.integers(0, 50))
def test_adapted_intervals_hold_for_eight_of_ten(seed: int) -> None:
    chance = random.Random(seed)
    wrong = chance.uniform(0.75, 2.0)  # what is drawn is so many times too narrow
    held: list[bool] = []
    for _ in range(600):
        held.append(abs(chance.gauss(0, wrong)) <= 1.2816 * width_factor(held[-200:]))

    assert 0.7 < mean(held[200:]) < 0.9
