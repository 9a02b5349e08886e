"""The engine is killed while a job changes its size: the gang changes on its own, the next engine sees how it ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.wire.journal import LearnerUp
from tests.learner.fault_matrix import trials
from tests.selection import each_nth
from tests.whole.programs import training
from tests.whole.site import Site, kill, until

Build = Callable[..., Site]


@trials
@pytest.mark.parametrize(("before", "after"), each_nth([(1, 3), (3, 2)], 2))
def test_engine_killed_during_a_resize_does_not_disturb_the_gang(
    site: Build, before: int, after: int, trial: int
) -> None:
    here = site(slots=3)
    job = here.submit(training(), name="live", gpus="1:3")
    until(lambda: job.status == "PROCESSING" and here.job(job.id).view.progress is not None, "it trains")
    job.scale(before)
    until(lambda: here.job(job.id).view.size.held == before == len(here.learners(job)), f"{before} train")
    there = here.learners(job)

    job.scale(after)
    kill(here.engine_pid())
    until(lambda: here.job(job.id).view.size.held == after == len(here.learners(job)), f"{after} train")

    assert len(here.learners(job).items() & there.items()) == min(before, after), "who stays trains on"
    facts, _ = read_facts(here.pool / "jobs" / job.id / "journal.jsonl")
    up = [fact.member for fact in facts if isinstance(fact, LearnerUp)]
    assert len(up) == len(set(up)), "no learner was started twice"
    assert not [fact for fact in facts if getattr(fact, "failure", None) is not None]
    assert here.job(job.id).view.restarts == 0
    job.cancel()
    until(lambda: not here.orphans(), "no process of the job is left", 10)
