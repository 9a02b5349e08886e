"""What can go wrong in a gang that trains: the others go on, the cause is told, nothing hangs and nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.facts import FactKind
from jupyter_dlaas.protocol import Cause
from jupyter_dlaas.runtime.process import send
from tests.learner.live_programs import FAULTY, assert_each_sample_once, trains
from tests.learner.test_live import EPOCHS, OPTIONS
from tests.runtime.jobs import Job, until
from tests.runtime.test_zygote import warm_up

Build = Callable[..., Job]
HANG_S = 2.0


@pytest.fixture
def faulty(job: Build, zygotes: Path) -> Callable[..., Job]:
    """Builds a job in which a learner does what the file `do-MEMBER` says."""

    def build(source: str = FAULTY, environment: dict[str, str] | None = None, **options: Any) -> Job:
        variables = {"DLAAS_HANG_S": str(HANG_S), **(environment or {})}
        one = job(source, environment=variables, **(OPTIONS | options))
        one.zygote_dir = zygotes
        warm_up(one, zygotes, "torch")
        return one

    return build


def do(job: Job, member: int, what: str) -> None:
    """Tell a learner what to do in its next step."""
    job.output("part").write_text(what)
    job.output("part").rename(job.output(f"do-{member}"))


def lost(job: Job, count: int = 1) -> list[Any]:
    """Wait until the others went on without learners."""
    job.wait(FactKind.REGROUPED, count)
    return job.facts(FactKind.REGROUPED)


def ends_whole(job: Job, why: str = "completed") -> None:
    """It comes to its end, has trained each sample once, and nothing of it is left."""
    job.output("hurry").touch()
    assert job.closed() == why
    assert_each_sample_once(job, samples=101, epochs=EPOCHS)
    until(lambda: not job.processes(), "nothing of the job is left", 10.0)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_learner_that_hangs_is_ended_and_the_others_go_on(faulty: Build, victim: int) -> None:
    one = faulty()
    one.run(3)
    trains(one, victim)
    do(one, victim, "hang")

    failure = lost(one)[0].failure
    assert (failure.code, failure.cause) == ("hung", Cause.UNKNOWN)
    assert f"learner {victim} was ended: it hung" in failure.what
    assert "in fault" in failure.what
    assert "threading.py" in one.log(victim), "its log tells where it was"
    ends_whole(one)


def test_a_learner_that_holds_the_interpreter_for_ever_is_ended_too(faulty: Build) -> None:
    one = faulty()
    one.run(2)
    trains(one, 1)
    do(one, 1, "hold")

    assert lost(one)[0].failure.code == "hung"
    ends_whole(one)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_learner_is_ended_and_the_others_go_on(faulty: Build, victim: int) -> None:
    one = faulty()
    one.run(2)
    trains(one, 1)
    send(one.learner(victim), signal.SIGSTOP)

    failure = lost(one)[0].failure
    assert failure.code == "hung"
    assert "SIGSTOP" in failure.what
    ends_whole(one)


@pytest.mark.parametrize("how", ["compute", "sleep", "call"])
def test_a_busy_learner_is_waited_for_however_long_and_is_named(faulty: Build, how: str) -> None:
    one = faulty()
    one.run(2)
    trains(one, 1)
    do(one, 0, how)

    found = one.wait(FactKind.AWAITED)
    assert found.member == 0
    assert found.why is not None
    assert "train.py, line" in found.why
    ends_whole(one)
    assert one.facts(FactKind.AWAITED)[-1].member is None, "nobody is waited for in the end"
    assert not one.facts(FactKind.REGROUPED)


def test_learners_that_wait_for_each_other_are_ended_with_the_cause(faulty: Build) -> None:
    one = faulty(FAULTY.replace("fault();", "run.step == 30 and __import__('threading').Event().wait();"))
    one.output("hurry").touch()
    one.run(2)

    found = one.wait(FactKind.LOST).failure
    assert found is not None
    assert (found.code, found.cause) == ("deadlock", Cause.YOUR_CODE)


def test_learners_without_a_guardian_save_and_leave(faulty: Build) -> None:
    one = faulty(environment={"DLAAS_TTL_S": "0.5"})
    one.run(2)
    trains(one, 1)
    learners = [one.learner(0), one.learner(1)]
    one.kill_guardian()

    until(lambda: not set(learners) & set(one.processes()), "the learners are gone", 20.0)
    assert list(one.dir.glob("checkpoints/step-*")), "there is a checkpoint to go on from"
    one.start_guardian()
    assert one.wait(FactKind.LOST).step is not None


def test_a_full_disk_costs_the_checkpoints_and_not_the_job(faulty: Build) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
    one = faulty(limit + FAULTY.replace("losses = []\n", "losses = []; big = torch.zeros(100_000)\n").replace(
        "fault();", 'run.state["big"] = big;'
    ), checkpoint_every_s=0.01)  # fmt: skip
    one.run(2)
    trains(one, 0)
    one.kill_learner(1)
    lost(one)

    one.output("hurry").touch()
    assert one.closed() == "completed"
    assert "[no checkpoint at step" in one.log(0)
    assert not list(one.dir.glob("checkpoints/*step-*")), "nothing half written is left"
