"""Size requests without a user: by the program, the schedule, the autoscaler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dlaas_server.core.elasticity.size_requests import condition_of, due
from dlaas_server.core.lifecycle.journal_events import apply_fact, scheduled
from dlaas_server.core.lifecycle.plan_outcomes import resized
from dlaas_server.core.lifecycle.user_requests import apply_request
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.states import Event
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.presentation.job_view import job_view
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Condition, Elastic, JobSpec, JobView, NotAllowed, Scheduled
from tests.core.builders import fact, job, node, pool, seats, training, with_fact

SCHEDULE = (Scheduled(epoch=10, learners=4), Scheduled(epoch=30, learners=2))


def running(elastic: Elastic, wish: int = 1, schedule: tuple[Scheduled, ...] = ()) -> Job:
    one = job(1, (1, 4), wish=wish, elastic=elastic)
    one = replace(one, spec=replace(one.spec, schedule=schedule))
    return with_fact(training(one, *seats("n1", wish)), FactKind.GENERATION, generation=1, step=0, live=True)


def paced(one: Job, rate: float, at_s: float = 100.0, learners: int | None = None) -> Job:
    held = len(one.gang) if learners is None else learners
    seen = fact(
        one, FactKind.PACE, generation=one.live_generation, learners=held, steps=40, rate=rate, spread=0.05, at_s=at_s
    )
    return apply_fact(one, seen)[0]


def granted(one: Job) -> Job:
    """Carry out what the plan grants of the wish."""
    for change in plan(pool([node()], one), 100.0).resizes:
        one = resized(one, change.seats, change.by, 100.0)[0]
        one = with_fact(one, FactKind.GENERATION, generation=one.generation, step=9, idle_s=0.02, live=True)
    return one


def shown(one: Job) -> JobView:
    return job_view(one, row=1, directory="", wait=None, progress=None)


def found(speed: Callable[[int], float]) -> Job:
    one = running(Elastic.AUTO)
    for n in range(15):
        one = granted(paced(one, speed(len(one.gang)), 100.0 + n))
    return one


@pytest.mark.parametrize(("speed", "size"), [(lambda k: 100.0 * k, 4), (lambda k: 100.0 / k**0.2, 1)])
def test_auto_job_reaches_its_best_size(speed: Callable[[int], float], size: int) -> None:
    one = found(speed)

    assert len(one.gang) == size
    assert {change.by for change in one.resizes} <= {"auto", "pool"}, "the pool shares out what was wished for"
    assert [s.learners for s in shown(one).speeds][:2] == [1, 2]


def test_view_shows_the_gain_of_more_learners() -> None:
    view = shown(found(lambda k: 100.0 * k**0.5))

    assert view.speedup == "1 → 2: 1.4× faster, 2 → 4: 1.4× faster"
    assert [s.times for s in view.speeds] == [1.0, pytest.approx(1.414), 2.0]


@pytest.mark.parametrize("elastic", [Elastic.MANUAL, Elastic.OFF])
def test_a_job_whose_owner_chooses_is_measured_and_never_moves(elastic: Elastic) -> None:
    one = running(elastic)
    for n in range(20):
        one = paced(one, 100.0, 100.0 + n)

    assert one.wish == 1
    assert shown(one).speeds[0].samples_per_s == pytest.approx(100.0)


def test_windows_that_come_while_its_size_changes_decide_nothing() -> None:
    one = paced(running(Elastic.AUTO), 100.0)
    assert one.wish == 2
    (change,) = plan(pool([node()], one), 100.0).resizes
    one = resized(one, change.seats, change.by, 100.0)[0]

    assert paced(one, 100.0, 101.0, learners=1).wish == 2


def test_user_scale_switches_auto_to_manual() -> None:
    one, events = apply_request(running(Elastic.AUTO), Event.SCALE, by="ana", now_s=1.0, learners=3)

    assert (one.elastic, one.wish) == (Elastic.MANUAL, 3)
    assert "only on request (--elastic manual)" in events[0].text


def test_size_request_of_the_program_becomes_the_wish() -> None:
    one, events = apply_fact(
        running(Elastic.MANUAL), fact(running(Elastic.MANUAL), FactKind.ASKED, learners=3, step=1200)
    )

    assert (one.wish, one.wish_by) == (3, "program")
    assert [line.text for line in events] == ["The program requested 3 learners at step 1,200."]
    assert granted(one).resizes[-1].by == "program"


@pytest.mark.parametrize("learners", [0, 5])
def test_a_program_gets_no_size_outside_the_bounds(learners: int) -> None:
    assert with_fact(running(Elastic.MANUAL), FactKind.ASKED, learners=learners, step=1).wish == 1


ALONE = "Keras' fit trains alone."


@pytest.mark.parametrize("elastic", [Elastic.MANUAL, Elastic.AUTO])
def test_independent_learners_keep_the_minimum_size(elastic: Elastic) -> None:
    one, events = apply_fact(running(elastic, wish=3), fact(running(elastic, wish=3), FactKind.ALONE, why=ALONE))

    assert (one.wish, one.wish_by, one.elastic) == (1, "program", Elastic.MANUAL)
    assert [line.text for line in events] == [f"{ALONE} It stays at 1 learner until you scale it."]
    assert [(note.code, note.text) for note in shown(one).notes] == [("trains_alone", ALONE)]
    assert [len(change.seats) for change in plan(pool([node()], one), 100.0).resizes] == [1]


def test_status_line_reports_several_independent_learners() -> None:
    several, one = (with_fact(running(Elastic.MANUAL, wish=wish), FactKind.ALONE, why=ALONE) for wish in (3, 1))
    in_parts = with_fact(running(Elastic.MANUAL, wish=3), FactKind.ALONE, why="parts", learners=3)

    assert [len(job.gang) for job in (several, one, in_parts)] == [3, 1, 3]
    assert [shown(job).reason for job in (several, one, in_parts)] == [ALONE, "", ""]


def test_user_may_scale_independent_learners() -> None:
    alone = with_fact(running(Elastic.MANUAL, wish=3), FactKind.ALONE, why=ALONE)
    one = with_fact(apply_request(alone, Event.SCALE, by="ana", now_s=1.0, learners=2)[0], FactKind.ALONE, why=ALONE)

    assert (one.wish, one.wish_by) == (2, "you")


def test_job_with_a_fixed_size_says_why() -> None:
    one = with_fact(running(Elastic.AUTO, wish=2), FactKind.ALONE, why="Parts.", learners=2)
    late = replace(one, spec=replace(one.spec, schedule=(Scheduled(epoch=1, learners=4),)))

    assert (one.wish, one.elastic) == (2, Elastic.OFF)
    with pytest.raises(NotAllowed, match=r"Stayed at 2\. Parts\."):
        apply_request(one, Event.SCALE, by="ana", now_s=1.0, learners=3)
    assert [one.why_not for one in shown(one).actions if one.id == "scale"] == [
        "each learner holds a part of the model"
    ]
    assert scheduled(late, 3)[0].wish == 2


def test_a_size_that_never_changes_is_only_spoken_of() -> None:
    off = running(Elastic.OFF, wish=3)
    one, events = apply_fact(off, fact(off, FactKind.ALONE, why=ALONE))

    assert (one.wish, one.elastic, [line.text for line in events]) == (3, Elastic.OFF, [ALONE])


def test_a_schedule_is_followed_entry_by_entry_and_once() -> None:
    one = running(Elastic.MANUAL, schedule=SCHEDULE)
    assert scheduled(one, 9) == (one, ())

    one, events = scheduled(one, 10)
    assert (one.wish, one.wish_by) == (4, "schedule")
    assert events[0].text == "Epoch 10: 4 learners, by the job's schedule."
    one = apply_request(one, Event.SCALE, by="ana", now_s=1.0, learners=3)[0]
    assert scheduled(one, 20)[0].wish == 3
    assert scheduled(one, 31)[0].wish == 2


def test_entries_that_were_missed_together_end_at_the_last_one() -> None:
    one = scheduled(running(Elastic.MANUAL, schedule=SCHEDULE), 35)[0]

    assert one.wish == 2
    assert due(one, 36) is None


@pytest.mark.parametrize("condition", list(Condition))
def test_every_condition_that_can_be_asked_for_is_there(condition: Condition) -> None:
    value = condition_of(JobSpec(condition=condition, condition_value=2.0))

    assert callable(value)
