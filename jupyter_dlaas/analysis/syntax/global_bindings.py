"""Globals that an own function binds and the statement reads after the call: `train_step(); print(last_loss)`. Pure."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from jupyter_dlaas.analysis.syntax.flow import Flow
from jupyter_dlaas.analysis.syntax.names import flow_of, walk

__all__ = ["bound_by_calls", "without_own_globals"]


def without_own_globals(node: ast.FunctionDef | ast.AsyncFunctionDef, flow: Flow) -> Flow:
    """Return the flow of a definition without its late reads of globals that its body binds before it reads them."""
    body = flow_of(ast.If(test=ast.Constant(value=True), body=node.body, orelse=[]))
    own = (flow.globals_bound & body.kills) - body.reads - body.soft
    return replace(flow, late=flow.late - own)


def bound_by_calls(node: ast.stmt, flow: Flow, bound_by: Callable[[str], frozenset[str]]) -> Flow:
    """Return the flow of a statement without its reads of globals that a function called before has bound.

    `bound_by`: the globals that a call of an own function binds.
    """
    first_read: dict[str, tuple[int, int]] = {}
    first_call: dict[str, tuple[int, int]] = {}
    for part in walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id in flow.reads:
            at = (part.lineno, part.col_offset)
            first_read[part.id] = min(first_read.get(part.id, at), at)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            at = (part.lineno, part.col_offset)
            for name in bound_by(part.func.id) & flow.reads:
                first_call[name] = min(first_call.get(name, at), at)
    later = frozenset(name for name, at in first_call.items() if at < first_read.get(name, at))
    if not later:
        return flow
    return replace(flow, reads=flow.reads - later, soft=flow.soft | later, bound=flow.bound | later)
