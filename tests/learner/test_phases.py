"""Deaths in each phase of a change, of each of those who take part, the guardian included.

`DLAAS_FAULT_TRIALS=5 python -m pytest tests/learner/test_phases.py` does each case five times.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_dlaas.facts import FactKind
from jupyter_dlaas.runtime.process import Identity, boot_id, is_alive
from jupyter_dlaas.runtime.start import reap
from tests.learner.live_programs import PHASES, assert_each_sample_once, trains
from tests.learner.test_live import EPOCHS, OPTIONS
from tests.runtime.jobs import Job, until
from tests.runtime.test_zygote import warm_up

Build = Callable[..., Job]
ALL = ("spawn", "build", "propose", "commit", "switch")
trials = pytest.mark.parametrize("trial", range(int(os.environ.get("DLAAS_FAULT_TRIALS", "1"))))


@pytest.fixture
def live(job: Build, zygotes: Path) -> Job:
    one = job(PHASES, **OPTIONS)
    one.zygote_dir = zygotes
    warm_up(one, zygotes, "torch")
    return one


def die(job: Job, watcher: int, phase: str, *who: int | str) -> None:
    """When this learner comes to a phase, these members, or the guardian, are killed."""
    job.output("part").write_text(" ".join([phase, *map(str, who)]))
    job.output("part").rename(job.output(f"die-{watcher}"))


def guardian(job: Job) -> Identity:
    fact = job.facts(FactKind.GUARDIAN_UP)[-1]
    assert fact.pid is not None
    assert fact.start is not None
    return Identity(fact.pid, fact.start, fact.boot or boot_id())


def done(job: Job, watcher: int) -> None:
    """It happened."""
    until(lambda: not job.output(f"die-{watcher}").exists(), f"somebody was killed\n{job.report()}", 20.0)


def ends_whole(job: Job, *, survivor: int) -> None:
    """The survivor trains on within ten seconds, the job ends, each sample was trained once, nothing is left."""
    trains(job, survivor, steps=2)
    job.output("hurry").touch()
    assert job.closed() == "completed", job.report()
    assert_each_sample_once(job, samples=101, epochs=EPOCHS)
    assert not list(job.dir.glob("checkpoints/step-*")), "no checkpoint was needed"
    until(lambda: not job.processes(), "nothing of the job is left", 10.0)


@trials
@pytest.mark.parametrize("phase", ALL)
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["source", "other", "joiner"])
def test_a_death_while_one_joins(live: Job, victim: int, phase: str, trial: int) -> None:
    live.run(2)
    trains(live, 1)
    # A joiner is proposed nothing: it is killed when another one is.
    watcher = 2 if phase == "spawn" else 1 if phase == "propose" else victim
    die(live, watcher, phase, victim)
    live.resize(0, 1, fresh=1)

    done(live, watcher)
    ends_whole(live, survivor=1 if victim == 0 else 0)


@trials
@pytest.mark.parametrize("phase", ALL[1:])
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["first", "stays", "leaver"])
def test_a_death_while_one_leaves(live: Job, victim: int, phase: str, trial: int) -> None:
    if phase in ("build", "switch") and victim == 2:
        phase = "commit"  # a leaver builds and enters nothing
    live.run(3)
    trains(live, 2)
    die(live, victim, phase, victim)
    live.resize(0, 1)

    done(live, victim)
    ends_whole(live, survivor=1 if victim == 0 else 0)


@trials
@pytest.mark.parametrize("phase", ALL)
def test_the_guardian_is_killed_while_one_joins_and_the_next_one_ends_the_change(
    live: Job, phase: str, trial: int
) -> None:
    live.run(2)
    trains(live, 1)
    who = guardian(live)
    watcher = 2 if phase == "spawn" else 0
    die(live, watcher, phase, "guardian")
    live.resize(0, 1, fresh=1)
    done(live, watcher)
    until(lambda: reap() is not None and not is_alive(who), "the guardian is gone")
    live.wake()
    trains(live, 2, size=3)

    ends_whole(live, survivor=0)


@trials
def test_two_deaths_at_once_while_one_joins(live: Job, trial: int) -> None:
    live.run(3)
    trains(live, 2)
    die(live, 0, "commit", 1, 2)
    live.resize(0, 1, 2, fresh=1)

    done(live, 0)
    ends_whole(live, survivor=0)


@trials
@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_during_recovery(live: Job, victim: int, trial: int) -> None:
    live.run(3)
    trains(live, 1)
    die(live, victim, "recover", victim)
    live.kill_learner(2)

    done(live, victim)
    ends_whole(live, survivor=1 - victim)


@trials
def test_the_guardian_is_killed_during_recovery(live: Job, trial: int) -> None:
    live.run(3)
    trains(live, 1)
    who = guardian(live)
    die(live, 0, "recover", "guardian")
    live.kill_learner(2)
    done(live, 0)
    until(lambda: reap() is not None and not is_alive(who), "the guardian is gone")
    live.wake()

    ends_whole(live, survivor=0)
