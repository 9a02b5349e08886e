"""Names that hold immutable values while a statement runs, as far as the kernel's final values tell. Pure.

The kernel knows the type of a variable's last value only. `items = [3, 1]`, `random.shuffle(items)`, `items = 0`: the
last value is a number, but the call changed a list.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from jupyter_dlaas.analysis.effects import words
from jupyter_dlaas.analysis.syntax.names import children

__all__ = ["ImmutableNames"]

_SCALAR_FUNCTIONS: Final = words("bool chr float format hash id int len ord repr str")
"""Built-in functions that return numbers or strings."""
_SCALAR_METHODS: Final = words("isoformat item monotonic perf_counter")
"""Methods that return numbers or strings, whatever their object. Those of strings also exist in pandas."""
_GLOBAL: Final = ast.Pass()
"""Stands for a value that a function binds, at an unknown time."""


class ImmutableNames:
    """Immutable names at each of the statements, in order of execution."""

    def __init__(self, immutable: Collection[str], nodes: Sequence[ast.stmt | None]) -> None:
        """`immutable`: names whose last values are immutable. `nodes`: the statements, None for those without code."""
        self.names = frozenset(immutable)
        sites: dict[str, list[tuple[int, ast.AST]]] = {}
        for index, node in enumerate(nodes if self.names else ()):
            for name, value in _bindings(node) if node is not None else ():
                if name in self.names:
                    sites.setdefault(name, []).append((index, value))
        self._unsure: dict[int, dict[str, bool]] = {}  # statement -> names that it binds, whether to another type
        for name, found in sites.items():
            final = found[-1][1]
            kinds = [(index, not _is_of_one_type(value, final)) for index, value in found]
            if any(value is _GLOBAL for _, value in found) and len(found) > 1:
                self.names -= {name}
            elif any(is_other for _, is_other in kinds):
                for index, is_other in kinds:
                    bound = self._unsure.setdefault(index, {})
                    bound[name] = bound.get(name, False) or is_other
        self._index = -1

    def advance(self, reads: Collection[str]) -> frozenset[str]:
        """Return the immutable names while the next statement runs; it reads `reads` before it binds them."""
        self._index += 1
        changes = self._unsure.get(self._index)
        if changes is None:
            return self.names
        before = self.names
        others = {name for name, is_other in changes.items() if is_other}
        self.names = (before | changes.keys()) - others
        return self.names - (set(reads) - before)


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names of the notebook that a statement binds, each with an expression for its value.

    `*value` stands for what is taken out of a value: by a loop, a `with` statement or an assignment to several names.
    """
    todo = [node]
    while todo:
        part = todo.pop()
        match part:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield part.name, part
                inner = [one for one in ast.walk(part) if isinstance(one, ast.Global)]
                yield from ((name, _GLOBAL) for one in inner for name in one.names)
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() | ast.AugAssign():
                continue  # `x += 1` keeps the type
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _targets(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield from _targets(target, value)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                yield from _targets(target, ast.Starred(value))
            case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
                yield from _targets(target, ast.Starred(value))
            case ast.alias():
                yield part.asname or part.name.partition(".")[0], part
        todo += children(part)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else ()
        for at, part in enumerate(target.elts):
            yield from _targets(part, parts[at] if parts else ast.Starred(value))
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, ast.Starred(value))


def _is_of_one_type(value: ast.AST, final: ast.AST) -> bool:
    """Return whether a value is immutable because it is a number or a string, or was made as the immutable last one."""
    if value is final or _is_scalar(value):
        return True
    if isinstance(value, ast.Starred) and isinstance(final, ast.Starred):
        return _is_of_one_type(value.value, final.value)
    if isinstance(value, ast.Call) and isinstance(final, ast.Call):
        return _form_of_call(value) == _form_of_call(final)
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript | ast.FunctionDef | ast.ClassDef):
        return type(value) is type(final) and ast.dump(value) == ast.dump(final)
    return False


def _form_of_call(call: ast.Call) -> tuple[str, int, frozenset[str | None]]:
    return ast.dump(call.func), len(call.args), frozenset(option.arg for option in call.keywords)


def _is_scalar(value: ast.AST) -> bool:
    match value:
        case ast.Constant() | ast.JoinedStr() | ast.alias() | ast.FunctionDef() | ast.ClassDef():
            return True
        case ast.Compare(ops=operators):  # others may compare arrays element by element
            return all(isinstance(one, ast.Is | ast.IsNot | ast.In | ast.NotIn) for one in operators)
        case ast.BinOp(left=left, right=right):
            return _is_scalar(left) and _is_scalar(right)
        case ast.UnaryOp(operand=operand):
            return _is_scalar(operand)
        case ast.BoolOp(values=parts):
            return all(map(_is_scalar, parts))
        case ast.IfExp(body=body, orelse=other):
            return _is_scalar(body) and _is_scalar(other)
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Starred(value=ast.Call(func=ast.Name(id="range"))):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in _SCALAR_FUNCTIONS
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _SCALAR_METHODS
        case _:
            return False
