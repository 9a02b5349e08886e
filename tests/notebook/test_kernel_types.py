"""A variable of the kernel is immutable only from the statement on that gave it a value of this type."""

from __future__ import annotations

import ast

import pytest

from jupyter_dlaas.analysis.kernel_types import ImmutableNames
from jupyter_dlaas.analysis.syntax.names import flow_of

UNKNOWN = "show(x)"


def immutable_at(*statements: str) -> list[bool]:
    """Return whether x, a number in the end, is immutable while each of the statements runs."""
    nodes = [ast.parse(text).body[0] for text in statements]
    names = ImmutableNames(["x"], nodes)
    return ["x" in names.advance(flow_of(node).reads) for node in nodes]


@pytest.mark.parametrize(
    "first", ["x = [3, 1]", "x = make()", "x, y = [1], 2", "for x in rows:\n    pass", "x = y", "x = y > 0"]
)
def test_a_former_value_may_have_been_changed(first: str) -> None:
    assert immutable_at(first, UNKNOWN, "x = 3", UNKNOWN) == [False, False, True, True]


@pytest.mark.parametrize("first", ["x = 2", "x = 'a' * 3", "x = len(y)", "x = y.shape[0]", "x = f'{y}'", "import x"])
def test_a_former_number_or_string_is_immutable_as_well(first: str) -> None:
    assert immutable_at(first, UNKNOWN, "x = make()", UNKNOWN) == [True, True, True, True]


@pytest.mark.parametrize("statement", ["x = make()", "for x in rows:\n    show(x)", "x = y.shape", "def x(): ..."])
def test_a_statement_that_ran_again_gave_the_same_type(statement: str) -> None:
    assert immutable_at(statement, UNKNOWN, statement, UNKNOWN) == [True] * 4


def test_loops_over_other_values_may_have_bound_another_type() -> None:
    loops = "for x in [first, second]:\n    train(x)", "for x in range(3):\n    show(x)"
    assert immutable_at(*loops, UNKNOWN) == [False, True, True]
    assert immutable_at("for x in make():\n    show(x)", "x = make()") == [False, True]


@pytest.mark.parametrize("first", ["x = df.join(other)", "x = s.str.lower()", "x = np.floor(y)"])
def test_methods_of_strings_may_be_those_of_frames(first: str) -> None:
    assert immutable_at(first, UNKNOWN, "x = 3") == [False, False, True]


def test_a_call_with_other_options_may_have_given_another_type() -> None:
    assert immutable_at("x = y.mean(axis=0)", UNKNOWN, "x = y.mean()", UNKNOWN) == [False, False, True, True]


def test_last_binding_reads_the_former_value() -> None:
    assert immutable_at("x = [3, 1]", "x = first(x)", UNKNOWN) == [False, False, True]


def test_augmented_assignments_keep_the_type() -> None:
    assert immutable_at("x = 0", "x += make()", UNKNOWN) == [True, True, True]


def test_a_name_that_functions_bind_may_hold_anything_before() -> None:
    assert immutable_at("x = 0", "def reset():\n    global x\n    x = []", UNKNOWN) == [False, False, False]
