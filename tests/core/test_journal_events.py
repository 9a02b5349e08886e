"""Changes of a job by requests and by facts of its journal."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from signal import SIGKILL

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.lifecycle.guardian_loss import guardian_gone
from dlaas_server.core.lifecycle.journal_events import apply_fact
from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized, started
from dlaas_server.core.lifecycle.reconcile import Known, reconcile, wanted
from dlaas_server.core.lifecycle.user_requests import apply_request
from dlaas_server.core.model.job import Intent, Job, Profile
from dlaas_server.core.model.states import Event
from dlaas_server.core.presentation.job_view import actions, job_view
from jupyter_dlaas.failures.diagnosis import from_exception, from_exit
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.journal import FACT_TYPES, FactKind, Goal, JobClosed
from jupyter_dlaas.wire.protocol import ActionId, Cause, Failure, NotAllowed, Note, Refused, State, Where
from tests.core.builders import deploying, fact, job, seats, training, with_fact

KILLED = Failure(cause=Cause.UNKNOWN, code="killed", what="learner 0 was killed (signal 9)", advice="See the log.")
BUG = Failure(cause=Cause.YOUR_CODE, code="exception", what="ValueError: no", advice="Change the cell.")


def running(learners: tuple[int, int] = (1, 4), wish: int = 2) -> Job:
    return training(job(1, learners, wish=wish), *seats("n1", wish))


def asked(target: Job, event: Event, learners: int | None = None) -> Job:
    return apply_request(target, event, by="ana", now_s=200.0, learners=learners)[0]


def closed(target: Job, why: str = "halted") -> Job:
    return with_fact(target, FactKind.CLOSED, why=why)


def reason(target: Job) -> str:
    return job_view(target, row=1, directory="", wait=None, progress=None).reason


def label(target: Job) -> str:
    return job_view(target, row=1, directory="", wait=None, progress=None).state_label


def test_a_job_that_got_seats_is_wanted_with_fresh_members() -> None:
    document = wanted(deploying(job(learners=(2, 2)), *seats("n1", 2)))

    assert document is not None
    assert [(m.member, m.devices) for m in document.members] == [(0, ("n1/0",)), (1, ("n1/1",))]
    assert (document.goal, document.generation) == (Goal.RUN, 1)


def test_a_restart_before_the_last_checkpoint_makes_that_one_void() -> None:
    saved = with_fact(running(), FactKind.CHECKPOINT, generation=1, step=48)
    lost = with_fact(saved, FactKind.LOST, generation=1, failure=KILLED, step=48)
    again = with_fact(lost, FactKind.GENERATION, generation=lost.generation, step=40)

    assert (again.step, again.checkpoint_step) == (40, 40)
    assert with_fact(again, FactKind.CHECKPOINT, generation=lost.generation, step=44).checkpoint_step == 44


def test_a_change_of_a_training_gang_keeps_its_checkpoint() -> None:
    saved = with_fact(running(), FactKind.CHECKPOINT, generation=1, step=48)
    members = tuple(m.member for m in saved.gang)
    changed = with_fact(saved, FactKind.GENERATION, generation=saved.generation, step=40, members=members)

    assert changed.checkpoint_step == 48


def test_a_job_without_a_guardian_needs_none() -> None:
    assert wanted(job()) is None


def test_member_numbers_are_never_used_again() -> None:
    grown = resized(running(), seats("n1", 3), "you", 60.0)[0]

    assert [m.member for m in grown.gang] == [2, 3, 4]


def test_resize_holds_old_and_new_seats_until_learners_left() -> None:
    shrunk = resized(running(), seats("n1", 1), "you", 60.0)[0]
    assert {d for m in shrunk.members for d in m.seat.devices} == {"n1/0", "n1/1"}

    for member in (0, 1):
        shrunk = with_fact(shrunk, FactKind.LEARNER_DOWN, member=member, code=0)

    assert [m.seat.devices for m in shrunk.members] == [("n1/0",)]


def test_completed_resize_is_recorded_with_step_and_pause() -> None:
    grown = resized(running(), seats("n1", 3), "you", 60.0)[0]
    assert label(grown) == "Processing · scaling 2 → 3"

    grown = with_fact(grown, FactKind.GENERATION, generation=2, step=37, idle_s=0.25)

    assert [(r.before, r.after, r.step, r.idle_s, r.by) for r in grown.resizes] == [(2, 3, 37, 0.25, "you")]
    assert label(grown) == "Processing"


def test_awaited_learner_is_named_until_it_arrives() -> None:
    busy = with_fact(running(), FactKind.AWAITED, member=0, why="cell [3], line 4")
    over = with_fact(busy, FactKind.AWAITED)

    assert reason(busy) == "The other learners wait for learner 0, which is busy, at cell [3], line 4."
    assert reason(over) == ""


def test_scale_outside_the_bounds_names_size_and_bounds() -> None:
    with pytest.raises(Refused, match=r"Stayed at 2\. job-1 accepts 1 to 4 learners\."):
        asked(running(), Event.SCALE, 9)


def test_asking_twice_for_the_same_changes_nothing() -> None:
    once = asked(running(), Event.HALT)

    assert asked(once, Event.HALT) is once


def test_a_halt_gives_the_devices_back_and_keeps_the_step() -> None:
    halting = asked(running(), Event.HALT)
    assert label(halting) == "Processing · halting"
    assert wanted(halting).goal is Goal.HALT  # type: ignore[union-attr]

    halting = with_fact(halting, FactKind.HALTED, step=41, has_checkpoint=True)
    halted = closed(halting)

    assert (halted.state, halted.checkpoint_step, halted.members, wanted(halted)) == (State.HALTED, 41, (), None)


def test_each_checkpoint_request_is_served_once_while_training() -> None:
    trains = running()

    once, events = apply_request(trains, Event.CHECKPOINT, by="ana", now_s=200.0)
    twice = asked(once, Event.CHECKPOINT)

    assert [wanted(one).checkpoints for one in (trains, once, twice)] == [0, 1, 2]  # type: ignore[union-attr]
    assert wanted(twice).revision > wanted(once).revision > wanted(trains).revision  # type: ignore[union-attr]
    assert events[0].text == "You requested a checkpoint; it is written at the next step."
    assert twice.gang == trains.gang
    texts = [
        [line.text for line in apply_fact(one, fact(one, FactKind.CHECKPOINT, step=9, asked=answers))[1]]
        for one, answers in ((trains, None), (once, None), (once, 1), (twice, 1), (twice, 2))
    ]
    assert texts == [
        [],
        [],
        ["Requested checkpoint written at step 9."],
        [],
        ["Requested checkpoint written at step 9."],
    ]
    assert not asked(once, Event.HALT).awaits_checkpoint
    with pytest.raises(NotAllowed, match="QUEUED and does not accept 'checkpoint'"):
        asked(job(), Event.CHECKPOINT)
    with pytest.raises(NotAllowed, match="is releasing its devices"):
        asked(asked(trains, Event.HALT), Event.CHECKPOINT)


def test_a_learner_killed_after_its_grace_is_in_the_story() -> None:
    halting = asked(training(job(), *seats("n1", 1)), Event.HALT)
    down = fact(halting, FactKind.LEARNER_DOWN, member=0, generation=1, signal=SIGKILL)

    _, texts = apply_fact(halting, down)

    assert [one.text for one in texts] == ["Learner 0 did not end when asked to, and was killed."]


def test_resume_during_a_halt_requeues_the_job_afterwards() -> None:
    halting = asked(asked(running(), Event.HALT), Event.RESUME)
    assert wanted(halting).goal is Goal.HALT  # type: ignore[union-attr]

    assert closed(halting).state is State.QUEUED


def test_a_cancel_during_a_halt_wins() -> None:
    assert closed(asked(asked(running(), Event.HALT), Event.CANCEL), "stopped").state is State.CANCELLED


def test_a_cancelled_job_cannot_be_halted_or_resumed() -> None:
    cancelling = asked(running(), Event.CANCEL)

    with pytest.raises(NotAllowed, match="is being cancelled"):
        asked(cancelling, Event.HALT)
    with pytest.raises(NotAllowed, match="is being cancelled"):
        asked(cancelling, Event.RESUME)


def test_a_waiting_job_is_halted_resumed_and_cancelled_at_once() -> None:
    halted = asked(job(), Event.HALT)
    assert halted.state is State.HALTED
    assert asked(halted, Event.RESUME).state is State.QUEUED
    assert asked(halted, Event.CANCEL).state is State.CANCELLED


def test_killed_learner_restarts_the_gang_on_its_seats() -> None:
    lost = with_fact(running(), FactKind.LEARNER_DOWN, member=0, signal=9, failure=KILLED)
    lost = with_fact(lost, FactKind.LEARNER_DOWN, member=1, signal=15)
    assert len(lost.members) == 2, "no other job gets the seats in between"

    lost = with_fact(
        with_fact(lost, FactKind.CHECKPOINT, step=30), FactKind.LOST, generation=1, failure=KILLED, step=35
    )

    assert (lost.state, [m.member for m in lost.gang], lost.not_before_s) == (State.DEPLOYING, [2, 3], 100.0)
    view = job_view(lost, row=1, directory="", wait=None, progress=None)
    assert view.reason == "Learner 0 was killed (signal 9). Restarting from step 30."


def test_losses_without_progress_back_off_and_finally_fail() -> None:
    lost, delays = running(), []
    while lost.state is not State.FAILED:
        lost = with_fact(lost, FactKind.LOST, generation=lost.generation, failure=KILLED)
        delays.append(lost.not_before_s - 100.0)

    assert delays == [0.0, 1.0, 2.0, 4.0, 4.0]
    assert lost.failure is not None
    assert (lost.failure.what, lost.failure.cause) == (KILLED.what, KILLED.cause)


@pytest.mark.parametrize(
    ("retries", "why"),
    [
        (0, "The job was not restarted, because it was submitted with --retries 0."),
        (1, "The job was restarted 1 time without a new checkpoint."),
    ],
)
def test_advice_of_a_failed_job_promises_no_restart(retries: int, why: str) -> None:
    lost = running()
    lost = replace(lost, spec=replace(lost.spec, retries=retries))
    for _ in range(retries + 1):
        lost = with_fact(lost, FactKind.LOST, generation=lost.generation, failure=from_exit(None, SIGKILL))

    assert lost.state is State.FAILED
    assert lost.failure is not None
    assert lost.failure.advice == (
        f"A user or the system killed the process. {why} To run it again: `jupyter dlaas retry {lost.id}`."
    )


def test_checkpoint_with_progress_resets_the_restart_count() -> None:
    lost = with_fact(running(), FactKind.LOST, generation=1, failure=KILLED)
    lost = with_fact(lost, FactKind.CHECKPOINT, step=100)

    assert lost.restarts == 0


def test_a_bug_in_the_cell_is_not_tried_again() -> None:
    failed = with_fact(running(), FactKind.LOST, generation=1, failure=BUG)

    assert (failed.state, failed.failure, wanted(failed).goal) == (State.FAILED, BUG, Goal.STOP)  # type: ignore[union-attr]


@pytest.mark.parametrize("failure", [BUG, from_exception(["CheckpointTooNew"], "format 2", where=None, traceback="")])
def test_broken_generation_holds_its_seats_until_it_is_closed(failure: Failure) -> None:
    broken = running()
    for member in (0, 1):
        broken = with_fact(broken, FactKind.LEARNER_DOWN, member=member, code=1, failure=failure)
    broken = with_fact(broken, FactKind.LOST, generation=1, failure=failure)

    assert {d for m in broken.members for d in m.seat.devices} == {"n1/0", "n1/1"}
    assert closed(broken, "stopped").members == ()


def test_a_second_hang_at_the_same_line_ends_the_job() -> None:
    hang = Failure(cause=Cause.HANG, code="hang", what="hung", advice="", where=Where(label="cell [3]", line=2))
    elsewhere = replace(hang, where=Where(label="cell [3]", line=9))
    first = with_fact(running(), FactKind.LOST, generation=1, failure=hang)

    assert first.state is State.DEPLOYING
    assert with_fact(first, FactKind.LOST, generation=2, failure=elsewhere).state is State.DEPLOYING
    assert with_fact(first, FactKind.LOST, generation=2, failure=hang).state is State.FAILED
    further = with_fact(first, FactKind.CHECKPOINT, step=100)
    assert with_fact(further, FactKind.LOST, generation=2, failure=hang).state is State.DEPLOYING


def test_damaged_checkpoints_fail_the_job_with_the_commands_to_type() -> None:
    failure = from_exception(["CheckpointsDamaged"], "all damaged", where=None, traceback="")
    failed = with_fact(running(), FactKind.LOST, generation=1, failure=failure)

    assert failed.state is State.FAILED
    assert failed.failure is not None
    assert f"`jupyter dlaas retry {failed.id}`" in failed.failure.advice


def test_a_checkpoint_of_a_newer_version_halts_the_job() -> None:
    failure = from_exception(["CheckpointTooNew"], "format 2", where=None, traceback="")
    before = with_fact(running(), FactKind.CHECKPOINT, step=30)
    halted = with_fact(before, FactKind.LOST, generation=1, failure=failure)
    assert wanted(halted).goal is Goal.HALT  # type: ignore[union-attr]
    halted = closed(with_fact(halted, FactKind.HALTED, step=0, has_checkpoint=False))

    assert (halted.state, halted.checkpoint_step) == (State.HALTED, 30)
    assert reason(halted).startswith("CheckpointTooNew: format 2. Update jupyter_dlaas, then `jupyter dlaas resume")
    assert {one.id for one in actions(halted)} >= {ActionId.RESUME, ActionId.RETRY}
    assert not asked(halted, Event.RESUME).needs_decision


def test_loss_of_a_replaced_generation_is_ignored() -> None:
    grown = resized(running(), seats("n1", 3), "you", 60.0)[0]

    assert with_fact(grown, FactKind.LOST, generation=1, failure=BUG).state is State.PROCESSING


def test_a_fact_that_was_folded_before_changes_nothing() -> None:
    once = running()
    repeated = JobClosed(n=0, at_s=1.0, why="stopped")

    assert apply_fact(once, repeated) == (once, ())


def test_guardian_restarts_are_bounded() -> None:
    gone, tries = deploying(job(), *seats("n1", 1)), 0
    while gone.state is not State.FAILED:
        gone, tries = guardian_gone(gone, "no memory", 60.0)[0], tries + 1

    assert tries == 8
    assert gone.failure is not None
    assert gone.failure.cause is Cause.PLATFORM


def test_document_is_delivered_again_only_without_a_guardian() -> None:
    up = deploying(job(), *seats("n1", 1))
    revision = up.revision

    assert reconcile([up], {up.id: Known(revision, is_guarded=True)}, 60.0) == ()
    assert [a.job for a in reconcile([up], {up.id: Known(revision, is_guarded=False)}, 60.0)] == [up.id]
    assert [a.job for a in reconcile([up], {}, 60.0)] == [up.id]


def test_no_action_before_the_retry_delay_has_passed() -> None:
    lost = running()
    for _ in range(2):
        lost = with_fact(lost, FactKind.LOST, generation=lost.generation, failure=KILLED)

    assert reconcile([lost], {}, 100.5) == ()
    assert len(reconcile([lost], {}, 101.0)) == 1


@pytest.mark.parametrize("event", [Event.HALT, Event.CANCEL])
def test_leave_request_between_two_retries_is_delivered_at_once(event: Event) -> None:
    waits = replace(running(), not_before_s=1000.0)
    leaves = asked(waits, event)
    seen = Known(waits.revision, is_guarded=True)

    assert reconcile([waits], {waits.id: replace(seen, sent_revision=-1)}, 200.0) == ()
    assert [act.wanted.goal for act in reconcile([leaves], {leaves.id: seen}, 200.0)] == [leaves.goal]
    gone = replace(seen, is_guarded=False)
    assert reconcile([leaves], {leaves.id: gone}, 200.0) == (), "a guardian that cannot start is tried with a delay"


kinds = st.sampled_from(list(FactKind))
requests = st.sampled_from([Event.SCALE, Event.HALT, Event.RESUME, Event.CANCEL])
moves = st.lists(st.one_of(st.tuples(kinds, st.integers(0, 3)), st.tuples(requests, st.integers(0, 5))), max_size=40)


@given(moves)
def test_whatever_happens_a_job_stays_whole(steps: list[tuple[FactKind | Event, int]]) -> None:
    """Any facts and requests in any order: no exception but ours, counters only rise, final stays final."""
    target = running()
    for move, number in steps:
        before = target
        if isinstance(move, FactKind):
            fields: dict[str, object] = {
                "generation": number,
                "member": number,
                "step": number,
                "failure": KILLED,
                "revision": number,
            }
            known = {f.name for f in dataclasses.fields(FACT_TYPES[move])}
            fields = {name: value for name, value in fields.items() if name in known}
            target = apply_fact(target, fact(target, move, **fields))[0]
        else:
            try:
                target = asked(target, move, number)
            except DlaasError:
                target = before
        assert target.generation >= before.generation
        assert target.revision >= before.revision
        assert target.next_member >= before.next_member
        if before.state.is_final:
            assert target.state is before.state
        numbers = [m.member for m in target.members]
        assert len(numbers) == len(set(numbers))
        if target.is_closed:
            assert target.members == ()


def test_communication_profile_counts_only_on_several_nodes() -> None:
    gang = job(1, (2, 2))
    together = with_fact(training(gang, *seats("n1", 2)), FactKind.PROFILE, generation=1, communication=0.01, skew=0.1)
    apart = with_fact(
        training(gang, *seats("n1", 1), *seats("n2", 1)), FactKind.PROFILE, generation=1, communication=0.3, skew=0.1
    )

    assert together.profile == Profile(communication=None, skew=0.1)
    assert apart.profile == Profile(communication=0.3, skew=0.1)
    assert with_fact(apart, FactKind.PROFILE, generation=0, communication=0.01).profile == apart.profile, (
        "of an older gang"
    )


def test_training_report_is_in_the_story_and_on_the_card() -> None:
    note = Note(code="report_not_finite", text="loss became NaN at step 7.")
    target, texts = apply_fact(running(), fact(running(), FactKind.REPORT, note=note))

    assert [(one.kind, one.text) for one in texts] == [("report", note.text)]
    assert job_view(closed(target), row=1, directory="", wait=None, progress=None).notes == (note,)


def test_a_preemption_is_an_interruption_without_devices() -> None:
    leaving = preempted(replace(running(), step=40, checkpoint_step=40), "bert-2 has priority", 200.0)[0]
    left = leaving
    for member in leaving.gang:
        left = with_fact(left, FactKind.LEARNER_DOWN, at_s=203.0, member=member.member)

    view = job_view(left, row=1, directory="", wait=None, progress=None)
    assert (view.state, view.state_label, view.tone) == (State.QUEUED, "Queued · preempted", "warn")
    # Its guardian has not closed the generation yet, but nothing may claim that a checkpoint is still being written.
    assert (view.transition, view.status_line) == (None, "")
    assert view.reason == "Preempted: bert-2 has priority. Nothing was lost: it continues from step 40."
    (open_,) = left.interruptions
    assert (open_.at_s, open_.step, open_.before, open_.by, open_.held_s) == (203.0, 40, 2, "preempted", None)

    queued = closed(with_fact(left, FactKind.HALTED, step=40, has_checkpoint=True))
    again = started(queued, seats("n2", 1), 300.0)[0]
    assert again.waited_s == pytest.approx(queued.waited_s + 300.0 - (queued.in_queue_s or 0))
    trains = with_fact(again, FactKind.GENERATION, at_s=302.0, generation=again.generation, step=40)

    (over,) = trains.interruptions
    assert (over.held_s, over.to_s, over.after) == (300.0, 302.0, 1)
    assert (
        over.text == "Preempted: bert-2 has priority. Training resumed with 1 learner from step 40, after 1 min 39 s."
    )


def test_a_restart_is_an_interruption_that_keeps_its_devices() -> None:
    lost = with_fact(running(), FactKind.LOST, at_s=150.0, generation=1, failure=KILLED)
    trains = with_fact(lost, FactKind.GENERATION, at_s=151.0, generation=2, step=0)

    (found,) = trains.interruptions
    assert (found.by, found.at_s, found.held_s, found.to_s, found.after) == ("lost", 150.0, 150.0, 151.0, 2)


def test_job_halted_before_its_restart_holds_no_devices() -> None:
    lost = with_fact(running(), FactKind.LOST, at_s=150.0, generation=1, failure=KILLED)
    left = asked(lost, Event.HALT)
    for member in left.members:
        left = with_fact(left, FactKind.LEARNER_DOWN, at_s=153.0, member=member.member)

    assert [(one.by, one.at_s, one.before, one.held_s) for one in left.interruptions] == [("lost", 150.0, 2, None)]


def test_a_job_that_completes_before_it_leaves_was_not_interrupted() -> None:
    halting = asked(running(), Event.HALT)
    assert len(halting.interruptions) == 1

    assert with_fact(halting, FactKind.COMPLETED, generation=1).interruptions == ()


def test_lost_learner_is_shown_until_it_is_replaced() -> None:
    short = with_fact(
        replace(running(), is_live=True), FactKind.REGROUPED, generation=1, members=(0,), step=9, failure=KILLED
    )

    view = job_view(short, row=1, directory="", wait=None, progress=None)

    assert (view.state_label, view.tone) == ("Processing · 1 of 2", "warn")
    assert view.reason == "Learner 0 was killed (signal 9). 1 learner continues."
    assert [one.by for one in view.interruptions] == ["lost"]

    grown = resized(short, seats("n1", 2), "pool", 200.0)[0]
    members = tuple(m.member for m in grown.gang)
    whole = with_fact(grown, FactKind.GENERATION, generation=grown.generation, members=members, step=30, live=True)
    assert whole.interruptions[-1].text.endswith("Replaced: 2 learners from step 30 on.")
    assert job_view(whole, row=1, directory="", wait=None, progress=None).state_label == "Processing"


def test_the_owner_is_called_you() -> None:
    def line(by: str) -> str:
        halting = apply_request(running(), Event.HALT, by=by, now_s=1.0)[0]
        halted = closed(with_fact(halting, FactKind.HALTED, step=4, has_checkpoint=True))
        return job_view(halted, row=1, directory="", wait=None, progress=None).status_line

    assert [line("ana"), line("bob")] == ["by you at step 4", "by bob at step 4"]


def test_only_time_that_a_checkpoint_kept_counts_as_run() -> None:
    """Seated at 50 s, it trains from 100 s on, and leaves at 100 s; what no checkpoint kept is run again."""
    up = training(job(1), *seats("n1", 1))
    left = replace(up, started_s=60.0, checkpoint_step=7, intent=Intent.HALT)

    assert with_fact(left, FactKind.CLOSED).ran_s == 40.0
    assert with_fact(replace(left, checkpoint_step=None), FactKind.CLOSED).ran_s == 0.0
