"""Jobs whose guardian fails them: each state ends somewhere, and is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dlaas_server.core.fold import preempted
from dlaas_server.core.guardians import abandoned, directory_lost, guardian_gone, lines_lost, may_be_over
from dlaas_server.core.model import Job
from dlaas_server.core.states import Event
from jupyter_dlaas.facts import Goal
from jupyter_dlaas.protocol import Cause, Note, State
from tests.core.test_fold import asked, running

ENDS: dict[str, tuple[Callable[[], Job], State]] = {
    "halted": (lambda: asked(running(), Event.HALT), State.HALTED),
    "cancelled": (lambda: asked(running(), Event.CANCEL), State.CANCELLED),
    "preempted": (lambda: preempted(running(), "for another", 60.0)[0], State.QUEUED),
    "directory lost": (lambda: directory_lost(running(), "/pool/jobs/x", 60.0)[0], State.FAILED),
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_deserted_job_is_closed_as_its_guardian_would(kind: str) -> None:
    make, state = ENDS[kind]
    leaving = make()
    assert not may_be_over(leaving), "its guardian is asked first"
    gone = guardian_gone(leaving, "It went away", 60.0)[0]
    assert may_be_over(gone) == (leaving.goal is Goal.STOP), "one that is to save something gets another guardian"
    gone = guardian_gone(gone, "It could not be started", 60.0)[0]
    assert may_be_over(gone)

    after, told = abandoned(gone, 61.0)

    assert (after.state, after.is_closed, after.members) == (state, True, ())
    assert told[0].kind == "closed"
    assert not may_be_over(after)


def test_a_job_that_is_to_run_is_never_looked_through() -> None:
    gone = guardian_gone(running(), "It went away", 60.0)[0]

    assert gone.goal is Goal.RUN
    assert not may_be_over(gone)


def test_a_lost_directory_is_nobodys_code() -> None:
    lost, told = directory_lost(running(), "/pool/jobs/x", 60.0)

    assert lost.failure is not None
    assert (lost.failure.cause, lost.goal) == (Cause.PLATFORM, Goal.STOP)
    assert "/pool/jobs/x" in told[0].text
    assert "retry" in lost.failure.advice


def test_damaged_lines_are_counted_in_one_note() -> None:
    other = Note(code="report_other", text="Another note.")
    once, _ = lines_lost(replace(running(), reports=(other,)), 1, "byte 10: no fact")
    twice, told = lines_lost(once, 2, "byte 90: no fact")

    assert twice.damaged_lines == 3
    first, note = twice.reports
    assert first == other
    assert note.text == told[0].text
    assert note.text.startswith("3 lines of the job's journal cannot be read and were skipped (last: byte 90")
