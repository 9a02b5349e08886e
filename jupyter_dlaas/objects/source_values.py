"""Plain values in class bodies and defaults of parameters: the part of a version that a program may change at run time.

A value differs from a job's only if both the text and the present value do: a counter in a class that a program
increased is not an edit, nor is a change of the file that was not reloaded.
"""

from __future__ import annotations

import ast
import enum
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["changed_names", "values_in", "values_of"]

Values = Mapping[str, Mapping[str, str]]
"""Class or function of a module -> place ("width", "forward(scale)") -> text of the value."""
_TEXT_MAX: Final = 2**20


def values_in(text: str) -> dict[str, dict[str, str]]:
    """Return the plain values in the class bodies and parameters of a module's text, by class or function."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    definitions = [
        node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = {node.name: dict(_in_definition(node, "")) for node in definitions}
    return {name: values for name, values in found.items() if values}


def values_of(module: types.ModuleType) -> dict[str, dict[str, str]]:
    """Return the values in the text of an imported module; empty if its file cannot be read."""
    try:
        path = Path(str(module.__file__))
        return values_in(path.read_text(encoding="utf-8-sig")) if path.stat().st_size <= _TEXT_MAX else {}
    except (OSError, ValueError):
        return {}


def changed_names(other: Mapping[str, Values], requested: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yield the requested classes and functions, as `module.name`, of which a value differs in this process."""
    for name, root in sorted({(module, qualname.partition(".")[0]) for module, qualname in requested}):
        module = sys.modules.get(name)
        local: Any = getattr(module, root, None)
        if module is None or not other.get(name, {}).get(root) or not isinstance(local, type | types.FunctionType):
            continue
        text = values_of(module).get(root, {})
        now = dict(_at_runtime(local, ""))
        if any(
            place in text and place in now and before not in (text[place], now[place])
            for place, before in other[name][root].items()
        ):
            yield f"{name}.{root}"


def _in_definition(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)]
        for argument, value in (*defaults, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
            if value is not None and (text := _literal(value)) is not None:
                yield f"{prefix}({argument.arg})", text
    elif isinstance(node, ast.ClassDef):
        for part in node.body:
            match part:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    if (text := _literal(value)) is not None:
                        yield f"{prefix}.{name}", text
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield from _in_definition(part, f"{prefix}.{name}")
                case _:
                    continue


def _literal(node: ast.expr) -> str | None:
    try:
        return _text(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _text(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, set | frozenset) else repr(value)


def _at_runtime(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, enum.EnumType):
        members: Mapping[str, Any] = value.__members__
        yield from ((f"{prefix}.{name}", _text(member.value)) for name, member in members.items())
        return
    if isinstance(value, type):
        for name, part in vars(value).copy().items():
            part = part.__func__ if type(part) in (staticmethod, classmethod) else part
            if isinstance(part, type | types.FunctionType):
                yield from _at_runtime(part, f"{prefix}.{name}")
            elif type(part) in _PLAIN:
                yield f"{prefix}.{name}", _text(part)
        return
    while type(value.__dict__.get("__wrapped__")) is types.FunctionType:
        value = value.__wrapped__
    code, defaults = value.__code__, value.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    given = {**dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)), **(value.__kwdefaults__ or {})}
    for name, default in given.items():
        if type(default) in _PLAIN:
            yield f"{prefix}({name})", _text(default)


_PLAIN: Final = frozenset({int, float, complex, str, bytes, bool, type(None), tuple, list, dict, set, frozenset})
