"""Check for losses that sum over samples if several learners share a batch, before the job starts. Pure."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jupyter_dlaas.analysis.call_graph import Call, Notebook
from jupyter_dlaas.analysis.loss_reduction import Kind, kind_of
from jupyter_dlaas.analysis.model import ExecutedCell, Problem, TrainingCell

__all__ = ["check_losses"]


def check_losses(cells: Sequence[ExecutedCell], training: TrainingCell, learners_max: int) -> tuple[Problem, ...]:
    """Warn of a summed loss that `run.prepare` does not declare: the gradients of learners are averaged."""
    if learners_max < 2 or "prepare" not in training.source + "".join(cell.source for cell in cells):
        return ()
    notebook = Notebook.of(cells, training)
    if notebook is None:
        return ()
    prepared = [way for way in notebook.calls(frozenset({"prepare"})) if _is_run(way, notebook)]
    if not prepared or any(keyword.arg == "loss" for way in prepared for keyword in way[-1].call.keywords):
        return ()
    ends = notebook.calls(frozenset({"backward"}))
    kind = kind_of(notebook, ends)
    if kind is Kind.SUM:
        text = (
            "the loss sums over samples, but the learners' gradients are averaged: with n learners, steps are n times "
            'smaller. Use run.prepare(…, loss="sum").'
        )
    elif kind is Kind.MIXED:
        text = (
            "the loss adds a sum over samples to a mean. Averaged over learners, the sum weighs less than with one. "
            'Divide it by the number of samples, or make all parts sums and use run.prepare(…, loss="sum").'
        )
    else:
        return ()
    frame = prepared[0][-1]
    sheet = frame.scope.sheet
    at = frame.call.lineno
    line = (sheet.clean.lines[at - 1] if at <= len(sheet.clean.lines) else at) + sheet.first_line - 1
    return (Problem("loss_is_sum", f"{sheet.label}, line {line}: {text}", sheet.label, line),)


def _is_run(way: Call, notebook: Notebook) -> bool:
    """Return whether a call is `run.prepare` of `run = dlaas.run()`, not for example `accelerator.prepare`."""
    function = way[-1].call.func
    if not isinstance(function, ast.Attribute):
        return False
    made = notebook.value_of(ast.unparse(function.value), way[-1].scope, way[:-1])
    return ast.unparse(made if made is not None else function.value) in ("dlaas.run()", "jupyter_dlaas.run()", "run")
