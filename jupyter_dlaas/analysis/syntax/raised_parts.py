"""The part of a statement that ran before an error: in `items.append(int("x"))`, `items` is unchanged. Pure."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

__all__ = ["part_that_ran"]

_SIMPLE: Final = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
_IN_ORDER: Final = (ast.Call, ast.keyword, ast.Starred, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Tuple)
_DISPLAYS: Final = (ast.List, ast.Set, ast.Slice, ast.FormattedValue, ast.JoinedStr)
"""Expressions that evaluate all of their parts once, in the order of the text."""


def part_that_ran(node: ast.stmt | None, raised_in: str) -> ast.stmt | None:
    """Return what a statement evaluated up to the expression that raised an error, as a statement.

    None if the expression is the whole statement or is not found, or if what encloses it may evaluate its parts
    conditionally or repeatedly.
    """
    if not isinstance(node, _SIMPLE) or node.value is None:
        return None
    try:
        wanted = ast.dump(ast.parse(raised_in.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = _evaluated(node.value, wanted)
    if found is None or (isinstance(node, ast.Expr) and found == (node.value,)):
        return None
    return ast.copy_location(ast.Expr(ast.Tuple([*found], ast.Load())), node)


def _evaluated(node: ast.AST, wanted: str) -> Sequence[ast.expr] | None:
    """Return the expressions that were evaluated, of which the last one raised the error."""
    if isinstance(node, ast.expr) and ast.dump(node) == wanted:
        return (node,)
    if not isinstance(node, (*_IN_ORDER, *_DISPLAYS)):
        return None
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr | ast.keyword)]
    for number, part in enumerate(parts):
        inner = _evaluated(part, wanted)
        if inner is not None:
            before = [one.value if isinstance(one, ast.keyword | ast.Starred) else one for one in parts[:number]]
            return (*before, *inner)
    return None
