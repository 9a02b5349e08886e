"""View of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlaas_server.core.presentation.job_view import HOW_TO_LOG, job_view
from jupyter_dlaas.suggest.logging_hint import CODE
from jupyter_dlaas.wire.protocol import Interruption, Note, Progress, State
from tests.core.builders import job

NOTES = (Note(code="warning", text="w"), Note(code=HOW_TO_LOG, text="h"))


def codes(state: State, *, has_metrics: bool) -> list[str]:
    one = job()
    one = replace(one, state=state, spec=replace(one.spec, notes=NOTES))
    view = job_view(one, row=1, directory="", wait=None, progress=None, has_metrics=has_metrics)
    return [note.code for note in view.notes]


def test_logging_note_is_shown_while_training_without_metrics() -> None:
    assert codes(State.PROCESSING, has_metrics=False) == ["warning", HOW_TO_LOG]


@pytest.mark.parametrize("state", [state for state in State if state is not State.PROCESSING])
def test_logging_note_is_absent_outside_training(state: State) -> None:
    assert codes(state, has_metrics=False) == ["warning"]


def test_logging_note_is_shown_until_the_first_metric() -> None:
    assert codes(State.PROCESSING, has_metrics=True) == ["warning"]


def test_both_sides_call_the_note_the_same() -> None:
    assert CODE == HOW_TO_LOG


@pytest.mark.parametrize("state", [State.HALTED, State.QUEUED, State.DEPLOYING])
def test_job_without_learners_shows_the_step_of_its_checkpoint(state: State) -> None:
    one = replace(job(), state=state, started_s=1.0, step=1_151, checkpoint_step=1_151)
    view = job_view(one, row=1, directory="", wait=None, progress=Progress(step=1_147, steps=2_302, fraction=0.498))

    assert view.progress is not None
    assert (view.progress.step, view.progress.fraction) == (1_151, 0.5)
    assert state is not State.HALTED or view.status_line.endswith("at step 1,151")


@pytest.mark.parametrize(("resumed_s", "ran"), [(40.0, "ran 30 s"), (None, "ran 20 s")])
def test_ended_job_ran_without_its_interruptions(resumed_s: float | None, ran: str) -> None:
    halt = Interruption(at_s=30.0, step=5, before=1, by="halted", text="", to_s=resumed_s)
    one = replace(job(), state=State.COMPLETED, started_s=10.0, ended_s=50.0, interruptions=(halt,))

    assert job_view(one, row=1, directory="", wait=None, progress=None).status_line == ran
