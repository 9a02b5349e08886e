"""Decorator `@dlaas.train`: runs a function of a module as a job. Standard library only.

The job's program imports the module and calls the function; nothing is pickled. The module's file is therefore sent
under its own name, and its `if __name__ == "__main__":` block does not run in the job.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.api import option_parsing, sources
from jupyter_dlaas.wire.codec import Invalid

__all__ = ["call_in_job", "framework_of", "is_in_job", "program_of"]

_importing: list[str] = []  # modules that the job is importing in order to call one of their functions

_PROGRAM: Final = '''"""Calls {function}() of {module}.py as a job."""

from jupyter_dlaas.api.decorator import call_in_job

if __name__ == "__main__":
    returned = call_in_job({module!r}, {function!r}, {args!r}, {kwargs!r})
'''


def is_in_job() -> bool:
    """Return whether this process is a job, in which a decorated function is called directly.

    Raises Invalid if the job is still importing the module: such a call would run at every import.
    """
    if _importing:
        raise Invalid(
            f"{_importing[-1]}.py calls a function of @dlaas.train while it is imported; "
            'put the call under: if __name__ == "__main__":'
        )
    return "DLAAS_JOB" in os.environ


def call_in_job(module: str, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Import the module and call its decorated function directly. The job's program calls this."""
    _importing.append(module)
    try:
        imported = importlib.import_module(module)
    finally:
        _importing.pop()
    found: Any = imported
    for part in function.split("."):
        found = getattr(found, part)
    return getattr(found, "__wrapped__", found)(*args, **kwargs)


def program_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, Path]]:
    """Return the job's program and the files to send with it (name in the job to local file). Raises Invalid."""
    name = function.__qualname__
    if "<" in name:
        raise Invalid(f"train: {name} is defined inside another function; move it to the top level of its module")
    for label, value in [*((f"argument {n}", v) for n, v in enumerate(args, 1)), *kwargs.items()]:
        if not _is_plain(value):
            raise Invalid(
                f"train: {label} of {name} is of type {type(value).__name__}; only plain values can be sent to a job "
                "(numbers, strings, lists, dicts). Create the object inside the function"
            )
    module, path = _module_of(function)
    text = _PROGRAM.format(function=name, module=module, args=tuple(args), kwargs=dict(kwargs))
    if path is None:
        return text, {}
    root = path.parents[module.count(".") + (path.name == "__init__.py")]
    files = sources.own_modules(f"import {module.partition('.')[0]}\n", root)
    return text, {**files, path.relative_to(root).as_posix(): path}


def framework_of(function: Callable[..., Any]) -> str | None:
    """Return the training framework that the function's module imports."""
    try:
        return option_parsing.framework_of(inspect.getsource(sys.modules[function.__module__]))
    except (OSError, TypeError, KeyError):
        return None


def _module_of(function: Callable[..., Any]) -> tuple[str, Path | None]:
    """Return the name by which a job imports the function's module, and its file (None: an installed module)."""
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        raise Invalid(f"train: {function.__qualname__} is not defined in a file; in a notebook, use %%train")
    path = Path(file).absolute()
    if function.__module__ != "__main__":
        return function.__module__, None if _is_installed(path) else path
    if not path.stem.isidentifier():
        raise Invalid(f"train: {path.name} is not a valid module name; use only letters, digits and _")
    return path.stem, path


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib"))


def _is_plain(value: Any) -> bool:
    """Return whether the value equals its `repr` read as a literal."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
