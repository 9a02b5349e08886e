"""A job changes its size while it trains, asked for from outside, and loses nothing when a learner is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.whole.programs import training, trains
from tests.whole.site import Site, is_gone, kill, until

Build = Callable[..., Site]


def test_job_scales_while_training_and_survives_a_killed_learner(site: Build) -> None:
    here = site(slots=3)
    job = here.submit(training(), name="live", gpus="1:3")
    until(lambda: job.status == "PROCESSING" and here.job(job.id).view.progress is not None, "it trains")
    job.scale(1)
    until(lambda: here.job(job.id).view.size.held == 1 and len(here.learners(job)) == 1, "one trains")
    first = here.learners(job)

    job.scale(3)
    until(lambda: here.job(job.id).view.size.held == 3 and len(here.learners(job)) == 3, "three train")
    assert first.items() <= here.learners(job).items(), "who trained trains on"

    victim = next(member for member in here.learners(job) if member not in first)
    kill(here.learners(job)[victim])
    until(lambda: any(one.by == "lost" for one in here.job(job.id).view.resizes), "the others continue")
    until(lambda: here.job(job.id).view.size.held == 3 and len(here.learners(job)) == 3, "the pool sends another one")
    assert first.items() <= here.learners(job).items()

    view = here.job(job.id).view
    changes = [(one.before, one.after, one.by) for one in view.resizes]
    assert changes[0] == (3, 1, "you")
    assert changes[-2:] == [(3, 2, "lost"), (2, 3, "pool")]
    assert all(one.idle_s is not None for one in view.resizes)
    assert view.restarts == 0
    job.cancel()
    until(lambda: not here.orphans(), "no process of the job is left", 10)


def test_stopped_guardian_is_replaced_and_its_pending_resize_completes(site: Build) -> None:
    here = site(slots=2)
    job = here.submit(training(), name="held", learners="1:2", start_with=1)
    trains(job)
    learners, guardian = here.learners(job), here.guardian_pid(job)

    os.kill(guardian, signal.SIGSTOP)
    job.scale(2)
    until(lambda: len(here.learners(job)) == 2 and len(job.view.resizes) == 1, "it grew")

    assert is_gone(guardian)
    assert learners.items() <= here.learners(job).items()
    assert job.view.restarts == 0
    job.cancel()
