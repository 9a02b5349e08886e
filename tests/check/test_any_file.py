"""Whatever a file holds, `check` says something readable and never raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.cli.check import report_text
from jupyter_dlaas.suggest.notebook_report import Report, check

TRAINING = "model.fit(x)"


def notebook(*sources: object, **document: object) -> bytes:
    cells = [{"cell_type": "code", "source": source} for source in sources]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": cells, **document}).encode()


def is_readable(report: Report) -> bool:
    """Text that a terminal shows as it is."""
    text = report_text(report)
    said = [report.error or "", *(note.text for note in report.notes)]
    said += [one.text for cell in report.cells for one in (*cell.errors, *cell.warnings)]
    return bool(text.strip()) and all(line.isprintable() for one in said for line in one.split("\n"))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "cells",
                    "cell_type",
                    "source",
                    "input",
                    "metadata",
                    "kernelspec",
                    "language",
                    "worksheets",
                    "language_info",
                    "name",
                    "nbformat",
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)
PIECES = [
    "x = 1",
    "x",
    "for i in x:",
    "    ",
    "\n",
    "\n    pass",
    "def f(a):",
    "return",
    "global x",
    "nonlocal y",
    "del x",
    "%time ",
    "%%time\n",
    "%%capture out\n",
    "%%train\n",
    "%%train a -o x\n",
    "!ls",
    "?x",
    "x?",
    "%run a.py",
    "%pylab",
    "model.fit(x)",
    "loss.backward()",
    "\\",
    "'''",
    '"',
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ":=",
    "lambda: x",
    "async ",
    "await f()",
    "class A(B):",
    "@f\n",
    "match x:",
    "\n  case [a, *b]:",
    "import a.b as c",
    "from a import *",
    "from . import a",
    "from __future__ import annotations",
    "yield x",
    "\ud800",
    "\x00",
    "\f",
    "\r",
    "\t",
    "\ufeff",
    ">>> ",
    "In [1]: ",
    "print x",
    "exec 'a'",
    "x = !ls",
    "x = %who",
    "except* A:",
    "try:",
    "*a, b = x",
    "f'{x!r:{y}}'",
    "f(**x, *y)",
    "type X = int",
    "with a as (b, c):",
    "__class__",
    "super().a()",
    "0777",
    "1_0",
    "\u2028",
    "é",
    "x[0].y += 1",
    "_ = _1",
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=14).map("".join)


@given(st.binary(max_size=60))
def test_any_bytes_get_a_readable_line(content: bytes) -> None:
    assert is_readable(check(content, "a.ipynb"))


@given(anything)
def test_any_json_gets_a_readable_line(document: object) -> None:
    assert is_readable(check(json.dumps(document).encode(), "a.ipynb"))


@given(anything, anything)
def test_any_cells_get_a_readable_line(cells: object, metadata: object) -> None:
    assert is_readable(check(json.dumps({"cells": cells, "metadata": metadata}).encode(), "a.ipynb"))


@given(st.lists(texts, min_size=1, max_size=5), st.none() | st.integers(1, 5))
def test_any_text_in_a_cell_gets_a_readable_line(sources: list[str], cell: int | None) -> None:
    assert is_readable(check(notebook(*sources), "a.ipynb", cell))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"{", "not a notebook: invalid JSON at line 1"),
        (b"[]", "JSON, but without cells"),
        (b'{"cells": []}', "the notebook has no code cells"),
        (b"[" * 100_000, "nested too deeply"),
        (
            notebook("x", metadata={"kernelspec": {"language": "R"}}),
            "the kernel's language is R; only Python notebooks are supported",
        ),
        (notebook("x = " + "-" * 50_000 + "1\n" + TRAINING), ""),
        (notebook("x = " + "(" * 5_000 + ")" * 5_000 + "\n" + TRAINING), ""),
        (notebook("x = a" + ".a" * 3_000 + "\n" + TRAINING), ""),
        (notebook("x = 1" + " + 1" * 900 + "\n" + TRAINING), ""),
    ],
    ids=["empty", "half", "list", "no cells", "deep json", "R", "minuses", "brackets", "attributes", "sum"],
)
def test_a_broken_notebook_gets_a_sentence(content: bytes, says: str) -> None:
    report = check(content, "a.ipynb")
    assert is_readable(report)
    if says:
        assert says in (report.error or "")


def one_cell(report: Report, cell: int) -> Any:
    return next(one for one in report.cells if one.cell == cell)


def test_python_2_print_is_reported_with_line_and_advice() -> None:
    report = check(notebook("x = 1", "y = 2\nprint 'loss', y\nmodel.fit(x)"), "a.ipynb")
    (said,) = one_cell(report, 2).errors
    assert said.text.startswith("cell [2], line 2: Missing parentheses in call to 'print'")
    assert not report.is_fine


def test_unparsable_cell_without_training_is_a_note() -> None:
    report = check(notebook("print 'a'", "pip install torch", "x = 1", TRAINING.replace("model", "x")), "a.ipynb")
    assert [(note.cell, note.code) for note in report.notes] == [(1, "unreadable_cell")]
    assert report.is_fine


def test_an_old_notebook_is_read_with_a_note() -> None:
    cells = [{"cell_type": "code", "input": ["model = 1\n", "x = 2"]}, {"cell_type": "code", "input": TRAINING}]
    report = check(json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}).encode(), "a.ipynb")
    assert report.notes[0].code == "old_format"
    assert [line.line for line in one_cell(report, 2).kept] == [1, 2]


def test_line_ends_and_a_byte_order_mark_are_no_difference() -> None:
    plain = check(notebook("model = 1\nx = 2", TRAINING), "a.ipynb")
    odd = check(b"\xef\xbb\xbf" + notebook("model = 1\r\nx = 2\r\n", TRAINING + "\r\n"), "a.ipynb")
    assert odd == plain


def test_half_a_surrogate_pair_in_a_string_is_read() -> None:
    assert check(notebook("model = 1\nx = '\ud83d'", TRAINING), "a.ipynb").is_fine
