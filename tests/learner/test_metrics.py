"""Values that are logged: what counts as a number, and what is said of the rest."""

from __future__ import annotations

import math
import re
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jupyter_dlaas.learner.log_capture.line_parser import Recogniser
from jupyter_dlaas.learner.log_capture.recorder import Recorder, Source
from jupyter_dlaas.learner.reporting.metrics import Metrics, number_of
from jupyter_dlaas.learner.training_run.run import Run


class Broken:
    """Raises where its number is asked for."""

    def __float__(self) -> float:
        raise ZeroDivisionError("no batches yet")


NUMBERS: list[tuple[Any, float]] = [
    (True, 1.0),
    (3, 3.0),
    (np.float32(0.5), 0.5),
    (np.array([[0.25]]), 0.25),
    (torch.tensor(2.5, requires_grad=True), 2.5),
    (torch.tensor([2.5]), 2.5),
    (Decimal("0.5"), 0.5),
    (Fraction(1, 4), 0.25),
]
REFUSED: list[tuple[Any, str]] = [
    (
        10**400,
        "a value that is too large for a float (int) is not a number. Log its logarithm: loss=math.log10(value).",
    ),
    (None, "None is not a number. Leave loss out of this call."),
    ("low", "the str 'low' is not a number. Log loss=float(…), or print the text."),
    (b"1", "the bytes b'1' is not a number."),
    (np.array("low"), "the str 'low' is not a number."),
    (1 + 2j, "a complex number is not a number. Log its magnitude: loss=abs(value)."),
    (torch.tensor(1j), "a complex number is not a number."),
    (
        torch.tensor([1.0, 2.0]),
        "a value of type Tensor with 2 elements is not a number. Log one number: loss=value.mean().",
    ),
    (np.zeros((2, 3)), "a value of type ndarray with 6 elements is not a number."),
    (np.zeros(0), "an empty ndarray is not a number. Leave loss out of this call."),
    ([0.5], "a list is not a number. Log one number: loss=sum(value) / len(value)."),
    ({"train": 1}, "a dict is not a number. Log its numbers by name: run.log(**value)."),
    (Broken(), "a value of type Broken is not a number (ZeroDivisionError: no batches yet). Log loss=float(…)."),
    (object(), "a value of type object is not a number. Log loss=float(…)."),
]


@pytest.mark.parametrize(("value", "number"), NUMBERS, ids=lambda one: repr(one)[:30])
def test_whatever_is_one_number_can_be_logged(value: Any, number: float) -> None:
    assert number_of("loss", value) == number


@pytest.mark.parametrize(("value", "said"), REFUSED, ids=lambda one: type(one).__name__)
def test_non_numeric_value_names_its_metric_with_advice(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match="^" + re.escape(f"run.log(loss=…): {said}")):
        Run(None).log(rate=0.1, loss=value)


def test_device_error_stays_the_cause_and_names_the_metric() -> None:
    class Lost:
        shape = ()

        def item(self) -> float:
            raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match=r"^CUDA error") as raised:
        number_of("loss", Lost())

    assert raised.value.__notes__ == ["Raised while run.log(loss=…) read the value."]


@pytest.mark.parametrize("value", [one for one, _ in REFUSED], ids=lambda one: type(one).__name__)
def test_a_value_from_anywhere_else_ends_no_training(value: Any) -> None:
    Recorder(Run(None)).metrics({"loss": value}, Source.WRITER, None, None)


MANY = "9" * 400


@pytest.mark.parametrize("text", [f"accuracy 5/{MANY}", f"epoch: {MANY}.5", f"epoch {MANY}/10 step {MANY}/10 loss 1"])
def test_printed_digits_without_end_are_no_error_and_no_position(text: str) -> None:
    found = Recogniser().read(text)

    assert found is None or (found.epoch is None and found.step is None)
    assert found is None or all(math.isfinite(one) for one in found.values.values())


def test_non_finite_metric_is_reported_once_across_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    path = tmp_path / "metrics.jsonl"
    first = Metrics(path, None)
    first.open()
    for step, loss in enumerate([1.0, math.nan, 2.0, math.nan]):
        first.log({"loss": loss, "lr": 0.1, "val_loss": math.inf}, step=step, epoch=0, source="run")
    first.close()
    second = Metrics(path, 3)
    second.open()
    second.log({"loss": math.nan, "val_loss": math.inf}, step=4, epoch=0, source="run")

    assert [line.partition(" To find")[0] for line in capsys.readouterr().err.splitlines()] == [
        "[val_loss is infinite from the first value (step 0).]",
        "[loss became NaN at step 1.",
    ]


def test_rewound_non_finite_metric_is_reported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    path = tmp_path / "metrics.jsonl"
    for resumed, value in ((None, math.nan), (1, 1.0), (2, math.nan)):
        metrics = Metrics(path, resumed)
        metrics.open()
        metrics.log({"loss": value}, step=2 if resumed is None else resumed + 1, epoch=0, source="run")
        metrics.close()

    assert [line[:20] for line in capsys.readouterr().err.splitlines()] == [
        "[loss is NaN from th",
        "[loss became NaN at ",
    ]


def test_nan_report_names_the_debugging_aid_of_the_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    metrics = Metrics(tmp_path / "metrics.jsonl", None)
    metrics.open()
    check = "torch.autograd.set_detect_anomaly(True)"
    metrics.log({"loss": math.nan, "cost": -math.inf}, step=0, epoch=0, source="run")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    metrics.log({"other": math.nan}, step=1, epoch=0, source="run")

    assert capsys.readouterr().err.splitlines() == [
        f"[loss is NaN from the first value (step 0). To find the operation that produced it: {check}]",
        "[cost is infinite from the first value (step 0).]",
        "[other is NaN from the first value (step 1).]",
    ]
