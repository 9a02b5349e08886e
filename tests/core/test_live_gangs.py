"""Live gangs: staying members keep their identity, and lost ones cost no restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dlaas_server.core.lifecycle.journal_events import apply_fact
from dlaas_server.core.lifecycle.plan_outcomes import resized
from dlaas_server.core.lifecycle.reconcile import wanted
from dlaas_server.core.model.job import Job, MemberState, is_settled
from dlaas_server.core.placement.free_capacity import free_of
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.presentation.job_view import job_view, pool_view
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause, Failure, State
from tests.core.builders import fact, job, node, pool, seats, training, with_fact

KILLED = Failure(cause=Cause.EVICTED, code="killed", what="killed from outside (SIGKILL)", advice="Nothing to do.")


def live(wish: int = 2) -> Job:
    one = training(job(1, (1, 4), wish=wish), *seats("n1", wish))
    return with_fact(one, FactKind.GENERATION, generation=one.generation, step=0, live=True)


def lost(one: Job, member: int) -> Job:
    one = with_fact(one, FactKind.LEARNER_DOWN, member=member, generation=one.generation, failure=KILLED)
    rest = tuple(m.member for m in one.gang if m.member != member)
    return with_fact(
        one, FactKind.REGROUPED, generation=one.generation, members=rest, step=30, idle_s=0.1, failure=KILLED, live=True
    )


def test_learner_that_keeps_its_seat_stays_the_same_member() -> None:
    grown = resized(live(), seats("n1", 4), "you", 60.0)[0]

    assert [(m.member, m.rank) for m in grown.gang] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [m.state for m in grown.gang][:2] == [MemberState.READY] * 2
    document = wanted(grown)
    assert document is not None
    assert [m.member for m in document.members] == [0, 1, 2, 3]


def test_staying_members_get_the_first_ranks() -> None:
    shrunk = resized(live(3), (seats("n1", 4)[3], seats("n1", 3)[2]), "pool", 60.0)[0]

    assert [(m.member, m.rank) for m in shrunk.gang] == [(2, 0), (3, 1)]


def test_lost_learner_is_replaced_without_a_restart() -> None:
    one = lost(live(3), 0)

    assert one.state is State.PROCESSING
    assert (one.restarts, one.restarts_total) == (0, 0)
    assert [(m.member, m.rank) for m in one.gang] == [(1, 0), (2, 1)]
    assert [(r.before, r.after, r.by, r.idle_s) for r in one.resizes] == [(3, 2, "lost", 0.1)]
    (again,) = plan(pool([node()], one), 100.0).resizes
    assert (again.by, len(again.seats)) == ("pool", 3)


def test_story_has_the_loss_and_the_pause() -> None:
    one = with_fact(live(), FactKind.LEARNER_DOWN, member=1, generation=1, failure=KILLED)
    gone = fact(one, FactKind.REGROUPED, generation=1, members=(0,), step=1200, idle_s=0.1, failure=KILLED)

    (events,) = apply_fact(one, gone)[1]

    assert events.text == "killed from outside (SIGKILL). 1 learner continues from step 1,200 after a pause of 0.1 s."
    sentence = replace(gone, failure=replace(KILLED, what="Its pod was deleted."))
    assert apply_fact(one, sentence)[1][0].text.startswith("Its pod was deleted. 1 learner continues from")


def test_failed_joiner_is_retried_later_at_no_cost() -> None:
    one = resized(replace(live(1), wish=2), seats("n1", 2), "you", 60.0)[0]
    one = with_fact(one, FactKind.LEARNER_DOWN, member=1, generation=2, failure=KILLED)
    one = with_fact(one, FactKind.GENERATION, generation=2, members=(0,), step=9, live=True)

    assert [m.member for m in one.gang] == [0]
    assert one.resize is None
    first = one.not_before_s
    assert first > 100.0
    assert plan(pool([node()], one), first - 0.1).resizes == ()
    assert plan(pool([node()], one), first - 0.1).wake_s == first
    assert len(plan(pool([node()], one), first).resizes) == 1


def test_wholly_lost_gang_restarts_with_new_members() -> None:
    one = with_fact(live(), FactKind.LOST, generation=1, failure=KILLED)

    assert [m.member for m in one.gang] == [2, 3]
    assert not one.is_live


def moving() -> Job:
    """Of learners 0 and 1 the first is to be replaced by 2, on another node."""
    one = training(job(1, (2, 2)), *seats("n1", 1), *seats("n2", 1))
    one = with_fact(one, FactKind.GENERATION, generation=1, step=7, live=True)
    return resized(one, (*seats("n2", 2)[1:], *seats("n2", 1)), "pool", 60.0, "They can sit together.")[0]


def test_migration_without_joiners_changes_nothing_and_counts() -> None:
    one = moving()
    assert (one.moved_s, [m.member for m in one.gang]) == (60.0, [1, 2])
    one = with_fact(one, FactKind.LEARNER_DOWN, member=2, generation=2, failure=KILLED)
    one, events = apply_fact(one, fact(one, FactKind.GENERATION, generation=2, members=(0, 1), live=True))

    assert [(m.member, m.rank, m.generation, m.seat.node) for m in one.gang] == [(0, 0, 2, "n1"), (1, 1, 2, "n2")]
    assert (one.resize, one.resizes, one.members, one.step) == (None, (), one.gang, 7)
    assert events[0].text == "1 joining learner did not start; the job continues at its previous size."
    assert one.moved_s == 60.0


def test_generation_that_none_joined_names_no_step() -> None:
    one = live()
    events = apply_fact(one, fact(one, FactKind.GENERATION, generation=1, members=(0, 1), live=True))[1]

    assert [event.text for event in events] == ["Training with 2 learners."]


def test_leaving_member_stays_for_a_failed_joiner() -> None:
    one = with_fact(moving(), FactKind.LEARNER_DOWN, member=1, generation=2, failure=KILLED)
    one = with_fact(one, FactKind.GENERATION, generation=2, members=(0, 2), step=9, live=True, idle_s=0.1)

    assert [(m.member, m.rank) for m in one.gang] == [(0, 0), (2, 1)]
    assert [(r.before, r.after, r.by) for r in one.resizes] == [(2, 2, "pool")]
    assert one.joins_failed == 0, "who was to join came"


def shrunk() -> Job:
    """Of three learners with memory of their own, 2 was asked to leave; the others train on without it."""
    one = training(job(1, (1, 4), wish=3, memory=10), *seats("n1", 3))
    one = with_fact(one, FactKind.GENERATION, generation=1, step=0, live=True)
    one = resized(replace(one, wish=2), seats("n1", 2), "you", 60.0)[0]
    return with_fact(one, FactKind.GENERATION, generation=2, members=(0, 1), step=9, live=True)


def dismissed() -> Job:
    """Learner 2 was started to join; the gang continues without it, and nothing says that it has ended."""
    one = training(job(1, (1, 4), wish=3, memory=10), *seats("n1", 2))
    one = with_fact(one, FactKind.GENERATION, generation=1, step=0, live=True)
    one = resized(one, seats("n1", 3), "you", 60.0)[0]
    one = with_fact(one, FactKind.LEARNER_UP, member=2, generation=2)
    return with_fact(one, FactKind.GENERATION, generation=2, members=(0, 1), step=9, live=True)


def forsaken() -> Job:
    """Return the job after the others reported learner 2 as lost, before it has ended."""
    one = training(job(1, (1, 4), wish=3, memory=10), *seats("n1", 3))
    one = with_fact(one, FactKind.GENERATION, generation=1, step=0, live=True)
    return with_fact(one, FactKind.REGROUPED, generation=1, members=(0, 1), step=9, live=True)


@pytest.mark.parametrize("left", [shrunk, dismissed, forsaken])
def test_learner_holds_its_device_until_its_process_has_ended(left: Callable[[], Job]) -> None:
    one = left()
    (free,) = free_of([node(memory=100)], [one])
    jobs = {one.id: one}
    view = pool_view(row=1, name="p", unit="GPU", user="ana", nodes=[node()], jobs=jobs, queue=(), isolation="")

    assert [m.member for m in one.gang] == [0, 1]
    assert is_settled(one)
    assert ([device for _, device in free.devices], free.memory_bytes) == (["n1/3"], 70)
    assert view.devices_free == 1
    shown = job_view(one, row=1, directory="", wait=None, progress=None)
    assert [learner.state for learner in shown.learners] == ["Training", "Training", "Stopping"]

    one = with_fact(one, FactKind.LEARNER_DOWN, member=2, generation=1)
    (free,) = free_of([node(memory=100)], [one])
    assert (len(free.devices), free.memory_bytes) == (2, 80)


def test_joiner_that_was_never_started_holds_nothing_after_the_change() -> None:
    one = resized(live(), seats("n1", 3), "you", 60.0)[0]
    one = with_fact(one, FactKind.GENERATION, generation=2, members=(0, 1), step=9, live=True)

    assert one.members == one.gang
    assert len(one.gang) == 2
