"""Dependence of a program on the order of a set, which differs between processes for strings. Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.analysis.effects import words
from jupyter_dlaas.analysis.syntax.names import walk

__all__ = ["Order", "order_seen"]

_ORDERLESS: Final = words("sorted len sum min max any all set frozenset Counter isinstance bool print unique")
"""Calls whose value does not depend on the order of their argument."""
_ORDERED: Final = words(
    """list tuple enumerate zip iter map filter join fromkeys array asarray tensor Series Index DataFrame Categorical
    extend deque islice cycle chain"""
)
_SET_METHODS: Final = words("union intersection difference symmetric_difference copy")
_GROWS: Final = words("append extend insert write")


@dataclass(frozen=True, slots=True)
class Order:
    """Finding about some statements."""

    place: str = ""  # code of the expression that depends on the order of a set; "": none
    is_set: bool = False  # of a single expression: its value is a set


def order_seen(nodes: Iterable[ast.AST], names: Collection[str]) -> Order:
    """Find the first place that depends on the order of a set. `names`: variables that are sets."""
    nodes = list(nodes)
    parts = [part for node in nodes for part in walk(node)]
    if not any(_is_about_sets(part, names) for part in parts):  # the usual case
        return Order()
    seen = _Seen(set(names))
    for part in parts:  # local sets of a function
        if isinstance(part, ast.Assign) and seen.is_set(part.value):
            seen.names |= {target.id for target in part.targets if isinstance(target, ast.Name)}
    for node in nodes:
        seen.visit(node)
    only = nodes[0] if len(nodes) == 1 else None
    return Order(seen.place, isinstance(only, ast.expr) and seen.is_set(only))


def _is_about_sets(node: ast.AST, names: Collection[str]) -> bool:
    kind = type(node)
    if kind is ast.Name:
        name = node.id  # type: ignore[attr-defined]
        return name == "set" or name == "frozenset" or name in names
    return kind is ast.Set or kind is ast.SetComp


class _Seen:
    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.place = ""

    def is_set(self, node: ast.AST) -> bool:
        match node:
            case ast.Set(elts=parts):
                return not all(isinstance(part, ast.Constant) and _is_number(part.value) for part in parts)
            case ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self.names
            case ast.Call(func=ast.Name(id="set" | "frozenset"), args=[value]):
                return not _is_of_numbers(value)
            case ast.Call(func=ast.Attribute(value=receiver, attr=verb)) if verb in _SET_METHODS:
                return self.is_set(receiver)
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self.is_set(left) or self.is_set(right)
            case ast.IfExp(body=first, orelse=second):
                return self.is_set(first) or self.is_set(second)
            case _:
                return False

    def visit(self, node: ast.AST, *, is_orderless: bool = False) -> None:
        """Search below a node, whose own value is used with or without its order."""
        if self.place:
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        is_numbered = isinstance(node, ast.Call) and _verb(node.func) in {"enumerate", "zip"}
        if (is_numbered or not is_orderless) and self._takes_order(node):
            self.place = ast.unparse(node.iter if isinstance(node, ast.For) else node)[:80]
            return
        if isinstance(node, ast.Call):
            verb = _verb(node.func)
            self.visit(node.func)
            for part in [*node.args, *(option.value for option in node.keywords)]:
                # `sorted(list(names))`, but not `sorted(set(x), key=list(names).index)`
                is_first = bool(node.args) and part is node.args[0]
                self.visit(part, is_orderless=verb in _ORDERLESS and is_first)
            return
        if isinstance(node, ast.SetComp):
            is_orderless = True
        elif not isinstance(node, ast.comprehension | ast.GeneratorExp | ast.ListComp):
            is_orderless = False
        for child in ast.iter_child_nodes(node):
            self.visit(child, is_orderless=is_orderless)

    def _takes_order(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=receiver, attr="pop"), args=[]):
                return self.is_set(receiver)
            case ast.Call(func=ast.Name(id="next"), args=[ast.Call(func=ast.Name(id="iter"), args=[value])]):
                return self.is_set(value)
            case ast.Call(func=function, args=args) if _verb(function) in _ORDERED:
                return any(self.is_set(arg) for arg in args)
            case ast.ListComp(generators=parts) | ast.GeneratorExp(generators=parts):
                return any(self.is_set(part.iter) for part in parts)
            case ast.Starred(value=value):
                return self.is_set(value)
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
                return self.is_set(value)
            case ast.For(iter=source, body=body) if self.is_set(source):
                return any(_grows(part) for line in body for part in ast.walk(line))
            case _:
                return False


def _grows(node: ast.AST) -> bool:
    """Return whether a loop's body builds something in the order of iteration, unlike `count[word] = 0`."""
    if isinstance(node, ast.Call):
        return _verb(node.func) in _GROWS
    return isinstance(node, ast.AugAssign | ast.Yield) and not isinstance(getattr(node, "target", None), ast.Subscript)


def _verb(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex)


def _is_of_numbers(value: ast.expr) -> bool:
    """Return whether a value holds only numbers, whose hashes are the numbers: `range(10)`, `[1, 2]`."""
    match value:
        case ast.Call(func=ast.Name(id="range")):
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return bool(parts) and all(isinstance(part, ast.Constant) and _is_number(part.value) for part in parts)
        case _:
            return False
