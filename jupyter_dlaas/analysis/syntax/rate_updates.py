"""Updates of weights or tables by a learning rate, in loops written by hand: `w -= lr * dw`. Pure."""

from __future__ import annotations

import ast
import re
from typing import Final

from jupyter_dlaas.analysis.syntax.names import walk

__all__ = ["rate_update"]

RATES: Final = re.compile(r"(?i)lr|eta_?0|(base_|init_)?learn(ing)?_?rate")
WEAK_RATES: Final = re.compile(r"(?i)alpha|eta|rate|step_?size|learning")
"""Names that denote a learning rate only before a gradient, as constants do: `w -= 0.1 * (x.T @ error)`."""
SLOPES: Final = re.compile(
    r"(?i)\w*grad(s|ient|ients)?(_?\w)?|d_?[wb]\d*|d_?(theta|beta|weights?|bias)\d*|nabla\w*|slope"
)
TEMPORAL: Final = re.compile(r"(?i)td(_?(error|delta|diff|difference))?|temporal_difference")
REDUCTIONS: Final = frozenset(["mean", "sum", "dot", "matmul", "outer", "einsum", "average", "tensordot"])


def rate_update(node: ast.AST) -> str:
    """Return an update such as `w -= lr * dw`, `w = w - learning_rate * dw` or `layer.w += -self.lr * dw`."""
    for part in walk(node):
        match part:
            case ast.AugAssign(op=ast.Add() | ast.Sub(), value=value) if _has_rate(value):
                return ast.unparse(part)
            case ast.AugAssign(op=ast.Sub(), value=value) if _descends(value):
                return ast.unparse(part)
            case ast.AugAssign(op=ast.Add(), target=target, value=value) if _approaches(target, value):
                return ast.unparse(part)
            case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=value)) if _approaches(
                target, value
            ) or _averages(target, left, value):
                return ast.unparse(part)
            case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Sub(), right=value)) if ast.unparse(
                target
            ) == ast.unparse(left) and _descends(value):
                return ast.unparse(part)
            case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=value)) if (
                ast.unparse(target) == ast.unparse(left) and _has_rate(value)
            ):
                return ast.unparse(part)
            case _:
                continue
    return ""


def _has_rate(value: ast.expr) -> bool:
    products = (part for part in walk(value) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult))
    factors = (factor for part in products for side in (part.left, part.right) for factor in (side, _operand(side)))
    return any(RATES.fullmatch(_name_of(factor)) for factor in factors)


def _descends(value: ast.expr) -> bool:
    """Return whether a value is a rate or a constant times a gradient: `0.1 * (x.T @ error) / len(x)`."""
    for part in walk(value):
        match part:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                if (_is_rate(left) and _is_slope(right)) or (_is_rate(right) and _is_slope(left)):
                    return True
            case ast.BinOp(left=ast.BinOp(left=rate, op=ast.Mult(), right=left), op=ast.MatMult(), right=right):
                if _is_rate(rate) and (_is_transposed(left) or _is_transposed(right)):
                    return True  # `0.1 * x.T @ error`
            case _:
                continue
    return False


def _approaches(target: ast.expr, value: ast.expr) -> bool:
    """Return whether an entry of a table moves to a target by a rate: `q[s, a] += alpha * (reward - q[s, a])`."""
    match value:
        case ast.BinOp(left=rate, op=ast.Mult(), right=ast.BinOp(op=ast.Sub(), right=old)):
            is_known = RATES.fullmatch(_name_of(rate)) or _is_rate(rate)
            return isinstance(target, ast.Subscript) and bool(is_known) and ast.unparse(old) == ast.unparse(target)
        case ast.BinOp(left=rate, op=ast.Mult(), right=ast.Name(id=error)) if TEMPORAL.fullmatch(error):
            return isinstance(target, ast.Subscript) and bool(RATES.fullmatch(_name_of(rate)) or _is_rate(rate))
        case _:
            return False


def _averages(target: ast.expr, old: ast.expr, new: ast.expr) -> bool:
    """Return whether a sum moves an entry of a table: `q[s] = (1 - alpha) * q[s] + alpha * (reward + value)`."""
    match old, new:
        case (
            ast.BinOp(left=ast.BinOp(left=ast.Constant(value=1), op=ast.Sub()), op=ast.Mult(), right=kept),
            ast.BinOp(left=rate, op=ast.Mult(), right=ast.BinOp(op=ast.Add())),
        ):
            is_known = RATES.fullmatch(_name_of(rate)) or _is_rate(rate)
            return isinstance(target, ast.Subscript) and bool(is_known) and ast.unparse(kept) == ast.unparse(target)
        case _:
            return False


def _is_rate(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < node.value <= 1
    return WEAK_RATES.fullmatch(_name_of(node)) is not None


def _is_slope(node: ast.expr) -> bool:
    """Return whether an expression looks like a gradient: by a name, or a product with a transposed array."""
    for part in walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) if SLOPES.fullmatch(name):
                return True
            case ast.BinOp(op=ast.MatMult(), left=left, right=right) if _is_transposed(left) or _is_transposed(right):
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr=verb), args=args) if verb in REDUCTIONS:
                products = [one for arg in args for one in walk(arg) if isinstance(one, ast.BinOp)]
                if any(map(_is_transposed, [owner, *args])) or any(isinstance(one.op, ast.Mult) for one in products):
                    return True
            case _:
                continue
    return False


def _is_transposed(node: ast.expr) -> bool:
    inner = node.func if isinstance(node, ast.Call) else node
    return isinstance(inner, ast.Attribute) and inner.attr in {"T", "mT", "transpose"}


def _operand(node: ast.expr) -> ast.expr:
    return node.operand if isinstance(node, ast.UnaryOp) else node


def _name_of(node: ast.expr) -> str:
    """Return the last name of an expression: `lr` of `self.lr`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
