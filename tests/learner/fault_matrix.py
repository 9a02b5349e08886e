"""Parts that the fault tests share: number of trials, injected deaths, and checks of a job's end.

`DLAAS_FAULT_TRIALS=5 python -m pytest --exhaustive tests/learner tests/whole -k "fault or phase"` does each case five
times and prints the longest time without a step, by the journals' own stamps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from jupyter_dlaas.runtime.system.process import is_alive
from jupyter_dlaas.runtime.zygote.start_guardian import reap
from jupyter_dlaas.wire.journal import Fact, FactKind, LearnerDown
from tests.learner.live_programs import DEATHS, FAULTS, assert_each_sample_once, trains
from tests.learner.loop_programs import LOOPS, program
from tests.runtime.jobs import Job, process_of, until
from tests.runtime.test_zygote import warm_up

TRIALS: Final = int(os.environ.get("DLAAS_FAULT_TRIALS", "1"))
trials = pytest.mark.parametrize("trial", range(TRIALS))
STOPS: Final[list[float]] = []
"""Per job of the test that ended: seconds without a step at most."""


def warmed(job: Job, zygotes: Path) -> Job:
    """Start the job's guardian and learners from a zygote that is ready."""
    job.zygote_dir = zygotes
    warm_up(job, zygotes, "torch")
    return job


def faulty_loop(name: str) -> str:
    """Return the program of one of `LOOPS`, with `fault` and `die` in each step."""
    hooks = "counter, seen = 0, []\n"
    source = program(LOOPS[name]).replace(hooks, hooks + FAULTS + DEATHS)
    return source.replace("def step(i):\n", "def step(i):\n    fault(); run.internals.is_joining and die('spawn')\n")


def do(job: Job, member: int, what: str) -> None:
    """Tell a learner what to do in its next step."""
    job.output("part").write_text(what)
    job.output("part").rename(job.output(f"do-{member}"))


def die(job: Job, watcher: int, phase: str, *who: int | str) -> None:
    """Kill these members, or the guardian, when this learner comes to a phase."""
    job.output("part").write_text(" ".join([phase, *map(str, who)]))
    job.output("part").rename(job.output(f"die-{watcher}"))


def done(job: Job, watcher: int) -> None:
    """Wait until the kill that was ordered has happened."""
    until(lambda: not job.output(f"die-{watcher}").exists(), lambda: f"a process was killed\n{job.report()}", 20.0)


def guardian_dies(job: Job, watcher: int, phase: str, change: Callable[[], None], *others: int) -> None:
    """Kill the guardian, with these members, when this learner comes to a phase of the change. Start the next one."""
    before = process_of(job.facts(FactKind.GUARDIAN_UP)[-1])
    die(job, watcher, phase, "guardian", *others)
    change()
    done(job, watcher)
    until(lambda: reap() is not None and not is_alive(before), "the guardian is gone")
    job.wake()


def lost(job: Job, count: int = 1) -> list[Any]:
    """Wait until the others continued without lost learners."""
    job.wait(FactKind.REGROUPED, count)
    return job.facts(FactKind.REGROUPED)


def longest_stop_s(facts: Sequence[Fact]) -> float:
    """Return the longest time without a step: as learners reported it, or from an end to the fact that followed."""
    stops = [stop for fact in facts if (stop := getattr(fact, "idle_s", None)) is not None]
    ended_s: float | None = None
    for fact in facts:
        if isinstance(fact, LearnerDown) and fact.failure is not None and ended_s is None:
            ended_s = fact.at_s
        elif fact.kind in (FactKind.REGROUPED, FactKind.GENERATION, FactKind.LOST, FactKind.CLOSED):
            stops += [] if ended_s is None else [fact.at_s - ended_s]
            ended_s = None
    return max(stops, default=0.0)


def ends_whole(job: Job, *, survivor: int | None = None, epochs: int, uses_checkpoint: bool = False) -> None:
    """Check that the survivor trains on, the job ends, each sample was trained once, and nothing is left."""
    if survivor is not None:
        trains(job, survivor, steps=2)
    job.output("hurry").touch()
    assert job.closed() == "completed", job.report()
    assert_each_sample_once(job, samples=101, epochs=epochs)
    assert uses_checkpoint or not list(job.dir.glob("checkpoints/step-*")), "no checkpoint was needed"
    leaves_nothing(job)


def leaves_nothing(job: Job) -> None:
    """No process of it is there any more. Notes how long it stood still."""
    until(lambda: not job.processes(), "nothing of the job is left", 10.0)
    STOPS.append(longest_stop_s(job.facts()))
