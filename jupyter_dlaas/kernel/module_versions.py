"""Versions of the user's modules in a kernel: edited after the import, or reloaded after objects were created."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import time
import types
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.objects.code_versions import code_of, constants_in, functions_in, source_of
from jupyter_dlaas.transfer.object_traversal import fields_of, is_a, title, walk

__all__ = ["is_edited", "of_before_reload"]

_LOOKED_AT: Final = 300
"""Maximum number of objects of a variable to search."""
_HEADER: Final = 16
"""Size of the header before the code in a compiled file, in bytes."""


@lru_cache(maxsize=1)
def _started_s() -> float:
    """Return the start time of this process, or 0 if unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return time.time() - uptime_s


def is_edited(module: object, path: Path) -> bool:
    """Return whether a module's file has other code or constants than this process has imported or reloaded."""
    try:
        changed_s = path.stat().st_mtime
    except OSError:
        return False
    compiled = _compiled(path)
    is_current = compiled is not None and compiled[0] == int(changed_s) & 0xFFFFFFFF
    if changed_s < _started_s() - 1 and (compiled is None or is_current):
        return False
    source = source_of(path)
    if source is None:
        return compiled is not None and not is_current
    text, code = source
    if compiled is not None and not is_current and not _is_patched(module, path, code, compiled[1]):
        # No process has imported the present file, so the compiled file is the version of this process.
        return (
            compiled[1] is None or functions_in(compiled[1]) != functions_in(code) or _body(compiled[1]) != _body(code)
        )
    return _differs(fields_of(module), path, text, code)


def _is_patched(module: object, path: Path, code: types.CodeType, compiled: types.CodeType | None) -> bool:
    """Return whether a function is newer than the compiled file: IPython's autoreload replaces its code alone."""
    if compiled is None:
        return False
    before, now = functions_in(compiled), functions_in(code)
    loaded = _functions(fields_of(module), str(path))
    return any(function == now.get(name) != before.get(name) for name, function in loaded.items())


def _body(code: types.CodeType) -> tuple[object, ...]:
    """Return the top-level statements of a module."""
    return (
        code.co_code,
        code.co_names,
        [repr(const) for const in code.co_consts if not isinstance(const, types.CodeType)],
    )


def _compiled(path: Path) -> tuple[int, types.CodeType | None] | None:
    """Return the time of the source that Python compiled last, and its code, or None if unknown."""
    try:
        data = Path(importlib.util.cache_from_source(str(path))).read_bytes()
    except (OSError, NotImplementedError):
        return None
    if len(data) < _HEADER or data[4:8] != bytes(4):
        return None
    try:
        code = marshal.loads(data[_HEADER:])  # noqa: S302 - the user's own module, not run
    except (ValueError, EOFError, TypeError):
        code = None
    return int.from_bytes(data[8:12], "little"), code if isinstance(code, types.CodeType) else None


def _differs(space: Mapping[str, Any], path: Path, text: str, code: types.CodeType) -> bool:
    """Return whether the functions and constants in a module's namespace differ from its file."""
    stored = functions_in(code)
    for qualname, loaded in _functions(space, str(path)).items():
        if stored.get(qualname) != loaded:
            return True
    namespace = {name: space[name] for name in space if name not in {"__builtins__"}}
    for name, value in constants_in(text).items():
        if name in namespace and type(namespace[name]) is type(value) and namespace[name] != value:
            return True
    return False


def _functions(space: Mapping[str, Any], file: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for value in list(space.values()):
        parts = [value, *(vars(value).values() if is_a(value, type) else ())]
        for part in parts:
            function: Any = _undecorated(part)
            if is_a(function, types.FunctionType) and function.__code__.co_filename == file:
                found[function.__code__.co_qualname] = code_of(function)
    return found


def _undecorated(value: Any) -> object:
    """Return the function inside a method, property or decorated function, without running the user's code."""
    if is_a(value, staticmethod, classmethod, types.MethodType):
        value = value.__func__
    elif is_a(value, property):
        value = value.fget
    else:
        value = fields_of(value).get("fget", value)
    while is_a(inner := fields_of(value).get("__wrapped__"), types.FunctionType):
        value = inner
    return value


def of_before_reload(value: object, own: Mapping[str, object]) -> str:
    """Return the class or function, as `module.name`, that an object has in another version than its module.

    `own`: the user's modules. "" if there is none, or if IPython's autoreload has updated the class itself.
    """
    for _, part in walk({"": value}, _LOOKED_AT):
        kind: Any = part if is_a(part, type, types.FunctionType) else type(part)
        module, name = (kind.__module__, kind.__qualname__) if is_a(kind, types.FunctionType) else title(kind)
        if module not in own or "<" in name:
            continue
        found: Any = sys.modules.get(module)
        for step in name.split("."):
            found = fields_of(found).get(step) if not is_a(found, type) else vars(found).get(step)
        if found is None or found is kind or not is_a(found, type, types.FunctionType):
            continue
        if code_of(found) != code_of(kind):
            return f"{module}.{name}"
    return ""
