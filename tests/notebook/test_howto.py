"""Advice on logging that uses the user's own names."""

from __future__ import annotations

import pytest

from jupyter_dlaas.suggest.logging_hint import how_to_log

LOOP = """
for epoch in range(10):
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
    val_acc = evaluate(model)
"""


def test_the_users_own_loop_and_names_are_shown() -> None:
    assert how_to_log(LOOP) == (
        "no metrics so far. Print them (loss: 0.52), or log them at the end of each iteration of this loop:\n"
        "    run = dlaas.run()\n"
        "    for epoch in range(10):\n"
        "        …\n"
        "        run.log(loss=loss, val_acc=val_acc)"
    )


def test_loop_in_a_function_of_an_earlier_cell_is_found() -> None:
    program = """
def fit(model):
    for step in range(100):
        total_error = train_step(model)
        opt.step()
fit(model)
"""

    assert "    for step in range(100):\n        …\n        run.log(total_error=total_error)" in how_to_log(program)


def test_a_training_loop_comes_before_one_that_only_reads() -> None:
    source = "for f in files:\n    score = read(f)\n" + LOOP

    assert "for epoch in range(10):" in how_to_log(source)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("    losses.append(loss)\n    losses = []\n    loss = step(); loss.backward()", "loss=loss"),
        ("    loss_fn = make()\n    cost = step(); opt.step()", "cost=cost"),
        (
            "    train_loss += step(); n_correct += 1; opt.step(); accuracy = n_correct / n",
            "train_loss=train_loss, accuracy=accuracy",
        ),
        ("    opt.step()", "loss=…"),
    ],
)
def test_metric_names_are_recognised(body: str, names: str) -> None:
    assert f"run.log({names})" in how_to_log(f"while not done:\n{body}\n")


@pytest.mark.parametrize(
    "source",
    [
        "run = dlaas.run()\nfor i in range(3):\n    run.log(loss=i)\n",
        "mine = dlaas.run()\nfor i in range(3):\n    mine.log(loss=i)\n",
        "dlaas.run().log(loss=1)\n",
        "for i in\n",
    ],
)
def test_program_that_logs_gets_no_hint(source: str) -> None:
    assert how_to_log(source) == ""


def test_magics_are_no_hindrance() -> None:
    assert "run.log(loss=loss" in how_to_log("%matplotlib inline\n!ls\n" + LOOP)


def test_without_a_loop_the_plain_two_lines_are_shown() -> None:
    assert how_to_log("model.train_everything()") == (
        "no metrics so far. Print them (loss: 0.52), or log them:\n    run = dlaas.run()\n    run.log(loss=…)"
    )
