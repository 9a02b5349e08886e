"""What a program defines, made again without running the program: for results whose class stands in a training cell.

That cell ran in the job and not in the kernel, so the kernel has none of its classes; the text is with the job.
"""

from __future__ import annotations
import __future__

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

__all__ = ["classes", "find"]

_COROUTINES = ("_training_cell", "_cell_")
"""How a cell with `await` begins in the program."""


def find(source: str, qualname: str) -> Any:
    """A class or function by its qualified name: this process' own `__main__` goes first, then the program.

    Runs only the imports, definitions and constants that it is made of. Raises AttributeError where neither has it.
    """
    root, *parts = qualname.split(".")
    main = sys.modules["__main__"]
    found = vars(main)[root] if root in vars(main) else _program(source).value(root)
    for part in parts:
        found = getattr(found, part, None)
    if found is None:
        raise AttributeError(f"Can't get attribute {root!r} on {main!r}")  # as pickle says it
    return found


def classes(source: str) -> dict[str, Any]:
    """All classes of a program that can be made, and are not in this process' `__main__`."""
    program, main = _program(source), vars(sys.modules["__main__"])
    names = [name for name, node in program.nodes.items() if isinstance(node, ast.ClassDef) and name not in main]
    return {name: found for name in names if (found := program.value(name)) is not None}


@lru_cache(maxsize=16)  # all results of a job have the same classes
def _program(source: str) -> _Program:
    return _Program(source)


class _Program:
    def __init__(self, source: str) -> None:
        tree = ast.parse(source)
        is_lazy = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
        self.flags = __future__.annotations.compiler_flag if is_lazy else 0
        self.nodes = {name: node for node in _definitions(tree.body) for name in _bound(node)}
        self.space: dict[str, Any] = {"__name__": "__main__"}

    def value(self, name: str) -> Any:
        """None where the program does not define it, or the definition raises here."""
        try:
            self._define(name, set())
        except Exception:  # noqa: BLE001 - the user's own lines, which need not work without what ran before them
            return None
        return self.space.get(name)

    def _define(self, name: str, begun: set[str]) -> None:
        """Bind a name and, before it, what its definition reads; what nobody has stays open, as in a program."""
        main = vars(sys.modules["__main__"])
        if name in self.space or name in begun:
            return
        begun.add(name)
        if name in main:
            self.space[name] = main[name]
        elif (node := self.nodes.get(name)) is not None:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                    self._define(part.id, begun)
            code = compile(ast.Module([node], []), "train.py", "exec", flags=self.flags, dont_inherit=True)
            exec(code, self.space)  # noqa: S102 - the user's own definition, in the user's own process


def _definitions(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that define something and do nothing else, in the order of the page."""
    for node in nodes:
        match node:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), body=body):
                yield from _definitions(body)
            case ast.AsyncFunctionDef(name=name, body=body) if name.startswith(_COROUTINES):
                yield from _definitions(body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
                yield node
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if _is_constant(value):
                yield node
            case _:
                continue


def _is_constant(value: ast.expr) -> bool:
    return not any(isinstance(part, ast.Call | ast.Await | ast.Attribute | ast.Subscript) for part in ast.walk(value))


def _bound(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case _:
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
