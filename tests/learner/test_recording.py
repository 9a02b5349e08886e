"""Recording of curves: precedence of sources, names of one curve, the x axis, bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jupyter_dlaas.learner.log_capture.recorder import NAMES_MOST, Recorder, Source, key_of
from jupyter_dlaas.learner.training_run.run import Run


class Seen(Run):
    """A run that keeps what was recorded, and what was shown."""

    def __init__(self) -> None:
        super().__init__(None)
        self.records: list[tuple[dict[str, float], int, int, str]] = []
        self.shown: list[tuple[Any, ...]] = []

    def record(self, found: dict[str, float], *, step: int, epoch: int, source: str, at_s: float | None = None) -> None:
        self.records.append((found, step, epoch, str(source)))

    def show(self, *said: Any) -> None:
        self.shown.append(said)


@pytest.fixture
def run() -> Seen:
    return Seen()


def say(recorder: Recorder, source: Source, step: int | None = None, **values: Any) -> None:
    recorder.metrics(values, source, step, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loss", "Train Loss"),
        ("Loss/train", "train_loss"),
        ("val_acc", "Validation Accuracy"),
        ("valLoss", "val loss"),
        ("lr", "learning rate"),
        ("epoch_loss", "Average loss"),
    ],
)
def test_two_names_of_one_curve_are_known_as_such(one: str, other: str) -> None:
    assert key_of(one) == key_of(other)


@pytest.mark.parametrize(("one", "other"), [("loss", "val_loss"), ("top1", "top5"), ("loss_D", "loss_G")])
def test_two_curves_are_kept_apart(one: str, other: str) -> None:
    assert key_of(one) != key_of(other)


@pytest.mark.parametrize("lower", [Source.CALLBACK, Source.WRITER, Source.LOG])
def test_higher_source_of_a_curve_wins(run: Seen, lower: Source) -> None:
    recorder = Recorder(run)
    say(recorder, Source.ASKED, loss=1.0)
    say(recorder, lower, train_loss=1.0, val_loss=2.0)

    assert [one[0] for one in run.records] == [{"loss": 1.0}, {"val_loss": 2.0}]


def test_a_program_that_logs_is_not_read_from_its_prints(run: Seen) -> None:
    recorder = Recorder(run)
    run.log(loss=1)
    run.records.clear()
    say(recorder, Source.LOG, accuracy=0.5)
    say(recorder, Source.CALLBACK, loss=1.0, accuracy=0.5)

    assert [one[0] for one in run.records] == [{"accuracy": 0.5}]


def test_prints_of_a_logging_program_are_not_parsed(run: Seen) -> None:
    recorder = Recorder(run, does_log=True)
    say(recorder, Source.LOG, accuracy=0.5)

    assert run.records == []


def test_framework_metrics_exclude_lower_sources(run: Seen) -> None:
    recorder = Recorder(run)
    recorder.leaders.append(Source.CALLBACK.rank)
    say(recorder, Source.LOG, val_loss=1.0)
    say(recorder, Source.WRITER, a=1.0)
    say(recorder, Source.ASKED, b=2.0)
    say(recorder, Source.CALLBACK, loss=3.0)
    recorder.leaders.clear()
    say(recorder, Source.LOG, test_accuracy=0.9)

    assert [one[0] for one in run.records] == [{"b": 2.0}, {"loss": 3.0}, {"test_accuracy": 0.9}]


def test_loop_steps_do_not_replace_framework_progress(run: Seen) -> None:
    recorder = Recorder(run)
    recorder.progress(Source.LOOP, None, None, 3, None, None)
    recorder.was_led = True
    recorder.progress(Source.LOOP, None, None, 8, None, None)
    say(recorder, Source.LOOP, loss=1.0)

    assert [one[2] for one in run.shown] == [3]
    assert run.records == []


def test_without_a_step_the_points_of_a_curve_are_counted(run: Seen) -> None:
    recorder = Recorder(run)
    for value in (3.0, 2.0, 1.0):
        say(recorder, Source.LOG, loss=value)

    assert [one[1] for one in run.records] == [0, 1, 2]


def test_records_without_a_step_use_the_progress(run: Seen) -> None:
    recorder = Recorder(run)
    recorder.progress(Source.LOG, 2, 10, 75, 300, None)
    say(recorder, Source.LOG, loss=1.0)

    assert run.records == [({"loss": 1.0}, 75, 2, "log")]


def test_second_training_continues_the_step_count(run: Seen) -> None:
    recorder = Recorder(run)
    for step in (0, 1, 2, 0, 1, 2):
        say(recorder, Source.LOG, step, loss=1.0)

    assert [one[1] for one in run.records] == [0, 1, 2, 2, 3, 4]


def test_names_are_bounded_but_for_those_that_were_asked_for(run: Seen) -> None:
    recorder = Recorder(run)
    for number in range(NAMES_MOST + 10):
        recorder.metrics({f"loss_{number}": 1.0}, Source.LOG, None, None)
    say(recorder, Source.ASKED, mine=1.0)

    assert len(run.records) == NAMES_MOST + 1
    assert run.records[-1][0] == {"mine": 1.0}


def test_many_points_are_thinned_and_the_last_is_kept(run: Seen) -> None:
    recorder = Recorder(run)
    for number in range(20_000):
        say(recorder, Source.LOG, loss=float(number))
    recorder.end()

    assert 2000 <= len(run.records) < 10_000
    assert run.records[-1][:2] == ({"loss": 19_999.0}, 19_999)


def test_non_numeric_values_are_skipped_and_nan_kept(run: Seen) -> None:
    say(Recorder(run), Source.CALLBACK, loss="low", lr=[1, 2], accuracy=math.nan)

    ((found, *_),) = run.records
    assert list(found) == ["accuracy"]
    assert math.isnan(found["accuracy"])


def test_lower_source_does_not_replace_progress(run: Seen) -> None:
    recorder = Recorder(run)
    recorder.progress(Source.LOG, 0, 5, None, None, None)
    recorder.progress(Source.CALLBACK, 1, 10, 20, 200, None)
    recorder.progress(Source.LOG, 4, 5, None, None, None)

    assert run.shown == [(0, 5, None, None, None), (1, 10, 20, 200, None)]


def test_loop_keeps_its_loss_beside_rates_and_scores(run: Seen) -> None:
    recorder = Recorder(run)
    beside = {"lr": 0.1, "Learning Rate": 0.1, "test_accuracy": 0.5, "val/f1": 0.5}
    for name, value in beside.items():
        recorder.metrics({name: value}, Source.LOG, None, None)
    say(recorder, Source.LOOP, cost=3.0)
    say(recorder, Source.LOG, error_rate=0.4)
    say(recorder, Source.LOOP, cost=2.0)

    assert [one[0] for one in run.records] == [
        *({name: one} for name, one in beside.items()),
        {"cost": 3.0},
        {"error_rate": 0.4},
    ]
