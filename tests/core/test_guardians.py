"""Jobs without a working guardian: every state ends, with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dlaas_server.core.lifecycle.guardian_loss import (
    GUARDIAN_STARTS_MAX,
    SETTLED_S,
    SILENT_GUARDIAN_STARTS_MAX,
    abandoned,
    directory_lost,
    guardian_gone,
    lines_lost,
    may_be_over,
)
from dlaas_server.core.lifecycle.plan_outcomes import preempted
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.states import Event
from jupyter_dlaas.wire.journal import FactKind, Goal
from jupyter_dlaas.wire.protocol import Cause, Note, State
from tests.core.builders import deploying, job, seats, with_fact
from tests.core.test_journal_events import asked, running

ENDS: dict[str, tuple[Callable[[], Job], State]] = {
    "halted": (lambda: asked(running(), Event.HALT), State.HALTED),
    "cancelled": (lambda: asked(running(), Event.CANCEL), State.CANCELLED),
    "preempted": (lambda: preempted(running(), "for another", 60.0)[0], State.QUEUED),
    "directory lost": (lambda: directory_lost(running(), "/pool/jobs/x", 60.0)[0], State.FAILED),
}


def test_a_healthy_job_outlives_any_number_of_killed_guardians() -> None:
    one = running()
    for number in range(3 * GUARDIAN_STARTS_MAX):
        up_s = 1000.0 + 10.0 * number
        one = with_fact(one, FactKind.GUARDIAN_UP, at_s=up_s, took_over=True)
        one = guardian_gone(one, "The guardian process ended", up_s + SETTLED_S)[0]
        assert one.not_before_s <= up_s + SETTLED_S, "the next one is started at once"

    assert one.state is State.PROCESSING


def test_repeatedly_failing_guardian_fails_the_job() -> None:
    one = running()
    for number in range(GUARDIAN_STARTS_MAX):
        one = with_fact(one, FactKind.GUARDIAN_UP, at_s=1000.0 + number)
        one = guardian_gone(one, "The guardian process ended", 1000.5 + number)[0]

    assert one.state is State.FAILED


@pytest.mark.parametrize("kind", ENDS)
def test_a_deserted_job_is_closed_as_its_guardian_would(kind: str) -> None:
    make, state = ENDS[kind]
    leaving = make()
    assert not may_be_over(leaving), "its guardian is asked first"
    gone = guardian_gone(leaving, "The guardian process ended", 60.0)[0]
    assert may_be_over(gone) == (leaving.goal is Goal.STOP), "one that is to save something gets another guardian"
    gone = guardian_gone(gone, "It could not be started", 60.0)[0]
    assert may_be_over(gone)

    after, events = abandoned(gone, 61.0)

    assert (after.state, after.is_closed, after.members) == (state, True, ())
    assert events[0].kind == "closed"
    assert not may_be_over(after)


def test_a_job_that_is_to_run_is_never_looked_through() -> None:
    gone = guardian_gone(running(), "The guardian process ended", 60.0)[0]

    assert gone.goal is Goal.RUN
    assert not may_be_over(gone)


def test_a_lost_directory_is_nobodys_code() -> None:
    lost, events = directory_lost(running(), "/pool/jobs/x", 60.0)

    assert lost.failure is not None
    assert (lost.failure.cause, lost.goal) == (Cause.PLATFORM, Goal.STOP)
    assert "/pool/jobs/x" in events[0].text
    assert "retry" in lost.failure.advice


def test_damaged_lines_are_counted_in_one_note() -> None:
    other = Note(code="report_other", text="Another note.")
    once, _ = lines_lost(replace(running(), reports=(other,)), 1, "byte 10: no fact")
    twice, events = lines_lost(once, 2, "byte 90: no fact")

    assert twice.damaged_lines == 3
    first, note = twice.reports
    assert first == other
    assert note.text == events[0].text
    assert note.text.startswith("3 lines of the job's journal cannot be read and were skipped (last: byte 90")


@pytest.mark.parametrize(("has_learners", "most"), [(False, SILENT_GUARDIAN_STARTS_MAX), (True, GUARDIAN_STARTS_MAX)])
def test_guardians_that_exit_without_a_word_are_given_up_early(has_learners: bool, most: int) -> None:
    one = running() if has_learners else deploying(job(), *seats("n1", 1))
    starts = 0
    while one.state is not State.FAILED:
        one = guardian_gone(one, "It ended with exit code 1: no module named encodings", 60.0, has_exited=True)[0]
        starts += 1

    assert starts == most
    assert one.failure is not None
    assert "no module named encodings" in one.failure.what


def test_silently_killed_guardians_get_all_restarts() -> None:
    one = deploying(job(), *seats("n1", 1))
    for _ in range(GUARDIAN_STARTS_MAX - 1):
        one = guardian_gone(one, "It went away", 60.0)[0]

    assert one.state is State.DEPLOYING
