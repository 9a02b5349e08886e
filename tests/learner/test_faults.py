"""Faults in a gang that trains: the others continue, the cause is reported, nothing hangs and nothing is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_dlaas.runtime.system.process import is_alive, send
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.learner.fault_matrix import do, leaves_nothing, lost, trials
from tests.learner.fault_matrix import ends_whole as ends
from tests.learner.live_programs import FAULTY, trains
from tests.learner.test_live import EPOCHS, OPTIONS
from tests.runtime.jobs import Job, until
from tests.selection import each_nth, exhaustive

Build = Callable[..., Job]
HANG_S = 2.0


def stood_still(job: Job, seconds: float) -> bool:
    """No learner has written anything for so long."""
    newest = max(path.stat().st_mtime for path in job.dir.glob("output/live-*"))
    return time.time() - newest > seconds


@pytest.fixture
def faulty(job: Build) -> Callable[..., Job]:
    """Build a job in which a learner does what the file `do-MEMBER` says."""

    def build(source: str = FAULTY, environment: dict[str, str] | None = None, **options: Any) -> Job:
        variables = {"DLAAS_HANG_S": str(HANG_S), **(environment or {})}
        return job(source, environment=variables, **(OPTIONS | options))

    return build


def ends_whole(job: Job, *, survivor: int | None = None) -> None:
    ends(job, survivor=survivor, epochs=EPOCHS)


@trials
@pytest.mark.parametrize("victim", each_nth([0, 1], 2))
def test_hung_learner_is_killed_and_the_others_continue(faulty: Build, victim: int, trial: int) -> None:
    one = faulty()
    one.run(3)
    trains(one, victim)
    do(one, victim, "hang")

    failure = lost(one)[0].failure
    assert (failure.code, failure.cause) == ("hang", Cause.HANG)
    assert f"learner {victim} was ended: it hung" in failure.what
    assert "in fault" in failure.what
    assert "threading.py" in one.log(victim), "its log shows where it was"
    ends_whole(one)


@exhaustive
@trials
def test_learner_that_holds_the_gil_for_ever_is_killed(faulty: Build, trial: int) -> None:
    one = faulty()
    one.run(2)
    trains(one, 1)
    do(one, 1, "hold")

    assert lost(one)[0].failure.code == "hang"
    ends_whole(one)


@trials
@pytest.mark.parametrize("victim", each_nth([0, 1], 2))
def test_a_stopped_learner_is_ended_and_the_others_go_on(faulty: Build, victim: int, trial: int) -> None:
    one = faulty()
    one.run(2)
    trains(one, 1)
    send(one.learner(victim), signal.SIGSTOP)

    failure = lost(one)[0].failure
    assert failure.code == "hang"
    assert "SIGSTOP" in failure.what
    ends_whole(one)


@trials
@pytest.mark.parametrize("how", each_nth(["call", "compute", "sleep"], 3))
def test_busy_learner_is_awaited_and_named(faulty: Build, how: str, trial: int) -> None:
    one = faulty()
    one.run(2)
    trains(one, 1)
    do(one, 0, how)

    found = one.wait(FactKind.AWAITED)
    assert found.member == 0
    assert found.why is not None
    assert "train.py, line" in found.why
    until(lambda: one.facts(FactKind.AWAITED)[-1].member is None, "no learner is waited for any more")
    ends_whole(one)
    assert len(one.facts(FactKind.AWAITED)) == 2
    assert not one.facts(FactKind.REGROUPED)


@trials
@pytest.mark.parametrize("late_s", each_nth([2.5, 0.0], 2))
def test_deadlocked_learners_are_killed_with_the_cause(faulty: Build, late_s: float, trial: int) -> None:
    wait = f"run.step == 30 and (time.sleep(run.rank * {late_s}), __import__('threading').Event().wait());"
    # Who moves is heard of up to a second later, on a busy machine later still.
    one = faulty(FAULTY.replace("fault();", wait), environment={"DLAAS_HANG_S": str(HANG_S + 1.5 * late_s)})
    one.output("hurry").touch()
    one.run(2)

    found = one.wait(FactKind.LOST).failure
    assert found is not None
    assert (found.code, found.cause) == ("deadlock", Cause.YOUR_CODE)


@exhaustive
@trials
def test_second_learner_of_a_deadlock_is_killed_too(faulty: Build, trial: int) -> None:
    wait = f"run.step == 30 and (time.sleep(run.rank * {3 * HANG_S}), __import__('threading').Event().wait());"
    one = faulty(FAULTY.replace("fault();", wait))
    one.output("hurry").touch()
    one.run(2)

    found = one.wait(FactKind.LOST).failure
    assert found is not None
    assert (found.code, found.cause) == ("deadlock", Cause.YOUR_CODE)
    first = next(fact for fact in one.facts(FactKind.LEARNER_DOWN) if fact.member == 0)
    assert first.failure is not None
    assert first.failure.code == "hang"


@trials
def test_learners_without_a_guardian_save_and_leave(faulty: Build, trial: int) -> None:
    one = faulty(environment={"DLAAS_TTL_S": "0.5"})
    one.run(2)
    trains(one, 1)
    learners = [one.learner(0), one.learner(1)]
    one.kill_guardian()

    until(lambda: not any(map(is_alive, learners)), "the learners are gone", 20.0)
    assert list(one.dir.glob("checkpoints/step-*")), "there is a checkpoint to resume from"
    one.start_guardian()
    assert one.wait(FactKind.LOST).step is not None


@exhaustive
@trials
def test_two_stopped_learners_are_killed_and_the_third_continues(faulty: Build, trial: int) -> None:
    one = faulty()
    one.run(3)
    trains(one, 2)
    for victim in (0, 2):
        send(one.learner(victim), signal.SIGSTOP)
    trains(one, 1, size=1)

    ends_whole(one)
    down = {fact.member: fact.failure for fact in one.facts(FactKind.LEARNER_DOWN) if fact.failure is not None}
    assert set(down) == {0, 2}
    assert all("SIGSTOP" in failure.what for failure in down.values())


@trials
def test_wholly_stopped_gang_continues_when_resumed(faulty: Build, trial: int) -> None:
    one = faulty()
    one.run(2)
    trains(one, 1)
    everybody = [one.learner(0), one.learner(1)]
    for who in everybody:
        send(who, signal.SIGSTOP)
    until(lambda: not one.facts(FactKind.LEARNER_DOWN) and stood_still(one, 6.0), "it stands still for a while")
    for who in everybody:
        send(who, signal.SIGCONT)

    ends_whole(one, survivor=1)
    assert not one.facts(FactKind.REGROUPED)


@trials
@pytest.mark.parametrize("victim", each_nth([0, 1], 2))
def test_exception_in_one_learner_fails_the_job_with_its_place(faulty: Build, victim: int, trial: int) -> None:
    one = faulty()
    one.run(3)
    trains(one, 2)
    do(one, victim, "raise")

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert (failure.cause, failure.what) == (Cause.YOUR_CODE, "ValueError: this one only")
    assert failure.raised_by == (victim,)
    assert not one.facts(FactKind.REGROUPED), "what its code raises is the job's failure, not a learner's"
    one.want_nothing()
    leaves_nothing(one)


@trials
@pytest.mark.parametrize("victim", each_nth([0, 1], 2))
def test_others_train_the_share_of_an_early_leaver(faulty: Build, victim: int, trial: int) -> None:
    one = faulty()
    one.run(3)
    trains(one, 2)
    do(one, victim, "exit")
    trains(one, 2, size=2)

    ends_whole(one)


@trials
@pytest.mark.parametrize(("size", "how"), each_nth([(3, "hold"), (1, "hold"), (3, "block")], 3))
def test_stuck_learner_soon_ends_after_its_guardian(faulty: Build, size: int, how: str, trial: int) -> None:
    """`block` is blind to SIGTERM; `hold` lets no thread of Python run. The others wait for it in native code."""
    one = faulty(environment={"DLAAS_TTL_S": "2", "DLAAS_HANG_S": "60"})
    one.run(size)
    victim = 1 if size > 1 else 0
    trains(one, victim)
    do(one, victim, how)
    until(lambda: not one.output(f"do-{victim}").exists(), "it is blocked")
    one.kill_guardian()

    until(lambda: not one.processes(), "no orphan is left", 30.0)


FAILS_ONCE = """
from jupyter_dlaas.learner.elastic import process_group as groups
build_group, failed = groups.build_group, []
def fail_once(where, number, *rest):
    if number and me == "1" and not failed:
        failed.append(number)
        raise RuntimeError("no way there")
    return build_group(where, number, *rest)
groups.build_group = fail_once
"""


@exhaustive
@trials
@pytest.mark.parametrize("is_lost", each_nth([False, True], 2), ids=["joining", "after a loss"])
def test_a_group_that_one_learner_cannot_build_is_built_again(faulty: Build, *, is_lost: bool, trial: int) -> None:
    one = faulty(FAULTY.replace("losses = []\n", "losses = []\n" + FAILS_ONCE, 1))
    one.run(3 if is_lost else 2)
    trains(one, 1)
    if is_lost:
        one.kill_learner(2)
    else:
        one.resize(0, 1, fresh=1)
    trains(one, 1, size=2 if is_lost else 3)

    ends_whole(one, survivor=0)


@trials
def test_isolated_learner_exits_and_the_others_continue(faulty: Build, trial: int) -> None:
    """An error in the thread that listens to the guardian."""
    deaf = "run.step == 8 and me == '1' and setattr(run.internals.context.control, 'on_message', int); fault();"
    one = faulty(FAULTY.replace("fault();", deaf))
    one.run(2)
    trains(one, 1, steps=9)
    one.resize(0, 1, fresh=1)
    trains(one, 2, size=2)

    ends_whole(one, survivor=0)
    assert [fact.member for fact in one.facts(FactKind.LEARNER_DOWN) if fact.failure is not None] == [1]
    assert "TypeError" in one.log(1)


DIES_GIVING = """
import threading
class Ballast:
    content = torch.zeros(50_000_000)
    def state_dict(self):
        return {"content": self.content}
    def load_state_dict(self, state):
        self.content = state["content"]
def dying(give):
    def give_or_die(by, tensor, source):
        if tensor.nbytes > 1e8 and me == "0":
            threading.Timer(0.01, os.kill, (os.getpid(), 9)).start()
        give(by, tensor, source)
    return give_or_die
"""
BY_MEMORY = """
from jupyter_dlaas.learner.elastic.shm_allreduce import SharedSegment
SharedSegment.broadcast = dying(SharedSegment.broadcast)
"""
BY_NETWORK = """
from jupyter_dlaas.learner.elastic import process_group as groups
groups.segment_of = lambda *_: None
groups.broadcast = dying(groups.broadcast)
"""


@exhaustive
@trials
@pytest.mark.parametrize("way", each_nth([BY_NETWORK, BY_MEMORY], 2), ids=["network", "memory"])
def test_death_of_a_state_sender_blocks_no_learner(faulty: Build, way: str, trial: int) -> None:
    """gloo does not tell who receives that the other end is gone, within a message."""
    source = FAULTY.replace("losses = []\n", "losses = []\n" + DIES_GIVING + way, 1)
    prepare = "model, opt, scheduler = run.prepare(model, opt, scheduler=scheduler)"
    assert prepare in source
    one = faulty(
        source.replace(prepare, prepare.replace("scheduler =", "_, scheduler =").replace("t, s", "t, Ballast(), s"))
    )
    one.run(2)
    trains(one, 1)
    one.resize(0, 1, fresh=1)
    trains(one, 2, size=2)

    ends_whole(one, survivor=1)
    assert [fact.member for fact in one.facts(FactKind.LEARNER_DOWN) if fact.failure is not None] == [0]
