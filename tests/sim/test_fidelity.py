"""Others' rules give every job the very start and end that others' simulators gave it."""

from __future__ import annotations

import pytest

from tests.sim.fidelity import MEASURED, PER_JOB, differing, pair_id, replayed


@pytest.mark.parametrize("pair", PER_JOB, ids=pair_id)
def test_every_job_starts_and_ends_as_in_the_original(pair: tuple[str, str]) -> None:
    assert differing(pair) == {}


@pytest.mark.parametrize("pair", MEASURED, ids=pair_id)
def test_the_sums_of_a_run_are_the_original_ones(pair: tuple[str, str]) -> None:
    result, theirs = replayed(pair), MEASURED[pair]
    jobs = len(result.done)

    assert round(sum(done.jct_s for done in result.done) / jobs, 1) == theirs.avg_jct_s
    assert sum(done.preemptions for done in result.done) == theirs.preemptions
    assert result.end_s == theirs.makespan_s


def test_all_rules_that_have_end_times_are_compared() -> None:
    assert len(PER_JOB) == 26
    assert len(MEASURED) == 35
