"""The value of a cell's last expression, shown in a job as in a notebook."""

from __future__ import annotations

import ast
import builtins
import io
import tokenize
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from jupyter_dlaas.failures.cell_map import CellMap

__all__ = ["SHOW", "with_last_values"]

SHOW: Final = "__dlaas_show__"
"""The name of a builtin, in jobs made of cells, that shows a value."""
_COROUTINE: Final = "_training_cell"
"""The function in `train.py` that holds a training cell with a top-level `await`."""
_PASSED_OVER: Final = (tokenize.COMMENT, tokenize.NEWLINE, tokenize.NL, tokenize.DEDENT, tokenize.INDENT)


def with_last_values(tree: ast.Module, text: str, script: Path, cells: Mapping[str, str]) -> ast.Module:
    """Make the last statement of each cell of the main part show its value, if it is an expression without `;`.

    `tree` is the main part: a single `if __name__ == "__main__":`. Line numbers do not change.
    """
    entry = tree.body[-1] if tree.body else None
    if not isinstance(entry, ast.If) or not hasattr(builtins, SHOW):
        return tree
    cell_of = CellMap(script, cells).find
    body: list[ast.stmt] = []
    for node, following in pairwise([*entry.body, None]):
        assert node is not None
        if isinstance(node, ast.AsyncFunctionDef) and node.name == _COROUTINE:
            _returning(node, text)
        cell, other = cell_of(node.lineno), cell_of(following.lineno) if following is not None else None
        is_last = following is None or (cell is not None and other is not None and cell.label != other.label)
        body.append(_showing(node) if is_last and isinstance(node, ast.Expr) and not _is_quiet(node, text) else node)
    entry.body = body
    return tree


def _returning(node: ast.AsyncFunctionDef, text: str) -> None:
    """Make a cell with a top-level `await`, which runs as a coroutine, return its last value."""
    last = node.body[-1]
    if isinstance(last, ast.Expr) and not _is_quiet(last, text):
        node.body[-1] = ast.copy_location(ast.Return(value=last.value), last)


def _showing(node: ast.Expr) -> ast.Expr:
    if isinstance(node.value, ast.Await | ast.Yield | ast.YieldFrom):
        return node
    call = ast.Call(func=ast.Name(id=SHOW, ctx=ast.Load()), args=[node.value], keywords=[])
    ast.copy_location(call.func, node.value)
    return ast.copy_location(ast.Expr(value=ast.copy_location(call, node.value)), node)


def _is_quiet(node: ast.Expr, text: str) -> bool:
    """Return whether a semicolon follows, which suppresses the value in a notebook."""
    lines = text.splitlines()[(node.end_lineno or node.lineno) - 1 :][:1]
    rest = "".join(lines).encode()[node.end_col_offset or 0 :].decode(errors="replace")
    try:
        tokens = [one for one in tokenize.generate_tokens(io.StringIO(rest).readline) if one.type not in _PASSED_OVER]
    except (tokenize.TokenError, IndentationError):
        return False
    return bool(tokens) and tokens[0].string == ";"
