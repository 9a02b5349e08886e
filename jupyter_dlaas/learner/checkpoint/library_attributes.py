"""Attributes that a program sets on modules and classes of libraries (`torch.nn.functional.scale = 2`), by its text."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jupyter_dlaas.objects.object_values import is_atom
from jupyter_dlaas.objects.special_objects import Attached

__all__ = ["attached"]


def attached(files: Iterable[Path], names: Mapping[str, Any]) -> dict[str, Attached]:
    """Return the modules and classes of libraries on which these files set attributes, by path.

    `names`: the program's names. An owner that the text reaches in another way is not found.
    """
    owners: dict[str, tuple[Any, set[str]]] = {}
    for file in files:
        for path, name in _assigned(file):
            found = _resolved(path, names)
            if isinstance(found, types.ModuleType | type) and is_atom(found):
                label = f"library {getattr(found, '__module__', '')} {found.__name__}"
                owners.setdefault(label, (found, set()))[1].add(name)
    return {label: Attached(owner, sorted(found)) for label, (owner, found) in sorted(owners.items())}


def _assigned(file: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the attributes that a file assigns or deletes: the names that lead to the owner, and the attribute."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield _path(node.value), node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            match node.args:
                case [owner, ast.Constant(value=str(name)), *_]:
                    yield _path(owner), name


def _path(node: ast.expr) -> tuple[str, ...]:
    """Return the names of a dotted expression; none for any other."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *names[::-1]) if isinstance(node, ast.Name) else ()


def _resolved(path: tuple[str, ...], names: Mapping[str, Any]) -> Any:
    """Return what a dotted name stands for, without running a property or `__getattr__`; None if it is unknown."""
    if not path:
        return None
    found = names.get(path[0])
    for name in path[1:]:
        if not isinstance(found, types.ModuleType | type):
            return None
        found = vars(found).get(name)
    return found
