"""Jobs whose guardian and learners share no file and no address: gangs change, and processes and links fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.isolated.launcher import IsolatedJob, isolated_job
from tests.learner import live_programs
from tests.learner.exact_programs import EXACT, disturb
from tests.learner.live_programs import FAULTY, LIVE, assert_each_sample_once, result
from tests.runtime.jobs import until
from tests.selection import exhaustive

pytestmark = pytest.mark.timeout(900)

Build = Callable[..., IsolatedJob]
EPOCHS = 60
IMPORT_S = 300.0
"""Deadline for learners: each imports torch itself, on a machine with other work."""
OPTIONS: dict[str, Any] = {
    "learners_min": 1,
    "learners_max": 4,
    "framework": "torch",
    "outputs": ("history", "losses", "weights"),
    "checkpoint_every_s": 0.0,
}
ON_CPU = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
PLAIN = """
import os, time
import jupyter_dlaas as dlaas
run = dlaas.run()
go = os.environ["DLAAS_JOB_DIR"] + "/output/hurry"
for epoch in run.epochs(4):
    for batch in run.batches(list(range(8)), 4):
        run.log(batch=sum(batch))
    run.checkpoint()
    print("epoch", epoch, flush=True)
    while epoch == 1 and not os.path.exists(go):
        time.sleep(0.01)
answer = len(run.history["batch"])
"""


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made: list[IsolatedJob] = []

    def one(source: str, **options: Any) -> IsolatedJob:
        made.append(isolated_job(tmp_path, source, **options))
        return made[-1]

    yield one
    for job in made:
        job.close()


@pytest.fixture
def live(build: Build) -> IsolatedJob:
    """Create a job of the live program; its first learners are not started yet."""
    return build(ON_CPU + LIVE, **OPTIONS)


def trains(job: IsolatedJob, member: int, size: int) -> None:
    live_programs.trains(job, member, size=size, deadline_s=IMPORT_S)


def finish(job: IsolatedJob) -> None:
    """Let the job complete, and check that nothing was lost or repeated."""
    job.hurry()
    assert job.closed(deadline_s=IMPORT_S) == "completed", job.report()
    assert_each_sample_once(job, samples=101, epochs=EPOCHS)
    assert len(result(job, "history")["loss"]) == EPOCHS
    assert job.metrics() == sorted(set(job.metrics()))
    assert len(job.metrics()) == EPOCHS
    assert_journal_has_no_holes(job)


def assert_journal_has_no_holes(job: IsolatedJob) -> None:
    numbers = [fact.n for fact in job.facts()]
    assert numbers == list(range(len(numbers)))


def agents_are_gone(job: IsolatedJob) -> bool:
    return all(process.poll() == 0 for process in job.agents.values())


@exhaustive
def test_a_gang_grows_and_rank_0_leaves(live: IsolatedJob) -> None:
    live.run(2)
    trains(live, 1, size=2)
    live.resize(0, 1, fresh=1)
    trains(live, 2, size=3)
    live.resize(1, 2)
    trains(live, 2, size=2)
    finish(live)
    assert [fact.live for fact in live.facts(FactKind.GENERATION)][1:] == [True, True]
    until(lambda: agents_are_gone(live), "the end of all agents")


def test_a_cut_link_stops_nothing_and_loses_nothing(build: Build) -> None:
    job = build(PLAIN, outputs=("answer",), learners=1)
    job.run(1)
    job.wait(FactKind.CHECKPOINT, deadline_s=IMPORT_S)
    job.relay.cut()
    (job.agent_dir(0) / "job/output/hurry").touch()
    log = job.agent_dir(0) / "job/learner-0/stdout.log"
    until(lambda: log.exists() and "epoch 3" in log.read_text(), "the end of training during the cut")
    assert len(job.facts(FactKind.CHECKPOINT)) == 1
    job.relay.mend()

    assert job.closed(deadline_s=IMPORT_S) == "completed", job.report()
    assert job.log(0) == "epoch 0\nepoch 1\nepoch 2\nepoch 3\n"
    assert result(job, "answer") == len(job.metrics()) == 8
    assert max(fact.step for fact in job.facts(FactKind.CHECKPOINT)) > 2
    assert_journal_has_no_holes(job)


@exhaustive
def test_a_gang_trains_on_through_a_long_cut(build: Build) -> None:
    """Longer than the silence after which a link is given up: each of 150 steps takes 0.2 s."""
    job = build(ON_CPU + LIVE.replace("else 0.03", "else 0.2"), **OPTIONS)
    job.run(2)
    trains(job, 1, size=2)
    trained = job.agent_dir(0) / "job/output/live-0"
    facts, steps = len(job.facts()), len(trained.read_text().splitlines())
    job.relay.cut()
    until(lambda: len(trained.read_text().splitlines()) >= steps + 150, "150 steps during the cut", deadline_s=IMPORT_S)
    assert len(job.facts()) == facts
    job.relay.mend()
    job.resize(0, 1, fresh=1)
    trains(job, 2, size=3)
    finish(job)
    assert job.facts(FactKind.REGROUPED) == []


def test_a_hung_learner_ends_at_the_limit_with_its_line(build: Build) -> None:
    source = "import threading\n\ndef wait():\n    threading.Event().wait()\n\nwait()\n"
    job = build(source, learners=1, hang_after_s=1.0, cells={"1-6": "cell [3]:1"})
    job.run(1)

    failure = job.wait(FactKind.LEARNER_DOWN, deadline_s=IMPORT_S).failure
    assert (failure.code, failure.cause) == ("hang", Cause.HANG)
    assert (failure.where.label, failure.where.line, failure.where.function) == ("cell [3]", 4, "wait")


@exhaustive
@pytest.mark.parametrize("victim", [0, 1])
def test_a_hung_member_is_ended_and_the_others_continue(build: Build, victim: int) -> None:
    job = build(ON_CPU + FAULTY, environment={"DLAAS_HANG_S": "2"}, **OPTIONS)
    job.run(3)
    trains(job, victim, size=3)
    output = job.agent_dir(victim) / "job/output"
    (output / "part").write_text("hang")
    (output / "part").rename(output / f"do-{victim}")

    failure = job.wait(FactKind.REGROUPED, deadline_s=IMPORT_S).failure
    assert (failure.code, failure.cause) == ("hang", Cause.HANG)
    assert f"learner {victim} was ended: it hung" in failure.what
    assert "threading.py" in job.log(victim), "its log shows where it was"
    trains(job, 2, size=2)
    finish(job)


@exhaustive
def test_exact_mode_trains_the_same_bits_through_changes_and_losses(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    assert "else 0.1)" in EXACT
    source = ON_CPU + EXACT.replace("else 0.1)", "else 1.0)")  # learners join after they have imported torch
    trained = []
    for name, changes, kills in (("undisturbed", 0, 0), ("disturbed", 2, 2)):
        (tmp_path / name).mkdir()
        job = isolated_job(tmp_path / name, source, **{**OPTIONS, "outputs": ("losses", "steps", "weights")})
        try:
            disturbances = disturb(job, seed, changes=changes, kills=kills)
            job.hurry()
            assert job.closed(deadline_s=IMPORT_S) == "completed", f"seed {seed}: {disturbances}\n{job.report()}"
            assert_each_sample_once(job, samples=150, epochs=12)
            assert len(job.facts(FactKind.REGROUPED)) == kills, f"seed {seed}: {disturbances}\n{job.report()}"
            trained.append([result(job, output) for output in ("losses", "steps", "weights")])
        finally:
            job.close()
    assert trained[0] == trained[1], f"seed {seed}"


@exhaustive
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_learner_costs_the_others_no_sample(live: IsolatedJob, victim: int) -> None:
    live.run(3)
    trains(live, 2, size=3)
    live.kill_learner(victim)
    trains(live, 2, size=2)
    finish(live)


@exhaustive
@pytest.mark.parametrize("victim", [0, 2])
def test_a_lost_machine_costs_the_others_no_sample(live: IsolatedJob, victim: int) -> None:
    live.run(3)
    trains(live, 1, size=3)
    live.lose_machine(victim)
    trains(live, 1, size=2)
    live.hurry()
    assert live.closed(deadline_s=IMPORT_S) == "completed", live.report()
    assert len(result(live, "history")["loss"]) == EPOCHS
    assert_journal_has_no_holes(live)


@exhaustive
def test_a_new_guardian_adopts_the_agents_and_changes_the_gang(live: IsolatedJob) -> None:
    live.run(2)
    trains(live, 1, size=2)
    live.kill_guardian()
    live.start_guardian()
    live.resize(1)
    trains(live, 1, size=1)
    finish(live)


@exhaustive
def test_an_agent_started_again_ends_its_learner(live: IsolatedJob) -> None:
    live.run(2)
    trains(live, 1, size=2)
    live.kill_agent(1)
    live.start_agent(1)
    trains(live, 0, size=1)
    finish(live)


@exhaustive
def test_halted_gang_resumes_on_other_machines(live: IsolatedJob) -> None:
    live.run(2)
    trains(live, 1, size=2)
    live.halt()
    assert live.closed(deadline_s=IMPORT_S) == "halted", live.report()
    live.run(1)
    trains(live, 2, size=1)
    live.hurry()
    assert live.closed(2, deadline_s=IMPORT_S) == "completed", live.report()
    assert len(result(live, "history")["loss"]) == EPOCHS
