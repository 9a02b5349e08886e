"""Estimates of a job's length, and of its start as shown to its owner."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dlaas_server.core.forecast.remaining_time import has_overrun
from dlaas_server.core.forecast.remaining_time import left_s as left_in_plan_s
from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.engine.estimation.length_history import Lengths, offered, with_start
from dlaas_server.engine.estimation.pace import Paces, with_time_left
from dlaas_server.engine.estimation.start_estimator import StartEstimator
from dlaas_server.engine.reconciliation.transaction import Draft
from dlaas_server.engine.wait_messages import waits_with_estimates
from jupyter_dlaas.wire.protocol import Progress, State
from tests.core.builders import job, node, pool, seats, training


def completed(number: int, length_s: float, name: str = "job") -> Job:
    one = job(number)
    spec = replace(one.spec, name=name)
    return replace(one, spec=spec, state=State.COMPLETED, started_s=1000.0, ended_s=1000.0 + length_s)


def test_expected_run_time_follows_jobs_of_the_same_name() -> None:
    lengths = Lengths()
    for number, length_s in enumerate((20.0, 20.0, 3000.0, 3000.0)):
        lengths.learn(completed(number, length_s, name="short" if length_s < 100 else "job"))

    assert lengths.known([job(9)], {}, 0.0)["job-9"].length_s == pytest.approx(3000.0)


def test_history_prefers_same_cell_then_name_then_owner() -> None:
    lengths = Lengths()
    for number, (cell, length_s) in enumerate((("a", 20.0), ("b", 3000.0)) * 2):
        one = completed(number, length_s)
        origin = replace(one.spec.origin, notebook="n.ipynb", cell_id=cell)
        lengths.learn(replace(one, spec=replace(one.spec, origin=origin)))
    asked = [job(8), replace(job(9), spec=replace(job(9).spec, name="other"))]
    again = replace(asked[0].spec, origin=replace(asked[0].spec.origin, notebook="n.ipynb", cell_id="a"))
    found = lengths.known([replace(asked[0], spec=again), asked[1]], {}, 0.0)

    assert found["job-8"].length_s == pytest.approx(20.0)
    assert found["job-9"].length_s is not None
    assert (found["job-8"].spread or 0) < (found["job-9"].spread or 0)


def test_spread_shrinks_as_more_similar_jobs_agree() -> None:
    doubts, lengths = [], Lengths()
    for number in range(12):
        lengths.learn(completed(number, 100.0))
        doubts.append(lengths.known([job(99)], {}, 0.0)["job-99"].spread or 0.0)

    assert doubts[-1] < doubts[2] < doubts[0]


def test_the_further_a_job_is_the_less_doubt_is_left() -> None:
    running = training(job(1), *seats("n1", 1))
    reports = [Progress(step=step, steps=400, steps_per_s=2.0) for step in (100, 300)]
    early, late = (Lengths().known([running], {running.id: one}, 9000.0)[running.id] for one in reports)

    assert (late.spread or 0) < (early.spread or 0)
    assert late.usual_s == late.length_s


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    assert Lengths().known([job(9)], {}, 0.0)["job-9"].length_s is None


def test_a_job_that_reports_its_steps_is_known_by_them() -> None:
    running = training(job(1), *seats("n1", 1))
    found = Lengths().known([running], {running.id: Progress(step=100, steps=400, steps_per_s=2.0)}, 9000.0)

    assert (found[running.id].executed_s, found[running.id].length_s) == (50.0, 200.0)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ((1360.0, 1540.0), "Needs 1 GPU. Expected to start in 6 to 9 min."),
        ((1058.0, 1061.0), "Needs 1 GPU. Expected to start in about 1 min."),
        (None, "Needs 1 GPU."),
    ],
)
def test_wait_reason_contains_the_start_estimate(expected: tuple[float, float] | None, said: str) -> None:
    assert with_start(Wait("job-1", "Needs 1 GPU.", 1, 1), expected, 1000.0).reason == said


def test_wait_reason_offers_a_smaller_size() -> None:
    gang = job(1, (4, 4))

    assert offered(gang, 2) == " With 2 GPUs it would start now: --gpus 2:4."
    assert offered(gang, None) == ""
    assert with_start(Wait("job-1", "Needs 4 GPUs.", 1, 1), None, 0.0, offered(gang, 1)).reason == (
        "Needs 4 GPUs. With 1 GPU it would start now: --gpus 1:4."
    )


def test_offer_is_withdrawn_once_another_job_has_taken_the_devices() -> None:
    gang, other = job(2, (4, 4)), job(3, (2, 2))
    estimator = StartEstimator(lambda: None)
    estimator.offers = {gang.id: 2}

    def reason(**changed: Job) -> str:
        picture = pool([node(devices=3)], gang, other)
        draft = Draft(base=picture.jobs, rows={}, last_row=0, now_s=0.0)
        draft.changed.update({one.id: one for one in changed.values()})
        return waits_with_estimates(draft, picture, [Wait(gang.id, "Needs 4 GPUs.", 1, 1)], estimator)[gang.id].reason

    assert reason() == "Needs 4 GPUs. With 2 GPUs it would start now: --gpus 2:4."
    assert reason(started=training(other, *seats("n1", 2))) == "Needs 4 GPUs."


def test_order_learns_from_jobs_ended_before_and_after_its_selection() -> None:
    before, after = Lengths(), Lengths()
    for number in range(60):
        before.learn(completed(number, 10.0 * 1.2**number))
    order = after.order("gittins")
    for number in range(60):
        after.learn(completed(number, 10.0 * 1.2**number))

    assert before.order("gittins") == order != Lengths().order("gittins")
    assert after.order("gittins") is order


def test_rank_uses_posterior_mean_unless_the_job_counts_steps() -> None:
    lengths, chance = Lengths(), Random(0)
    for number in range(40):
        lengths.learn(completed(number, chance.lognormvariate(5, 2)))
    counts = training(job(41), *seats("n1", 1))
    report = Progress(step=100, steps=400, steps_per_s=2.0)
    found = lengths.known([job(40), counts], {counts.id: report}, 2000.0)

    expected, counted = found["job-40"], found[counts.id]
    assert expected.mean_s is not None
    assert expected.mean_s > (expected.length_s or 0.0)
    assert counted.mean_s is None


def test_overrunning_jobs_raise_the_expected_length_of_others() -> None:
    means = []
    for ran_s in (0.0, 1e6):
        lengths, chance = Lengths(), Random(0)
        for number in range(40):
            lengths.learn(completed(number, chance.lognormvariate(5, 2)))
        going = [replace(training(job(number), *seats("n1", 1)), started_s=1000.0) for number in range(41, 50)]
        means.append(lengths.known([job(40), *going], {}, 1000.0 + ran_s)["job-40"].mean_s or 0.0)

    assert means[0] < means[1]


@pytest.mark.parametrize(
    ("fields", "left_s"),
    [
        ({"steps": 100}, 40.0),
        ({"fraction": 0.5}, 10.0),
        ({"steps": 100, "fraction": 0.9}, 40.0),
        ({}, None),
        ({"fraction": 0.0}, None),
    ],
)
def test_time_left_comes_from_steps_or_completed_fraction(fields: dict[str, Any], left_s: float | None) -> None:
    found = with_time_left(Progress(step=20, steps_per_s=2.0, **fields))

    assert found.left_s_low == (None if left_s is None else pytest.approx(left_s * 2 - (found.left_s_high or 0)))


def test_epochs_without_steps_give_the_time_left() -> None:
    """4,000 epochs at 10 a second, of which no step is counted: a tenth is done."""
    lengths, running = Lengths(), training(job(1), *seats("n1", 1))
    reports = [
        Progress(epoch=epoch, epochs=4000, fraction=epoch / 4000, at_s=1000.0 + epoch / 10)
        for epoch in (0, 10, 200, 400)
    ]
    first, *_, last = [lengths.paces.report(running.id, one, running) for one in reports]
    found = lengths.known([running], {running.id: last}, 1040.0)[running.id]

    assert (first.left_s_low, first.left_s_high) == (None, None), "nothing is made up before anything grew"
    assert last.left_s_low is not None
    assert last.left_s_high is not None
    assert last.left_s_low < 360.0 < last.left_s_high
    assert found.executed_s == pytest.approx(40.0)
    assert found.length_s == pytest.approx(400.0)


def test_pace_of_a_restarted_job_is_measured_again() -> None:
    paces = Paces()
    reports = [Progress(fraction=part, at_s=at_s) for part, at_s in ((0.0, 0.0), (0.5, 10.0), (0.25, 500.0))]
    assert [paces.report("a", one).left_s_high is None for one in reports] == [True, False, True]
    found = paces.report("a", Progress(fraction=0.5, at_s=600.0))
    assert (found.left_s_low or 0.0) < 200.0 < (found.left_s_high or 0.0)


def test_time_left_follows_a_change_of_pace() -> None:
    """A tenth in 1,000 s, then another learner joins: 1 % in 5 s from then on."""
    paces = Paces()
    for percent in range(11):
        paces.report("a", Progress(fraction=percent / 100, at_s=100.0 * percent))
    faster = [Progress(fraction=percent / 100, at_s=1000.0 + 5.0 * (percent - 10)) for percent in range(11, 26)]
    found = [paces.report("a", one) for one in faster][-1]

    assert (found.left_s_low or 0.0) < 75 * 5.0 < (found.left_s_high or 0.0)


def test_time_left_grows_while_an_epoch_is_overdue() -> None:
    """Epochs of 10 s; the last of ten takes far longer."""
    paces, left = Paces(), []
    reports = [(epoch / 10, 10.0 * epoch) for epoch in range(10)] + [(0.9, at_s) for at_s in (95.0, 180.0, 900.0)]
    for part, at_s in reports:
        found = paces.report("a", Progress(fraction=part, at_s=at_s))
        left.append((found.left_s_high or 0.0) / 1.15)

    assert left[-3] == pytest.approx(5.0), "half an epoch"
    assert 0.0 < left[-2] < left[-1]


def test_time_halted_or_queued_does_not_count_as_run_time() -> None:
    """It trained 100 s, was halted for an hour at a checkpoint, and trained 50 s more."""
    one = replace(job(1), state=State.COMPLETED, started_s=1000.0, seated_s=4700.0, ran_s=100.0, ended_s=4750.0)
    lengths = Lengths()
    for number in (1, 2):
        lengths.learn(replace(one, id=f"job-{number}"))

    assert lengths.known([job(9)], {}, 0.0)["job-9"].length_s == pytest.approx(150.0)


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED, State.HALTED])
def test_runs_that_did_not_complete_teach_no_length(state: State) -> None:
    lengths = Lengths()
    for number in range(4):
        lengths.learn(replace(completed(number, 20.0), state=state))

    assert lengths.known([job(9)], {}, 0.0)["job-9"].length_s is None


def reported(lengths: Lengths, running: Job, *reports: Progress) -> Progress:
    return [lengths.paces.report(running.id, one, running) for one in reports][-1]


def left_s(lengths: Lengths, running: Job, progress: Progress, now_s: float) -> float:
    known = lengths.known([running], {running.id: progress}, now_s)[running.id]
    assert not has_overrun(known)
    assert left_in_plan_s(known) == pytest.approx((known.length_s or 0.0) - known.executed_s)
    return left_in_plan_s(known)


@pytest.mark.parametrize("steps", [None, 100])
def test_evaluation_after_the_last_step_is_no_overrun(steps: int | None) -> None:
    """100 s of training; the evaluation has taken 30 s so far: as much again is assumed, not another 100 s."""
    lengths, running = Lengths(), training(job(1), *seats("n1", 1))
    reports = [Progress(step=n, steps=steps, fraction=n / 100, steps_per_s=1.0, at_s=1000.0 + n) for n in range(101)]
    last = reported(lengths, running, *reports)

    assert left_s(lengths, running, last, 1100.0) == pytest.approx(1.0)
    assert left_s(lengths, running, last, 1130.0) == pytest.approx(29.0)
    assert lengths.paces.as_of(running, last, 1130.0).left_s_high == pytest.approx(29.0 * 1.15)


def test_time_left_grows_while_a_job_is_silent() -> None:
    """95 of 100 s were done when the last report came, a minute ago."""
    lengths, running = Lengths(), training(job(1), *seats("n1", 1))
    reports = [Progress(step=n, steps=100, fraction=n / 100, steps_per_s=1.0, at_s=1000.0 + n) for n in range(96)]
    last = reported(lengths, running, *reports)

    assert left_s(lengths, running, last, 1096.0) == pytest.approx(4.0)
    assert left_s(lengths, running, last, 1155.0) == pytest.approx(4.0 + 59.0)


def test_pace_includes_the_evaluation_after_each_epoch() -> None:
    """Epochs of 100 steps in 100 s, and 100 s of evaluation; while steps are made, they come at one a second."""
    lengths, running = Lengths(), training(job(1), *seats("n1", 1))
    reports = [
        Progress(
            epoch=n // 100, epochs=10, step=n, steps=1000, fraction=n / 1000, steps_per_s=1.0,
            at_s=1000.0 + n + n // 100 * 100,
        )
        for n in range(351)
    ]  # fmt: skip
    last = reported(lengths, running, *reports)

    assert (last.left_s_low or 0.0) < 1350.0 < (last.left_s_high or 0.0)


def test_steps_within_an_epoch_do_not_bend_the_estimate() -> None:
    """The completed fraction grows after each epoch only, the steps within it: 40 epochs of 10 s."""
    lengths, running = Lengths(), training(job(1), *seats("n1", 1))
    reports = [
        Progress(epoch=n // 10, epochs=40, step=n, fraction=n // 10 / 40, steps_per_s=1.0, at_s=1000.0 + n)
        for n in range(30)
    ]
    last = reported(lengths, running, *reports)

    assert (last.left_s_low or 0.0) < 371.0 < (last.left_s_high or 0.0)


def test_time_between_halt_and_resume_is_left_out() -> None:
    lengths, running = Lengths(), training(job(1), *seats("n1", 1))
    before = [Progress(fraction=n / 10, at_s=1000.0 + 10 * n) for n in range(6)]
    resumed = replace(running, seated_s=9000.0)
    reported(lengths, running, *before)

    for n in range(3):
        last = reported(lengths, resumed, Progress(fraction=(5 + n) / 10, at_s=9010.0 + 10 * n))
        assert left_s(lengths, resumed, last, 9010.0 + 10 * n) == pytest.approx(50.0 - 10 * n), n


def test_time_limit_ends_a_longer_job() -> None:
    """1,000 s by its pace, of which 100 are done; its limit is reached in 200 s."""
    lengths, running = Lengths(), training(job(1), *seats("n1", 1))
    limited = replace(running, spec=replace(running.spec, max_time_s=300.0), limit_since_s=1000.0)
    reports = [Progress(step=n, steps=1000, fraction=n / 1000, steps_per_s=1.0, at_s=1000.0 + n) for n in range(101)]
    last = reported(lengths, limited, *reports)
    for number in (2, 3):
        lengths.learn(completed(number, 900.0))
    waits = replace(job(9), spec=limited.spec)

    assert left_s(lengths, limited, last, 1100.0) == pytest.approx(200.0)
    assert left_s(lengths, running, last, 1100.0) == pytest.approx(900.0)
    assert lengths.known([waits], {}, 0.0)[waits.id].length_s == pytest.approx(300.0)
