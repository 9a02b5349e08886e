"""Deaths in gangs whose loops hold more than weights: what is under way in them is neither lost nor doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_dlaas.wire.protocol import Cause
from tests.learner.fault_matrix import (
    die,
    do,
    done,
    ends_whole,
    faulty_loop,
    lost,
    trials,
)
from tests.learner.live_programs import result, trains
from tests.learner.loop_programs import LOOPS, program
from tests.learner.test_loops import OPTIONS
from tests.runtime.jobs import Job
from tests.selection import covering, each_nth

Build = Callable[..., Job]
NAMES = (
    "scaler, clipping and a schedule per step",
    "batch normalisation of what is the same everywhere",
    "accumulation",
    "workers",
    "parameters without a part",
)


@pytest.fixture
def looping(job: Build) -> Callable[..., Job]:
    def build(name: str, **options: Any) -> Job:
        return job(faulty_loop(name), **(OPTIONS | options))

    return build


@trials
@pytest.mark.parametrize(("name", "victim"), covering((name, victim) for name in NAMES for victim in (0, 1, 3)))
def test_a_death_in_a_change_costs_the_loop_nothing(looping: Build, name: str, victim: int, trial: int) -> None:
    one = looping(name)
    one.run(3)
    trains(one, 2)
    die(one, victim, "commit", victim)
    one.resize(0, 1, 2, fresh=1)

    done(one, victim)
    ends_whole(one, survivor=2, epochs=6)


@trials
@pytest.mark.parametrize("victim", each_nth([0, 1], 2))
def test_killed_data_worker_costs_its_learner_not_the_job(looping: Build, victim: int, trial: int) -> None:
    one = looping("workers")
    one.run(3)
    trains(one, 2)
    do(one, victim, "kill worker")

    lost(one)
    ends_whole(one, survivor=2, epochs=6)
    # The loader raises the end of its worker at whatever its learner does: in an exchange of gradients, all repeat the
    # step. A worker that is killed while it holds the lock of a queue blocks its learner, which is then ended as hung.
    known = [("data_worker", Cause.EVICTED), ("hang", Cause.HANG)]
    failures = [loss.failure for loss in lost(one) if loss.failure is not None]
    assert all((failure.code, failure.cause) in known for failure in failures), one.report()


def test_data_workers_end_with_their_pass(job: Build) -> None:
    left = 'import multiprocessing\n    result = {"left": len(multiprocessing.active_children()), '
    one = job(program(LOOPS["workers"]).replace("result = {", left), **OPTIONS)
    one.output("hurry").touch()
    one.run(2)

    assert one.closed() == "completed", one.report()
    assert result(one, "result")["left"] == 0


@trials
@pytest.mark.parametrize("which", ["run.step % 2", "(run.step + run.rank) % 2"], ids=["all alike", "each its own"])
def test_parameters_without_a_part_need_no_option(job: Build, which: str, trial: int) -> None:
    source = faulty_loop("parameters without a part").replace(', ddp={"find_unused_parameters": True}', "")
    one = job(source.replace("[run.step % 2]", f"[{which}]"), **OPTIONS)
    one.run(2)
    trains(one, 1)
    one.resize(0, 1, fresh=1)
    trains(one, 2, size=3)
    one.kill_learner(1)

    ends_whole(one, survivor=0, epochs=6)


@trials
def test_learners_that_use_other_parameters_each_survive_a_death(job: Build, trial: int) -> None:
    source = faulty_loop("parameters without a part").replace("[run.step % 2]", "[(run.step + run.rank) % 2]")
    one = job(source, **OPTIONS)
    one.run(3)
    trains(one, 2)
    one.kill_learner(0)
    trains(one, 2, size=2)
    one.resize(1, 2, fresh=1)
    trains(one, 3, size=3)
    one.kill_learner(2)

    ends_whole(one, survivor=1, epochs=6)
