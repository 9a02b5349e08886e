"""Lines that raised an error: what they may have changed before is the kernel's value, or is reported."""

from __future__ import annotations

import pytest

from jupyter_dlaas.analysis.model import Capture, ExecutedCell, TrainingCell
from jupyter_dlaas.capture.capture import capture
from tests.notebook.cases import codes, facts, job, prelude

SETUP = "log = []\ndef work(n):\n    log.append(n)\n    if n > 1:\n        raise ValueError"


def test_change_made_before_the_error_is_reported() -> None:
    made = job(SETUP, "work(1)", "work(2)", train="print(log)", raised={3: 1})

    assert codes(made) == ["raised_cell"]
    (warning,) = made.warnings
    assert "cell [3] raised an error in line 1, which may have changed `log`" in warning.message
    assert "--push log" in warning.message


@pytest.mark.parametrize("train", ["print(1)", "log = []\nprint(log)"])
def test_change_that_is_not_needed_is_not_reported(train: str) -> None:
    assert codes(job(SETUP, "work(2)", train=train, raised={2: 1})) == []


def test_line_that_changes_nothing_is_not_reported() -> None:
    assert codes(job(SETUP, "print(log[5])", train="print(log)", raised={2: 1})) == []


def test_statements_on_the_line_of_the_error_give_kernel_values() -> None:
    made = job("x = 1", "x = x + 1; y = 1 / 0", train="print(x)", facts=facts(x=2), raised={2: 1})

    assert [one.source for one in made.literals] == ["2"]


@pytest.mark.parametrize("line", ["del os.environ['A']", "del sys.modules['helpers']", "del sys.path[0]"])
def test_deleted_settings_of_the_process_are_deleted_in_the_job(line: str) -> None:
    assert line in prelude(job("import os, sys", line, train="x = 1"))


def raised_in(line: str, part: str, train: str = "print(items, other)") -> Capture:
    """Capture after a line that raised an error in a part of it."""
    setup = ExecutedCell(count=1, source="items, other = [], []\ndef note(x): items.append(x); return x")
    failed = ExecutedCell(count=2, source=line, raised=True, raised_line=1, raised_in=part)
    return capture([setup, failed], TrainingCell(count=3, source=train), None)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("items.append(int('x'))", "int('x')"),
        ("items[0] = other[5]", "other[5]"),
        ("items.extend([1, 1 / 0])", "1 / 0"),
        ("items += [other[1]]", "other[1]"),
    ],
)
def test_call_whose_argument_raised_changed_nothing(line: str, part: str) -> None:
    assert codes(raised_in(line, part)) == []


def test_parts_before_the_error_are_named() -> None:
    made = raised_in("other.append((note(1), other[7]))", "other[7]")

    (warning,) = made.warnings
    assert "raised an error in line 1, in `other[7]`, which may have changed `items` before" in warning.message
    assert "the job omits all of the line. To send the current value: --push items." in warning.message


@pytest.mark.parametrize("line", ["note(1) or int('x')", "x = [note(n) or int('x') for n in 'ab']"])
def test_parts_that_ran_conditionally_are_not_ruled_out(line: str) -> None:
    assert codes(raised_in(line, "int('x')")) == ["raised_cell"]
