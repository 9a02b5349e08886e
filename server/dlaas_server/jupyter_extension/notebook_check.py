"""Check of a notebook before training, for the dialog. Reads text only, without running it."""

from __future__ import annotations

import json

from dlaas_server.rest.routes import CellFinding, CheckedCell, NotebookCheck, NotebookChecked
from jupyter_dlaas.suggest.notebook_report import CellReport, Finding, check

__all__ = ["check_cells"]


def check_cells(request: NotebookCheck) -> NotebookChecked:
    """Return the training cells, their required code, problems, and the magic lines. Cells are counted from 1."""
    cells = [{"cell_type": "code", "source": cell.source} for cell in request.cells]
    report = check(json.dumps({"cells": cells}).encode(), request.path)
    ids = [cell.id for cell in request.cells]
    return NotebookChecked(
        cells=tuple(_checked(cell, ids) for cell in report.cells),
        notes=tuple(_finding(note, ids) for note in report.notes),
        error=report.error,
    )


def _checked(report: CellReport, ids: list[str | None]) -> CheckedCell:
    return CheckedCell(
        cell=report.cell,
        id=ids[report.cell - 1],
        why=report.why,
        kept=len(report.kept),
        kept_cells=tuple(sorted({line.cell for line in report.kept})),
        left_out=len(report.left_out),
        errors=tuple(_finding(error, ids) for error in report.errors),
        warnings=tuple(_finding(warning, ids) for warning in report.warnings),
        type=report.type if report.is_fine else "",
    )


def _finding(finding: Finding, ids: list[str | None]) -> CellFinding:
    known = 1 <= finding.cell <= len(ids)
    return CellFinding(
        code=finding.code,
        cell=finding.cell,
        id=ids[finding.cell - 1] if known else None,
        line=finding.line,
        text=finding.text,
    )
