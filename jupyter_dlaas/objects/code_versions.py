"""Versions of classes and functions by their code, to compare this process with another one or with a file.

Comments, blank lines and positions in a file do not count. Standard library only; runs none of the user's code.
"""

from __future__ import annotations

import hashlib
import site
import sys
import sysconfig
import types
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.objects import source_values

__all__ = ["changed", "code_of", "constants_in", "digests", "functions_in", "is_own_module", "table"]

PYTHON: Final = sys.implementation.cache_tag
"""Version of Python; code of other versions is not compared."""
_OWN_PACKAGES: Final = frozenset({"jupyter_dlaas", "dlaas_server"})
_MODULES_MAX: Final = 500
_WRAPPERS: Final = (types.FunctionType, type(lru_cache(lambda: None)))
_PLAIN: Final = (int, float, str, bytes, bool, type(None), tuple, list)


def code_of(value: Any, *, has_values: bool = False) -> Any:
    """Return the code of a function, or of the members that a class defines itself; None for others.

    `has_values`: include the plain values of a class, which may change while a program runs.
    """
    if isinstance(value, type):
        found: dict[str, Any] = {"": [base.__qualname__ for base in value.__bases__]}
        for name, part in vars(value).items():
            code = code_of(part, has_values=has_values)
            if code is not None:
                found[name] = code
            elif has_values and not name.startswith("__") and isinstance(part, _PLAIN):
                found[name] = repr(part)
        return found
    kind = type(value)  # attributes of other objects may be computed by the user's code
    if kind in (staticmethod, classmethod):
        value = value.__func__
    elif kind is property:
        value = value.fget
    while type(value) in _WRAPPERS and type(value.__dict__.get("__wrapped__")) is types.FunctionType:
        value = value.__wrapped__
    return _plain(value.__code__) if type(value) is types.FunctionType else None


def _plain(code: types.CodeType) -> Any:
    consts = [_plain(const) if isinstance(const, types.CodeType) else _text(const) for const in code.co_consts]
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars


def _text(constant: object) -> str:
    """Return the text of a constant; for a set it is the same in all processes."""
    return repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)


# -- of files


def functions_in(code: types.CodeType) -> dict[str, Any]:
    """Return the code of all functions of a compiled module, by their qualified names."""
    found: dict[str, Any] = {}
    todo = [code]
    while todo:
        for const in todo.pop().co_consts:
            if isinstance(const, types.CodeType):
                found[const.co_qualname] = _plain(const)
                todo.append(const)
    return found


def constants_in(text: str) -> dict[str, Any]:
    """Return the plain values that a module's text binds once, at its top level, by name."""
    import ast

    bound: dict[str, list[Any]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, []).append(None)
    found = {}
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if len(bound[name]) == 1:
                try:
                    found[name] = ast.literal_eval(value)
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    continue
            case _:
                continue
    return found


# -- of modules


def is_own_module(module: object) -> bool:
    """Return whether a module is the user's: neither standard library nor installed, nor part of this package."""
    is_module = issubclass(type(module), types.ModuleType)
    fields = (
        object.__getattribute__(module, "__dict__") if is_module else {}
    )  # without triggering a lazy module's import
    name, file = fields.get("__name__"), fields.get("__file__")
    if type(name) is not str or type(file) is not str or not file.endswith(".py") or name == "__main__":
        return False
    return name.partition(".")[0] not in _OWN_PACKAGES and not _is_installed(file)


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{folder}/" for folder in sorted(folders | {site.getusersitepackages()}) if folder)


def _is_installed(file: str) -> bool:
    return file.startswith(_installed()) or "/site-packages/" in file or "/dist-packages/" in file


def digests(module: types.ModuleType) -> dict[str, str]:
    """Return a digest of each class and function that a module defines: code and bases, without mutable values."""
    found = {}
    for name, value in vars(module).copy().items():
        if issubclass(type(value), type | types.FunctionType) and value.__module__ == module.__name__:
            found[name] = _digest(value)
    return found


def _digest(value: Any) -> str:
    kinds = value.__mro__ if isinstance(value, type) else (value,)
    codes = [(kind.__qualname__, code_of(kind)) for kind in kinds if _is_own(kind)]
    return hashlib.sha256(repr(codes).encode(errors="replace")).hexdigest()[:16]


def _is_own(value: Any) -> bool:
    return is_own_module(sys.modules.get(value.__module__))


def table() -> dict[str, Any]:
    """Return the versions of the user's modules in this process, for comparison in another one.

    With more modules than `_MODULES_MAX`, the newest: the user's are imported after the libraries.
    """
    own = [
        module for module in list(sys.modules.values()) if type(module) is types.ModuleType and is_own_module(module)
    ]
    newest = own[-_MODULES_MAX:]
    values = {one.__name__: found for one in newest if (found := source_values.values_of(one))}
    return {"python": PYTHON, "modules": {one.__name__: digests(one) for one in newest}, "values": values}


def changed(other: Mapping[str, Any], requested: Collection[tuple[str, str]]) -> frozenset[str]:
    """Return the classes and functions, as `module.name`, whose version differs in this process."""
    values = source_values.changed_names(other.get("values", {}), requested)
    return frozenset((*_changed(other, requested), *values))


def _changed(other: Mapping[str, Any], requested: Collection[tuple[str, str]]) -> Iterator[str]:
    if other.get("python") != PYTHON:
        return
    for name, qualname in sorted(requested):
        root = qualname.partition(".")[0]
        before = other.get("modules", {}).get(name, {}).get(root)
        local = getattr(sys.modules.get(name), root, None)
        if before is not None and isinstance(local, type | types.FunctionType) and _digest(local) != before:
            yield f"{name}.{root}"


def source_of(file: Path) -> tuple[str, types.CodeType] | None:
    """Return a module's text and compiled code, or None if it cannot be read or compiled."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        return text, compile(text, str(file), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
