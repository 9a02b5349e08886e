"""Position of the training, from lines and from bars."""

from __future__ import annotations

from jupyter_dlaas.learner.log_capture.bar_position import Bar, Bars
from jupyter_dlaas.learner.log_capture.line_parser import Recogniser
from jupyter_dlaas.learner.log_capture.log_position import Place, Spot


def spots_of(*lines: str, epochs: int | None = None) -> list[Spot]:
    place, reader = Place(epochs), Recogniser()
    return [place.take(found) for line in lines if (found := reader.read(line)) is not None]


def test_result_line_ends_an_epoch_and_header_begins_it() -> None:
    header, results = spots_of("Epoch 3/10", "loss: 0.5")

    assert (header.done, header.fraction) == (2, 0.2)
    assert (results.done, results.fraction, results.step) == (3, 0.3, 3)


def test_epochs_may_count_from_0() -> None:
    spots = spots_of("epoch 0 loss 0.5", "epoch 1 loss 0.4", epochs=2)

    assert [(one.done, one.fraction) for one in spots] == [(1, 0.5), (2, 1.0)]


def test_epochs_counted_from_0_include_the_last_one() -> None:
    spots = spots_of("Epoch 0/1", "train Loss: 0.5", "Epoch 1/1", "train Loss: 0.4")

    assert [(one.done, one.epochs) for one in spots[2:]] == [(1, 2), (2, 2)]


def test_steps_accumulate_over_epochs_with_a_known_length() -> None:
    spots = spots_of("Epoch [1/2], Step [50/100], Loss: 1.0", "Epoch [2/2], Step [50/100], Loss: 1.0")

    assert [(one.step, one.steps, one.fraction) for one in spots] == [(50, 200, 0.25), (150, 200, 0.75)]


def test_steps_accumulate_over_epochs_with_an_unknown_length() -> None:
    spots = spots_of("[1, 2000] loss: 2.1", "[1, 4000] loss: 2.0", "[2, 2000] loss: 1.9")

    assert [one.step for one in spots] == [2000, 4000, 6000]


def test_second_training_starts_again() -> None:
    spots = spots_of("epoch 1 loss 1.0", "epoch 2 loss 0.5", "epoch 1 loss 1.0", epochs=2)

    assert [one.fraction for one in spots] == [0.5, 1.0, 0.5]


def test_outer_bar_counts_epochs_and_longest_inner_bar_steps() -> None:
    bars, outer, train, val = Bars(), Bar(total=10, counts_numbers=True), Bar(total=100), Bar(total=20)
    bars.add(outer)
    outer.done = 2
    bars.add(train)
    train.done = 50
    training = bars.spot()
    bars.remove(train)
    bars.add(val)
    val.done = 10

    assert training == Spot(step=250, done=2, epochs=10, steps=1000, fraction=0.25)
    assert bars.spot() == training


def test_a_lone_bar_over_a_range_counts_epochs() -> None:
    bars, bar = Bars(), Bar(total=20, counts_numbers=True)
    bars.add(bar)
    bar.done = 5

    assert bars.spot() == Spot(step=5, done=5, epochs=20, steps=20, fraction=0.25)


def test_a_lone_bar_over_a_long_range_counts_steps() -> None:
    bars, bar = Bars(), Bar(total=50_000, counts_numbers=True)
    bars.add(bar)
    bar.done = 100

    assert bars.spot() == Spot(step=100, done=0)


def test_bars_per_epoch_are_counted() -> None:
    bars = Bars(Place(epochs=3))
    for _ in range(2):
        bar = Bar(total=100)
        bars.add(bar)
        bars.remove(bar)
    bars.add(Bar(total=100, done=50))

    assert bars.spot() == Spot(step=250, done=2, epochs=3, steps=300, fraction=250 / 300)


def test_the_bar_of_the_validation_does_not_tell() -> None:
    bars = Bars(Place(epochs=3))
    for total in (100, 20, 100):
        bar = Bar(total=total)
        bars.add(bar)
        bars.remove(bar)
    bars.add(Bar(total=20, done=10))

    assert bars.spot() is None


def test_label_of_a_bar_names_its_epoch() -> None:
    bars = Bars()
    bars.add(Bar(total=100, label="Epoch 2/4", done=50))

    assert bars.spot() == Spot(step=150, done=1, epochs=4, steps=400, fraction=0.375)
