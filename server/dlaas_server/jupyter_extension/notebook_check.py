"""Check of a notebook before training, for the dialog. Reads text only, without running it."""

from __future__ import annotations

import json

from dlaas_server.rest.routes import CheckedCell, NotebookCheck, NotebookChecked, SaidOfCell
from jupyter_dlaas.suggest.notebook_report import CellReport, Finding, check

__all__ = ["look"]


def look(asked: NotebookCheck) -> NotebookChecked:
    """Return the training cells, their required code, problems, and the magic lines. Cells are counted from 1."""
    cells = [{"cell_type": "code", "source": cell.source} for cell in asked.cells]
    report = check(json.dumps({"cells": cells}).encode(), asked.path)
    ids = [cell.id for cell in asked.cells]
    return NotebookChecked(
        cells=tuple(_checked(one, ids) for one in report.cells),
        notes=tuple(_said(one, ids) for one in report.notes),
        error=report.error,
    )


def _checked(one: CellReport, ids: list[str | None]) -> CheckedCell:
    return CheckedCell(
        cell=one.cell,
        id=ids[one.cell - 1],
        why=one.why,
        kept=len(one.kept),
        kept_cells=tuple(sorted({line.cell for line in one.kept})),
        left_out=len(one.left_out),
        errors=tuple(_said(said, ids) for said in one.errors),
        warnings=tuple(_said(said, ids) for said in one.warnings),
        type=one.type if one.is_fine else "",
    )


def _said(said: Finding, ids: list[str | None]) -> SaidOfCell:
    known = 1 <= said.cell <= len(ids)
    return SaidOfCell(
        code=said.code, cell=said.cell, id=ids[said.cell - 1] if known else None, line=said.line, text=said.text
    )
