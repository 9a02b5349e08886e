"""Identifiers of a program from its syntax tree, for rules about the program: comments and prose do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Words", "words_in", "words_of"]


@dataclass(frozen=True, slots=True)
class Words:
    """The identifiers of a program."""

    names: frozenset[str] = frozenset()
    """Variables, attributes, keywords, definitions, parts of module names; also strings of one word: `env["RANK"]`."""
    methods: frozenset[str] = frozenset()
    """Methods that are called anywhere."""
    modules: frozenset[str] = frozenset()
    """Top-level packages that are imported."""
    logs: bool = False
    """True if it calls `log` on the result of `dlaas.run()`."""


def words_in(path: Path) -> Words:
    """Return the identifiers of a file; none if it is not valid Python."""
    return words_of(path.read_text(encoding="utf-8", errors="replace"))


@lru_cache(maxsize=64)
def words_of(text: str) -> Words:
    """Return the identifiers of a program's text; none if it is not valid Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Words()
    names, methods, modules, runs, logged = set[str](), set[str](), set[str](), set[str](), set[str]()
    logs = False
    for node in ast.walk(tree):
        names.update(_names(node))
        match node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)):
                methods.add(method)
                if method == "log" and isinstance(receiver, ast.Name):
                    logged.add(receiver.id)
                logs = logs or (method == "log" and _is_run(receiver))
            case ast.Assign(targets=targets, value=value) if _is_run(value):
                runs.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_run(value):
                runs.add(name)
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if _is_run(value):
                runs.add(name)
            case ast.Import(names=aliases):
                modules.update(alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                modules.add(module.partition(".")[0])
            case _:
                continue
    return Words(frozenset(names), frozenset(methods), frozenset(modules), logs or not runs.isdisjoint(logged))


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Constant(value=str(text)) if len(text) < 100 and not any(char.isspace() for char in text):
            yield text
        case ast.ImportFrom(module=str(module)):
            yield from module.split(".")
        case ast.alias(name=name, asname=other):
            yield from name.split(".")
            if other is not None:
                yield other
        case _:
            return


def _is_run(node: ast.AST) -> bool:
    """Return whether this is the call `dlaas.run()` or `run()`."""
    match node:
        case ast.Call(func=ast.Name(id="run") | ast.Attribute(attr="run"), args=[], keywords=[]):
            return True
        case _:
            return False
