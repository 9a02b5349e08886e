"""Refused seats: the job keeps its place and its record, the plan leaves the seat out for a while."""

from __future__ import annotations

from dataclasses import replace

from dlaas_server.core.lifecycle.plan_outcomes import resized
from dlaas_server.core.lifecycle.seat_refusal import seats_refused
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, MemberState
from dlaas_server.core.planning.pool_settings import Settings, nodes_in_force
from dlaas_server.core.planning.refused_seats import (
    FIRST_S,
    LONGEST_S,
    RefusedSeat,
    proven,
    refused_again,
    retried,
    retry_s,
)
from dlaas_server.core.presentation.job_view import job_view
from dlaas_server.core.presentation.waiting_text import waiting_text
from jupyter_dlaas.wire.journal import FactKind, Goal, SeatRefused
from jupyter_dlaas.wire.protocol import State, WaitingReason
from tests.core.builders import deploying, fact, job, node, seats, training, with_fact


def refusal(target: Job, member: int = 0, generation: int | None = None, advice: str = "") -> SeatRefused:
    generation, what = target.generation if generation is None else generation, "The quota of ml is full."
    return SeatRefused(generation=generation, member=member, code="quota", what=what, advice=advice)


def refused(target: Job, member: int = 0) -> Job:
    return seats_refused(target, (refusal(target, member),), 100.0)[0]


def test_refused_gang_gives_up_its_seats_and_keeps_its_place() -> None:
    waiting = replace(job(learners=(2, 2)), queued_s=7.0)
    target = refused(deploying(waiting, *seats("n1", 2)), member=1)
    view = job_view(target, row=1, directory="", wait=None, progress=None)

    assert (target.members, target.goal, target.restarts_total, target.guardian_starts) == ((), Goal.STOP, 0, 0)
    assert (view.state, view.reason) == (State.QUEUED, "It could not be placed: The quota of ml is full.")
    closed = with_fact(target, FactKind.CLOSED, why="stopped")
    assert (closed.state, closed.queued_s, closed.in_queue_s) == (State.QUEUED, 7.0, 50.0)
    assert deploying(closed, *seats("n1", 2)).refusal is None


def test_card_of_a_refused_gang_says_once_what_to_do() -> None:
    target = deploying(job(learners=(2, 2)), *seats("n1", 2))
    facts = [refusal(target, member, advice="Request less.") for member in (0, 1)]
    after, (story,) = seats_refused(target, facts, 100.0)
    view = job_view(after, row=1, directory="", wait=None, progress=None)

    assert view.reason == "It could not be placed: The quota of ml is full. Request less."
    assert story.text == "The quota of ml is full. The job returns to its place in the queue. Request less."


def test_refusal_of_another_generation_changes_nothing() -> None:
    target = deploying(job(), *seats("n1", 1))

    assert seats_refused(target, (refusal(target, generation=7),), 100.0) == (target, ())
    leaving = replace(target, goal=Goal.HALT)
    assert seats_refused(leaving, (refusal(leaving),), 100.0) == (leaving, ())


def test_live_gang_continues_with_the_members_it_had() -> None:
    target = replace(training(job(1, (1, 4), wish=2), *seats("n1", 2)), is_live=True)
    moving = resized(target, (*seats("n1", 1), Seat("n2", ("n2/0",))), "pool", 60.0)[0]
    assert [m.member for m in moving.gang] == [0, 2]
    after = refused(moving, member=2)

    assert [(m.member, m.rank, m.state) for m in after.gang] == [
        (0, 0, MemberState.READY),
        (1, 1, MemberState.READY),
    ]
    assert (after.goal, after.generation, len(after.members)) == (Goal.RUN, moving.generation + 1, 2)
    members = tuple(m.member for m in after.gang)
    again = with_fact(after, FactKind.GENERATION, generation=after.generation, step=9, members=members, live=True)
    assert (again.resize, again.resizes) == (None, ())


def test_refused_seats_of_a_restart_preempt_a_job_that_trains() -> None:
    target = training(job(1, (1, 4), wish=2), *seats("n1", 2))
    after = refused(resized(target, seats("n1", 3), "you", 60.0)[0], member=2)

    assert (after.goal, after.preempted, after.refusal) == (Goal.HALT, "the quota of ml is full", None)
    assert {m.member for m in after.members} >= {0, 1}, "they hold their devices until they are down"


def test_refused_seat_is_left_out_for_a_growing_time() -> None:
    target = deploying(job(), *seats("n1", 1))
    found: dict[str, RefusedSeat] = {}
    delays = []
    for now_s in (0.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0):
        found = dict(refused_again(found, target, (refusal(target),), now_s))
        until_s = retry_s(found)
        assert until_s is not None
        delays.append(until_s - now_s)
        found = dict(retried(found, until_s))
        assert retry_s(found) is None, "the plan may choose it again"

    assert delays == [FIRST_S * 2**n for n in range(6)] + [LONGEST_S] * 2
    assert proven(found, target, fact(target, FactKind.LEARNER_UP, member=0)) == {}
    assert retried(found, 20_000.0) == {}


def test_only_the_refused_device_is_out_of_service() -> None:
    target = deploying(job(learners=(2, 2)), *seats("n1", 2))
    settings = Settings(refused=refused_again({}, target, (refusal(target, 1),), 0.0))
    (found,) = nodes_in_force([node("n1", 3)], settings)

    assert [d.out_of_service is not None for d in found.devices] == [False, True, False]
    assert found.cordoned is None
    assert settings.without_cordon("n1").refused == {}


def test_seat_without_devices_leaves_out_its_node() -> None:
    target = deploying(job(gpus=0), Seat("n1"))
    settings = Settings(refused=refused_again({}, target, (refusal(target),), 0.0))
    first, second = nodes_in_force([node("n1"), node("n2")], settings)

    assert (first.cordoned, second.cordoned) == ("a learner could not be placed here: The quota of ml is full", None)


def test_learner_up_names_its_machine_and_pod() -> None:
    target = with_fact(deploying(job(), *seats("n1", 1)), FactKind.LEARNER_UP, member=0, node="gke-7", pod="job-1-m0")
    (learner,) = job_view(target, row=1, directory="", wait=None, progress=None).learners

    assert (learner.node, learner.pod) == ("gke-7", "job-1-m0")
    assert target.gang[0].seat.node == "n1", "its devices are counted where they were planned"


def test_equal_waiting_reasons_are_said_once() -> None:
    pull = WaitingReason(code="image_pull", what="The image ml:1 is being pulled.")
    full = WaitingReason(code="quota", what="The quota is full.", advice="Ask for less.")

    assert waiting_text([replace(pull, member=n) for n in (0, 1, 2)]) == "The image ml:1 is being pulled."
    mixed = [replace(pull, member=0), replace(full, member=1), replace(pull, member=2)]
    assert waiting_text(mixed) == (
        "Learners 0 and 2: The image ml:1 is being pulled. Learner 1: The quota is full. Ask for less."
    )
