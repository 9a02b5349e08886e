"""Hint about logging for a training loop without any metrics, with the loop's own names. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from jupyter_dlaas.analysis.cells import clean_cell

__all__ = ["CODE", "how_to_log"]

CODE: Final = "how_to_log"
"""Code of the note, which the server shows only while a job trains without any metrics."""

_WATCHED: Final = re.compile(
    r"(?:^|_)(?:loss|losses|acc|accuracy|error|err|mse|mae|rmse|f1|auc|iou|dice|reward|score|cost|perplexity|ppl|elbo|nll)"
    r"(?:_|\d|$)|loss$|acc$",
    re.IGNORECASE,
)
_LOSS: Final = re.compile(r"loss|cost|error|nll|mse|elbo", re.IGNORECASE)
_NAMES_MAX: Final = 3
_TRAINS: Final = frozenset({"backward", "step", "apply_gradients", "partial_fit", "train_on_batch", "update"})
_LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)

_Loop = ast.For | ast.While | ast.AsyncFor


def how_to_log(source: str) -> str:
    """Return a sentence and the lines to add to a program, or "" if it already logs."""
    tree = _parsed(source)
    if tree is None or not tree.body or _logs(tree):
        return ""
    loop = next(_training_loops(tree), None)
    text = "no metrics so far. Print them (loss: 0.52), or log them"
    if loop is None:
        return f"{text}:\n    run = dlaas.run()\n    run.log(loss=…)"
    head = ast.unparse(loop).partition("\n")[0]
    names = _names(loop)
    given = ", ".join(f"{name}={name}" for name in names) or "loss=…"
    lines = ["run = dlaas.run()", head, "    …", f"    run.log({given})"]
    return "\n    ".join([f"{text} at the end of each iteration of this loop:", *lines])


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(clean_cell(source).source)
    except (SyntaxError, ValueError):
        return None


def _logs(tree: ast.AST) -> bool:
    """Return whether a program calls `run.log(…)`, whatever the name of the run."""
    runs = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_run(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "log"
        and (_is_run(node.func.value) or (isinstance(node.func.value, ast.Name) and node.func.value.id in runs))
        for node in ast.walk(tree)
    )


def _is_run(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    return (isinstance(func, ast.Attribute) and func.attr == "run" and ast.unparse(func.value) == "dlaas") or (
        isinstance(func, ast.Name) and func.id == "run"
    )


def _training_loops(tree: ast.AST) -> Iterator[_Loop]:
    """Return the outermost training loops, those with a backward pass first, then those that bind a metric."""
    loops = list(_outermost(tree))
    yield from (loop for loop in loops if _TRAINS & {call.attr for call in _methods(loop)} and _names(loop))
    yield from (loop for loop in loops if _TRAINS & {call.attr for call in _methods(loop)})
    yield from (loop for loop in loops if _names(loop))


def _outermost(node: ast.AST) -> Iterator[_Loop]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _LOOPS):
            yield child
        else:
            yield from _outermost(child)


def _methods(loop: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func


def _names(loop: ast.AST) -> list[str]:
    """Return the names bound by the loop that look like metrics: a loss first, sums before single steps."""
    found: dict[str, bool] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and _WATCHED.search(node.id):
            found.setdefault(node.id, False)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in found:
            found[node.target.id] = True
    lists = {
        ast.unparse(method.value) for method in _methods(loop) if method.attr in ("append", "extend", "update", "add")
    }
    kept = [name for name in found if name not in lists and not name.endswith(("_fn", "_func", "_function"))]
    kept.sort(key=lambda name: (not _LOSS.search(name), name.lower() != "loss"))
    return kept[:_NAMES_MAX]
