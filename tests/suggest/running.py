"""Runs the cells of a little notebook, as they are or rewritten, as IPython would without its magics."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import jupyter_dlaas
from jupyter_dlaas.analysis.cells import clean_cell
from jupyter_dlaas.analysis.model import ExecutedCell, TrainingCell
from jupyter_dlaas.suggest.rewrite import Suggestion, suggest


def suggestion_for(*cells: str) -> Suggestion:
    """Run all cells; the last one trains."""
    before = [ExecutedCell(count=n, source=source) for n, source in enumerate(cells[:-1], 1)]
    return suggest(before, TrainingCell(count=len(cells), source=cells[-1], first_line=1))


def rewritten(*cells: str) -> list[str]:
    """All cells as they are with the suggestion in place. Fails where there is none."""
    found = suggestion_for(*cells)
    assert found.cells, found.why
    new = {cell.count: cell.after for cell in found.cells}
    return [new.get(number, source) for number, source in enumerate(cells, 1)]


def executed(cells: Sequence[str], **names: Any) -> dict[str, Any]:
    """Return the notebook's names after all cells ran, outside of any job."""
    space: dict[str, Any] = {"__name__": "__main__", "dlaas": jupyter_dlaas, **names}
    for number, source in enumerate(cells, 1):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(clean_cell(source).source, f"cell [{number}]", "exec"), space)
    return space
