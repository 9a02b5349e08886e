"""Reduction of a loss over the samples of a batch, from its code: a sum or a mean. Pure.

The gradients of several learners are averaged, so a sum must be known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from jupyter_dlaas.analysis.call_graph import Call, Frame, Notebook, Scope, last_name

__all__ = ["Kind", "kind_of"]

_DEPTH_MAX: Final = 12
_SAMPLES: Final = frozenset({"size", "len", "shape", "numel", "nelement"})
"""Calls and attributes by which a loop counts its samples."""
_LOSSES: Final = ("loss", "cross_entropy", "entropy_with_logits", "kl_div", "criterion")


class Kind(StrEnum):
    """Reduction over the samples of a batch."""

    SUM = "sum"
    MEAN = "mean"
    MIXED = "mixed"
    """Sum of a sum and a mean."""
    UNKNOWN = "unknown"


def kind_of(notebook: Notebook, ends: Sequence[Call]) -> Kind:
    """Return the common reduction of all losses with a backward pass, by the paths to these calls."""
    found: set[Kind] = set()
    for end in ends:
        call = end[-1].call
        if isinstance(call.func, ast.Attribute):
            found.add(_Reader(notebook).kind(call.func.value, end[-1].scope, end[:-1]))
    return _together(found)


def _together(found: set[Kind]) -> Kind:
    known = found - {Kind.UNKNOWN}
    if len(known) > 1:
        return Kind.MIXED
    return known.pop() if known else Kind.UNKNOWN


class _Reader:
    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._seen: set[tuple[int, str]] = set()

    def kind(self, node: ast.expr, scope: Scope, way: Sequence[Frame], depth: int = 0) -> Kind:
        if depth > _DEPTH_MAX:
            return Kind.UNKNOWN
        match node:
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                inner = self.kind(left, scope, way, depth + 1)
                is_mean = inner is Kind.SUM and self._counts_samples(right, scope, way)
                return Kind.MEAN if is_mean else inner
            case ast.BinOp(left=left, right=right):
                return _together({self.kind(one, scope, way, depth + 1) for one in (left, right)})
            case ast.UnaryOp(operand=inner_node):
                return self.kind(inner_node, scope, way, depth + 1)
            case ast.Call():
                return self._call(node, scope, way, depth)
            case ast.Name() | ast.Attribute():
                return self._name(ast.unparse(node), scope, way, depth)
        return Kind.UNKNOWN

    def _name(self, text: str, scope: Scope, way: Sequence[Frame], depth: int) -> Kind:
        if (id(scope.node), text) in self._seen:
            return Kind.UNKNOWN
        self._seen.add((id(scope.node), text))
        made = self._notebook.value_of(text, scope, way)
        values = scope.values(text)[-1:] or ([] if made is None else [made])
        added = [one.value for one in _augmented(scope, text, ast.Add, ast.Sub)]
        found = _together({self.kind(value, scope, way, depth + 1) for value in [*values, *added]})
        divided = any(self._counts_samples(one.value, scope, way) for one in _augmented(scope, text, ast.Div))
        return Kind.MEAN if divided and found is Kind.SUM else found

    def _call(self, call: ast.Call, scope: Scope, way: Sequence[Frame], depth: int) -> Kind:
        if (reduction := _reduction(call)) is not None:
            return reduction
        name = last_name(call.func)
        is_method = isinstance(call.func, ast.Attribute)
        values = call.args[1:] if is_method and _is_module(call.func) else call.args
        if name == "sum" and is_method:
            return (
                Kind.UNKNOWN if values or any(keyword.arg in ("dim", "axis") for keyword in call.keywords) else Kind.SUM
            )
        if name in ("mean", "nanmean"):
            return Kind.MEAN
        if name == "scale" and call.args:
            return self.kind(call.args[0], scope, way, depth + 1)
        if name in ("to", "float", "double", "squeeze") and is_method:
            assert isinstance(call.func, ast.Attribute)
            return self.kind(call.func.value, scope, way, depth + 1)
        own = self._function(call, scope)
        if own is not None:
            returned = [node.value for node in own.nodes() if isinstance(node, ast.Return) and node.value is not None]
            here = (*way, Frame(scope, (), call))
            first = [one.elts[0] if isinstance(one, ast.Tuple) and one.elts else one for one in returned]
            return _together({self.kind(one, own, here, depth + 1) for one in first})
        made = self._notebook.value_of(ast.unparse(call.func), scope, way)
        if isinstance(made, ast.Call):
            reduction = _reduction(made)
            if reduction is not None or _is_loss(last_name(made.func)):
                return reduction or Kind.MEAN
        return Kind.MEAN if _is_loss(name) else Kind.UNKNOWN

    def _function(self, call: ast.Call, scope: Scope) -> Scope | None:
        if isinstance(call.func, ast.Name):
            return self._notebook.functions.get(call.func.id)
        if isinstance(call.func, ast.Attribute):
            return self._notebook.method(call.func.value, call.func.attr, scope)
        return None

    def _counts_samples(self, node: ast.expr, scope: Scope, way: Sequence[Frame]) -> bool:
        names = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}
        if names & _SAMPLES:
            return not any(name.endswith(("dataset", "loader")) for name in names)
        if isinstance(node, ast.Name):
            values = scope.values(node.id)
            return bool(values) and self._counts_samples(values[-1], scope, way)
        return False


def _reduction(call: ast.Call) -> Kind | None:
    """Return the reduction given by `reduction=` of a loss function or of its object."""
    for keyword in call.keywords:
        if not isinstance(keyword.value, ast.Constant):
            continue
        if keyword.arg == "reduction":
            return {"sum": Kind.SUM, "none": Kind.UNKNOWN}.get(str(keyword.value.value), Kind.MEAN)
        if keyword.arg == "size_average":
            return Kind.SUM if keyword.value.value is False else Kind.MEAN
    return None


def _augmented(scope: Scope, text: str, *kinds: type[ast.operator]) -> Iterator[ast.AugAssign]:
    for node in scope.nodes():
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == text and isinstance(node.op, kinds):
            yield node


def _is_module(function: ast.expr) -> bool:
    """Return whether a function is a module's, as `torch.sum`, whose first argument is summed."""
    return isinstance(function, ast.Attribute) and ast.unparse(function.value) in ("torch", "th")


def _is_loss(name: str) -> bool:
    reduction = name.lower()
    return any(one in reduction for one in _LOSSES)
