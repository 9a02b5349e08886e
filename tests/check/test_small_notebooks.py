"""Small notebooks, one difficulty each: no needed name is unbound, and the program has what a person would include.

A notebook's metadata has `dlaas`: `cell`, its training cell, and `kept`, the statements that go along ("cell:line").
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_dlaas.suggest.notebook_report import check

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_last_cell_trains_and_captures_the_expected_code(notebook: Path) -> None:
    content = notebook.read_bytes()
    wanted = json.loads(content)["metadata"]["dlaas"]

    report = check(content, notebook.name)

    assert report.error is None
    last = report.cells[-1]
    assert (last.cell, last.is_training) == (wanted["cell"], True)
    assert [f"{line.cell}:{line.line}" for line in last.kept] == wanted["kept"]
    assert (last.unbound, last.errors) == ((), ())
    assert last.type.startswith("%%train ")


def test_there_is_a_notebook_for_each_difficulty_that_was_promised() -> None:
    assert len(NOTEBOOKS) >= 25
