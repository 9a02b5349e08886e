"""Lines that raised an error: what they may have changed before is the kernel's value, or is reported."""

from __future__ import annotations

import pytest

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
