"""Names that only a branch reads: what no cell binds is a warning where the branch need not run."""

from __future__ import annotations

import pytest

from tests.notebook.cases import codes, job, prelude

PYTHON_2 = "import sys\ntext = 'a'\nif sys.version_info < (3, 0):\n    text = unicode(text)"


@pytest.mark.parametrize(
    "train",
    [
        "try:\n    print(x)\nexcept HTTPError as error:\n    print(error)",
        "import sys\nif sys.version_info < (3, 0):\n    x = unicode(x)\nprint(x)",
        "try:\n    text = unicode\nexcept NameError:\n    text = str\nprint(text(x))",
        "for i in range(3):\n    try:\n        print(x)\n    except (ValueError, HTTPError):\n        pass",
    ],
)
def test_a_name_read_only_by_an_except_clause_or_below_an_if_is_a_warning(train: str) -> None:
    made = job("x = 1", train=train)

    assert codes(made) == ["late_undefined"]
    assert "which is not defined anywhere. If that line runs in the job, it fails." in made.warnings[0].message


@pytest.mark.parametrize("train", ["print(x, losss)", "for i in range(3):\n    if i == x:\n        print(losss)"])
def test_a_misspelt_name_in_the_training_itself_is_still_refused(train: str) -> None:
    assert codes(job("x = 1", train=train)) == ["undefined_name"]


def test_what_an_earlier_cell_did_not_come_to_is_a_warning_also_in_a_loop() -> None:
    assert codes(job(PYTHON_2, train="print(text)")) == ["late_undefined"]
    assert codes(job("x = []\nfor i in [1]:\n    if not i:\n        x.append(unicode(i))")) == ["late_undefined"]


def test_what_a_branch_reads_comes_along_where_a_cell_binds_it() -> None:
    made = job("from urllib.error import HTTPError", train="try:\n    print(1)\nexcept HTTPError:\n    pass")

    assert prelude(made) == ["from urllib.error import HTTPError"]


def test_a_name_that_something_else_surely_reads_is_refused() -> None:
    assert codes(job(train="if flag():\n    print(y)\nprint(y)\ndef flag():\n    return 0")) == ["undefined_name"] * 2


@pytest.mark.parametrize("word", ["break", "continue"])
def test_a_binding_that_a_loop_may_skip_keeps_the_earlier_one(word: str) -> None:
    loop = f"for i in [1, 2]:\n    if flag:\n        {word}\n    x = i"

    assert prelude(job("x = 0", "flag = True", loop))[0] == "x = 0"
