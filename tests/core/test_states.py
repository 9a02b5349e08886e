"""State table: requests that each state allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlaas_server.core.lifecycle.user_requests import apply_request
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.states import NEXT, Event, can, step
from dlaas_server.core.presentation.job_view import actions, job_view
from jupyter_dlaas.wire.journal import FactKind, Goal
from jupyter_dlaas.wire.protocol import ActionId, JobView, NotAllowed, State
from tests.core.builders import job, seats, training, with_fact


def test_every_state_has_a_row() -> None:
    assert set(NEXT) == set(State)


@pytest.mark.parametrize("state", [s for s in State if s.is_final])
def test_a_final_state_takes_nothing(state: State) -> None:
    assert NEXT[state] == {}


def test_every_unfinished_state_can_be_cancelled() -> None:
    assert all(can(state, Event.CANCEL) for state in State if not state.is_final)


def test_refused_transition_lists_the_possible_ones() -> None:
    with pytest.raises(NotAllowed, match="is HALTED and does not accept 'halt'; it accepts scale, resume, cancel"):
        step(State.HALTED, Event.HALT)


@pytest.mark.parametrize("event", [Event.SCALE, Event.HALT, Event.RESUME, Event.CANCEL, Event.CHECKPOINT])
def test_refused_request_names_the_job(event: Event) -> None:
    failed = replace(job(3), state=State.FAILED)

    with pytest.raises(NotAllowed, match=f"^{failed.id} is FAILED and does not accept '{event}': it has ended"):
        apply_request(failed, event, by="me", now_s=1.0, learners=1)


@pytest.mark.parametrize("event", [Event.HALT, Event.RESUME])
def test_cancelled_job_has_ended_rather_than_being_cancelled(event: Event) -> None:
    cancelled = apply_request(job(3), Event.CANCEL, by="me", now_s=1.0)[0]

    with pytest.raises(NotAllowed) as refused:
        apply_request(cancelled, event, by="me", now_s=2.0)
    again = ". To run it again: `jupyter dlaas retry job-3`" if event is Event.RESUME else ""
    assert str(refused.value) == f"job-3 is CANCELLED and does not accept '{event}': it has ended{again}"


def test_a_card_offers_halt_exactly_when_the_table_does() -> None:
    running = training(job(learners=(1, 4), wish=1), *seats("n1", 1))

    assert [a.id for a in actions(running)] == [ActionId.SCALE, ActionId.HALT, ActionId.CANCEL]


def test_a_halt_is_confirmed_where_the_job_would_start_over() -> None:
    running = training(job(), *seats("n1", 1))
    plain = replace(running, is_plain=True)

    def lost(one: Job) -> str | None:
        return next(action.confirm for action in actions(one) if action.id is ActionId.HALT)

    assert lost(running) is None
    assert lost(plain) == "It has run no training loop that writes checkpoints, so it starts over when resumed."
    assert lost(replace(plain, checkpoint_step=7)) is None, "it continues there"
    assert lost(with_fact(plain, FactKind.BEGUN, generation=1)) is None, "a loop of a framework has begun"
    assert lost(replace(plain, state=State.DEPLOYING)) is None, "there is nothing to lose"


def test_status_line_of_a_completed_job_is_its_running_time() -> None:
    over = replace(training(job(), *seats("n1", 1)), state=State.COMPLETED, started_s=10.0, ended_s=14.0)

    assert shown(over).status_line == "ran 4 s"


def test_a_halted_job_claims_no_checkpoint_that_it_has_not() -> None:
    plain = replace(training(job(), *seats("n1", 1)), is_plain=True)
    halting, said = apply_request(plain, Event.HALT, by="you", now_s=200.0)
    halted = with_fact(with_fact(halting, FactKind.HALTED, step=0), FactKind.CLOSED)

    assert "cannot write a checkpoint, so it starts over when resumed" in said[0].text
    assert shown(halting).status_line == "stops without a checkpoint"
    assert shown(halted).status_line == "by you"
    assert shown(halted).reason == "There is no checkpoint: it starts over when resumed."
    assert shown(halted).checkpoint_step is None


def test_an_ended_job_offers_a_retry_and_nothing_else() -> None:
    ended = with_fact(training(job(), *seats("n1", 1)), FactKind.COMPLETED)

    assert [(a.id, a.label) for a in actions(ended)] == [(ActionId.RETRY, "Retry")]


def test_fixed_size_job_explains_a_refused_scale() -> None:
    scale = actions(training(job(learners=(2, 2)), *seats("n1", 2)))[0]

    assert (scale.enabled, scale.why_not) == (False, "it runs with exactly 2 learners")


def test_the_goal_of_a_fresh_job_is_to_run() -> None:
    assert training(job(), *seats("n1", 1)).goal is Goal.RUN


def shown(one: Job) -> JobView:
    return job_view(one, row=1, directory="/j", wait=None, progress=None)
