"""Liveness of names at the head of a loop: names that an iteration binds before it reads them are not stored. Pure.

Batches, activations and losses of the last step would otherwise be most of a checkpoint.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

__all__ = ["dead_names", "names_read"]

_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_READS_ALL: Final = frozenset({"eval", "exec", "globals", "locals", "vars"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ITERATES: Final = frozenset(
    {"next", "iter", "enumerate", "zip", "map", "filter", "islice", "chain", "cycle", "reader", "DictReader"}
)
"""Functions that read the lines of a file by iteration."""
_EXITS: Final = (ast.Break, ast.Return, ast.Raise)


@lru_cache(maxsize=16)
def dead_names(source: str, line: int) -> frozenset[str]:
    """Return names that each iteration of the loop at this line binds before any code reads them.

    Conservative: a name that another or a nested function reads, or that is bound conditionally, is not dead.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    loops = [one for one in ast.walk(tree) if isinstance(one, ast.For)]
    heads = [one for one in loops if one.lineno <= line <= (one.iter.end_lineno or one.lineno)]
    if not heads:
        return frozenset()
    loop = max(heads, key=lambda one: one.lineno)
    if _READS_ALL & {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
        return frozenset()
    order = _Order()
    order.assign(loop.target)
    order.block(loop.body)
    bound = order.bound.intersection(*order.exits)
    return frozenset(bound - order.live - _read_in_functions(tree, loop))


@lru_cache(maxsize=64)
def names_read(source: str, line: int) -> Mapping[str, bool]:
    """Return the names that the innermost loop around this line or any function reads; True for those it iterates over.

    Iterated over are names in the header of a loop or comprehension, and those given to `next`, `zip` and the like.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    around = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.For | ast.While) and one.lineno <= line <= (one.end_lineno or one.lineno)
    ]
    found: dict[str, bool] = {}
    for part in [*around[-1:], *(one for one in ast.walk(tree) if isinstance(one, _FUNCTIONS))]:
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, False)
            found |= dict.fromkeys(_iterated(node), True)
    return found


def _iterated(node: ast.AST) -> list[str]:
    match node:
        case ast.For(iter=one) | ast.comprehension(iter=one):
            given = [one]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=given) if name in _ITERATES:
            pass
        case _:
            given = []
    return [one.id for one in given if isinstance(one, ast.Name)]


def _read_in_functions(tree: ast.Module, loop: ast.For) -> set[str]:
    """Return names that functions read from enclosing scopes; a function that holds the loop reads its own."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and not _holds(node, loop):
            reads = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
            found |= reads - set(_own_names(node))
    return found


def _holds(node: ast.AST, loop: ast.For) -> bool:
    return any(one is loop for one in ast.walk(node))


def _own_names(scope: ast.AST) -> Iterator[str]:
    if isinstance(scope, ast.ClassDef):
        return
    shared = {name for one in ast.walk(scope) if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names}
    for node in ast.walk(scope):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in shared:
            yield node.id


class _Order:
    """The names that statements bind, and those that they read before, in execution order."""

    def __init__(self, outer: _Order | None = None) -> None:
        self.bound: set[str] = set() if outer is None else set(outer.bound)
        self.live: set[str] = set() if outer is None else outer.live
        self.exits: list[set[str]] = [] if outer is None else outer.exits
        """The names bound at each exit from the loop or the iteration; all others keep their value there."""

    def block(self, body: Iterable[ast.stmt]) -> None:
        for one in body:
            self._statement(one)

    def assign(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.bound.add(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self.assign(one)
        elif isinstance(target, ast.Starred):
            self.assign(target.value)
        else:
            self._read(target)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._read(value)
                for target in targets:
                    self.assign(target)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._read(value)
                self.assign(target)
            case ast.With(items=items, body=body):
                for item in items:
                    self._read(item.context_expr)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars)
                self.block(body)
            case ast.If(test=test, body=body, orelse=others):
                self._read(test)
                branches = [self._branch(body), self._branch(others)]
                self.bound |= branches[0].bound & branches[1].bound
            case ast.For(target=target, iter=data, body=body, orelse=others):
                self._read(data)
                inner = _Order(self)
                inner.assign(target)
                inner.block(body)
                self._branch(others)
            case ast.Expr(value=value):
                self._read(value)
            case _:
                self._read(node)
                if any(isinstance(one, _EXITS) for one in ast.walk(node)):
                    self.exits.append(set(self.bound))

    def _branch(self, body: Iterable[ast.stmt]) -> _Order:
        branch = _Order(self)
        branch.block(body)
        return branch

    def _read(self, node: ast.AST) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id not in self.bound:
                self.live.add(one.id)
