"""Gangs with real processes: whole or not at all, by priority, all complete."""

from __future__ import annotations

from collections.abc import Callable

from tests.whole.site import Site, until

Build = Callable[..., Site]
SHORT = (
    "import os, time\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\ntime.sleep(1.5)\n"
)


def test_two_of_four_gangs_run_and_two_wait_with_reasons(site: Build) -> None:
    here = site(slots=8)
    jobs = [here.submit(SHORT, name="gang", gpus="4") for _ in range(3)]
    jobs.append(here.submit(SHORT, name="gang", gpus="4"))
    until(lambda: [j.status for j in jobs[:2]] == ["PROCESSING"] * 2, "two run")

    views = [j.view for j in jobs]
    assert [v.state for v in views[2:]] == ["QUEUED", "QUEUED"]
    assert [len(here.learners(j)) for j in jobs] == [4, 4, 0, 0]
    assert views[2].reason == "Needs 4 CPU slots at once; 0 are free. gang-1 holds 4 and gang-2 holds 4."
    assert [v.status_line for v in views[2:]] == ["1st of 2", "2nd of 2"]

    for job in jobs:
        job.wait(60)
    assert [j.status for j in jobs] == ["COMPLETED"] * 4
    until(lambda: not here.orphans(), "no process is left", 10)


def test_high_priority_job_starts_before_older_ones(site: Build) -> None:
    here = site(slots=4)
    first = here.submit(SHORT, name="first", gpus="4")
    older = here.submit(SHORT, name="older", gpus="4")
    urgent = here.submit(SHORT, name="urgent", gpus="4", priority="high")
    for job in (first, older, urgent):
        job.wait(60)

    started = {j.name: j.view.started_s or 0.0 for j in (first, older, urgent)}
    assert started["first"] < started["urgent"] < started["older"]
