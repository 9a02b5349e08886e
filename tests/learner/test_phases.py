"""Deaths in each phase of a change, of each of those who take part, the guardian included."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from jupyter_dlaas.runtime.system.process import is_alive
from jupyter_dlaas.runtime.zygote.start_guardian import reap
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.fault_matrix import die, done, guardian_dies, trials
from tests.learner.fault_matrix import ends_whole as ends
from tests.learner.live_programs import PHASES, trains
from tests.learner.test_live import EPOCHS, OPTIONS
from tests.runtime.jobs import Job, process_of, until
from tests.selection import covering, each_nth, exhaustive

Build = Callable[..., Job]
ALL = ("spawn", "build", "propose", "commit", "switch")


@pytest.fixture
def live(job: Build) -> Job:
    return job(PHASES, **OPTIONS)


def ends_whole(job: Job, *, survivor: int) -> None:
    ends(job, survivor=survivor, epochs=EPOCHS)


@trials
@pytest.mark.parametrize(  # the source of the state, another one, the joiner
    ("victim", "phase"), covering((victim, phase) for victim in (0, 1, 2) for phase in ALL)
)
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
@pytest.mark.parametrize(
    ("victim", "phase"),  # the leaver, 2, builds and enters nothing
    each_nth(
        [(victim, phase) for victim in (0, 1, 2) for phase in (ALL[1:] if victim < 2 else ("propose", "commit"))], 5
    ),
)
def test_a_death_while_one_leaves(live: Job, victim: int, phase: str, trial: int) -> None:
    live.run(3)
    trains(live, 2)
    die(live, victim, phase, victim)
    live.resize(0, 1)

    done(live, victim)
    ends_whole(live, survivor=1 if victim == 0 else 0)


REPLACED = [
    *((0, phase) for phase in ("commit", "propose", "build")),  # it enters nothing
    *((1, phase) for phase in ("build", "commit", "propose", "switch")),
    *((2, phase) for phase in ALL),
]


@trials
@pytest.mark.parametrize(("victim", "phase"), each_nth(REPLACED, 5))  # 0 leaves, 1 stays, 2 comes in its place
def test_a_death_while_one_is_replaced(live: Job, victim: int, phase: str, trial: int) -> None:
    """No learner leaves for one that dies before it is in the group, or if one that was to stay dies."""
    live.run(2)
    trains(live, 1)
    watcher = 2 if phase == "spawn" else 1 if phase in ("build", "propose") else victim
    die(live, watcher, phase, victim)
    live.resize(1, fresh=1)

    done(live, watcher)
    ends_whole(live, survivor=0 if victim == 1 else 1)


@trials
@pytest.mark.parametrize("phase", each_nth(ALL, 5))
def test_next_guardian_completes_a_join_after_a_kill(live: Job, phase: str, trial: int) -> None:
    live.run(2)
    trains(live, 1)
    guardian_dies(live, 2 if phase == "spawn" else 0, phase, lambda: live.resize(0, 1, fresh=1))
    trains(live, 2, size=3)

    ends_whole(live, survivor=0)


@trials
def test_steps_of_a_dead_learner_are_reported_by_its_joiner(live: Job, trial: int) -> None:
    """No other process knows of them: the guardian is killed, too."""
    live.run(1)
    trains(live, 0)
    before = process_of(live.facts(FactKind.GUARDIAN_UP)[-1])
    die(live, 1, "entered", "guardian", 0)
    live.resize(0, fresh=1)
    done(live, 1)
    until(lambda: reap() is not None and not is_alive(before), "the guardian is gone")
    live.wake()

    ends_whole(live, survivor=1)


@trials
@pytest.mark.parametrize("phase", each_nth(ALL[1:], 4))
def test_next_guardian_completes_a_leave_after_a_kill(live: Job, phase: str, trial: int) -> None:
    live.run(3)
    trains(live, 2)
    guardian_dies(live, 0, phase, lambda: live.resize(0, 1))
    until(lambda: not is_alive(live.learner(2)), "the third has left")

    ends_whole(live, survivor=0)
    assert {fact.code for fact in live.facts(FactKind.LEARNER_DOWN)} == {0}


@trials
@pytest.mark.parametrize("phase", each_nth(ALL[::-1], 5))
def test_next_guardian_completes_a_replacement_after_a_kill(live: Job, phase: str, trial: int) -> None:
    live.run(2)
    trains(live, 1)
    guardian_dies(live, 2 if phase == "spawn" else 1, phase, lambda: live.resize(1, fresh=1))
    until(lambda: not is_alive(live.learner(0)), "the first has left")
    trains(live, 2, size=2)

    ends_whole(live, survivor=1)
    assert {fact.code for fact in live.facts(FactKind.LEARNER_DOWN)} == {0}


@exhaustive
@trials
@pytest.mark.parametrize("victim", each_nth([2, 0, 1], 3))
def test_guardian_and_learner_are_killed_together_during_a_join(live: Job, victim: int, trial: int) -> None:
    live.run(2)
    trains(live, 1)
    watcher = 1 if victim == 0 else 0
    guardian_dies(live, watcher, "build", lambda: live.resize(0, 1, fresh=1), victim)

    ends_whole(live, survivor=watcher)


@exhaustive
@trials
def test_released_learner_leaves_although_the_guardian_died(live: Job, trial: int) -> None:
    live.run(2)
    trains(live, 1)
    live.resize(0)
    live.wait(FactKind.LEARNER_DOWN)
    live.kill_guardian()
    journal = live.dir / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if json.loads(line)["kind"] == FactKind.LEARNER_DOWN)
    journal.write_text("".join(lines[:end]))  # it died a moment earlier
    live.start_guardian()
    down = live.wait(FactKind.LEARNER_DOWN)
    live.resize(0, fresh=1)
    trains(live, 2, size=2)

    assert (down.member, down.failure) == (1, None)
    assert not any(getattr(fact, "failure", None) for fact in live.facts())
    ends_whole(live, survivor=0)


@exhaustive
@trials
@pytest.mark.parametrize("victim", each_nth([2, 0, 1], 3))
def test_a_learner_is_stopped_while_one_joins(live: Job, victim: int, trial: int) -> None:
    live.run(2)
    trains(live, 1)
    watcher = 1 if victim == 0 else 0
    die(live, watcher, "build", "stop", victim)
    live.resize(0, 1, fresh=1)
    done(live, watcher)
    failure = live.wait(FactKind.LEARNER_DOWN).failure

    assert failure is not None
    assert "SIGSTOP" in failure.what
    ends_whole(live, survivor=watcher)


@trials
def test_two_deaths_at_once_while_one_joins(live: Job, trial: int) -> None:
    live.run(3)
    trains(live, 2)
    die(live, 0, "commit", 1, 2)
    live.resize(0, 1, 2, fresh=1)

    done(live, 0)
    ends_whole(live, survivor=0)


@trials
@pytest.mark.parametrize("victim", each_nth([0, 1], 2))
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
    guardian_dies(live, 0, "recover", lambda: live.kill_learner(2))

    ends_whole(live, survivor=0)
