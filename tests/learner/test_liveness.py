"""Liveness of names: those that a checkpoint at the head of a loop may leave out."""

from __future__ import annotations

from textwrap import dedent

import pytest

from jupyter_dlaas.learner.checkpoint.liveness import dead_names


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("out = model(x); loss = out.sum(); total += loss", {"x", "out", "loss"}),
        ("print(loss); loss = f(x)", {"x"}),
        ("if x: loss = f(x)", {"x"}),
        ("if x: loss = f(x)\nelse: loss = 0", {"x", "loss"}),
        ("for a in x: b = a\nlast = b", {"x", "last"}),
        ("if x: break\nloss = f(x)", {"x"}),
        ("loss = f(x)\nif loss: break", {"x", "loss"}),
        ("if x: continue\nwith open(x) as file: text = file.read()", {"x", "file", "text"}),
        ("seen = x; f(lambda: seen)", {"x"}),
        ("x.y = 1; d[x] = 2; n: int = 3", {"x", "n"}),
        ("loss = f(x); exec('loss')", set()),
    ],
)
def test_names_bound_before_read_in_an_iteration_are_dead(body: str, expected: set[str]) -> None:
    source = "for x in run.batches(data):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    assert dead_names(source, 1) == expected


def test_names_read_by_a_function_are_live() -> None:
    source = dedent(
        """
        def report():
            x = 1
            return x + loss
        for x in run.batches(data):
            loss = out = f(x)
            report()
        """
    )
    assert dead_names(source, 5) == {"x", "out"}


def test_innermost_loop_of_the_line_counts() -> None:
    source = "for epoch in run.epochs(3):\n    mean = 0\n    for x in run.batches(data):\n        y = x\n"
    assert dead_names(source, 1) == {"epoch", "mean", "x", "y"} - {"x", "y"}
    assert dead_names(source, 3) == {"x", "y"}
    assert dead_names(source, 2) == frozenset()
    assert dead_names("for x in (", 1) == frozenset()
