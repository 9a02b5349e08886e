"""Shapes that public notebooks have and that went wrong once."""

from __future__ import annotations

from tests.notebook.cases import job, prelude


def test_a_name_bound_anew_by_the_function_that_had_it_is_no_trouble() -> None:
    made = job("def x(a):\n    return a", "x = x([x, 1])", train="print(x)")

    assert prelude(made) == ["def x(a):", "    return a", "x = x([x, 1])"]
