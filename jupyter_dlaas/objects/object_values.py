"""Values and identities: objects that cannot change, infrastructure objects, and equality of items."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import itertools
import linecache
import re
import sys
import types
import uuid
from pathlib import PurePath
from typing import Any, Final

__all__ = [
    "are_values",
    "begin_program",
    "is_atom",
    "is_infrastructure",
    "is_of_the_program",
    "is_own_module",
    "is_same",
    "is_sharded",
    "is_tensor",
    "own_modules",
    "program_mentions",
]

_VALUES: Final = frozenset(
    {
        *(str, bytes, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), range, slice),
        *(dt.date, dt.datetime, dt.time, dt.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern),
    }
)
"""Immutable types, whose objects are compared by value."""
_NAMED: Final = (types.BuiltinFunctionType, types.CodeType, types.GetSetDescriptorType, enum.Enum, PurePath, dt.tzinfo)
_CONSTANTS: Final = frozenset({"dtype", "device", "layout", "memory_format", "Size"})
_INFRASTRUCTURE: Final = frozenset(
    {
        *("jupyter_dlaas", "threading", "_thread", "logging", "socket", "ssl", "subprocess", "multiprocessing"),
        *("concurrent", "asyncio", "importlib", "contextvars", "selectors", "weakref", "tqdm", "IPython", "ipykernel"),
        *("ipywidgets", "matplotlib", "wandb", "mlflow", "tensorboard", "tensorboardX", "rich", "pyarrow", "datasets"),
    }
)
"""Packages whose objects the program recreates and that hold no training state."""
_last_preloaded: list[str] = []
_FILES: Final = "/files/"
"""The folder of a job's directory for the files that were sent with it."""
_INFRASTRUCTURE_PARTS: Final = (
    *("torch.distributed.", "torch.nn.parallel.", "torch.utils.tensorboard.", "torch._dynamo."),
    *("torch.cuda.", "torch.utils.data._utils.", "torch.profiler.", "torch.autograd.profiler."),
)


def is_atom(value: object) -> bool:
    """Return whether an object is immutable and needs no identity."""
    kind = type(value)
    if kind in _VALUES or isinstance(value, _NAMED):
        return True
    if isinstance(value, type):
        return not is_of_the_program(value)
    if isinstance(value, types.ModuleType):
        return not is_own_module(value)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.dtype):
        return True
    return kind.__name__ in _CONSTANTS and kind.__module__.partition(".")[0] == "torch"


def is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_sharded(value: object) -> bool:
    """Return whether a tensor is this learner's part of a parameter, as in FSDP."""
    return is_tensor(value) and type(value).__module__.startswith("torch.distributed.")


def is_infrastructure(value: object) -> bool:
    """Return whether an object belongs to the infrastructure around a training, which the program recreates."""
    kind = type(value)
    module = value.__globals__.get("__name__", "") if isinstance(value, types.FunctionType) else kind.__module__
    if isinstance(value, types.MethodType):
        return is_infrastructure(value.__func__)
    if isinstance(value, io.IOBase):
        return not isinstance(value, io.BytesIO | io.StringIO)
    if isinstance(value, types.ModuleType):
        module = value.__name__
    if not isinstance(module, str):
        return False
    return module.partition(".")[0] in _INFRASTRUCTURE or f"{module}.".startswith(_INFRASTRUCTURE_PARTS)


def is_own_module(value: types.ModuleType) -> bool:
    """Return whether a module was sent with the job."""
    file = vars(value).get("__file__")
    return isinstance(file, str) and _FILES in file and bool(folder := _job_dir()) and file.startswith(folder + _FILES)


def own_modules() -> tuple[str, ...]:
    """Return the names of the imported modules that were sent with the job."""
    found = _own_modules(len(sys.modules), next(reversed(sys.modules)), _job_dir())
    return tuple(name for name in found if name in sys.modules)


@functools.lru_cache(maxsize=8)
def _own_modules(count: int, newest: str, folder: str) -> tuple[str, ...]:
    if not folder:
        return ()
    modules = [(name, sys.modules.get(name)) for name in _imported_by_program() if name != "__main__"]
    return tuple(name for name, one in modules if isinstance(one, types.ModuleType) and is_own_module(one))


def begin_program() -> None:
    """Note that the modules that are imported now are none of the job's.

    A fork copies each page that it touches: looking at thousands of preloaded modules takes milliseconds.
    """
    _last_preloaded[:] = [next(reversed(sys.modules))]


def _imported_by_program() -> list[str]:
    """Return the names of the modules since `begin_program`, oldest first; of all modules where it was not called."""
    try:
        names = list(itertools.takewhile(lambda name: name not in _last_preloaded, reversed(sys.modules)))
    except RuntimeError:  # another thread imports
        return list(sys.modules)
    return names[::-1]


def _job_dir() -> str:
    """Return the job's directory; "" outside a job."""
    running: Any = sys.modules.get("jupyter_dlaas.learner.control.context")
    context = running.current() if running is not None else None
    return "" if context is None else str(context.job_dir)


def is_of_the_program(value: Any) -> bool:
    """Return whether a class or function is defined in the program or in a module that was sent with the job."""
    name = getattr(value, "__module__", None)
    if name == "__main__":
        return True
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and is_own_module(module)


def program_mentions(word: str) -> bool:
    """Return whether a word is in the text of the program or of a module that was sent with the job."""
    modules = [sys.modules[name] for name in ("__main__", *own_modules())]
    return _is_in_text(word, tuple(str(getattr(one, "__file__", None)) for one in modules))


@functools.lru_cache(maxsize=64)
def _is_in_text(word: str, files: tuple[str, ...]) -> bool:
    return any(word in line for file in files for line in linecache.getlines(file))


def are_values(values: Any) -> bool:
    kinds = set(map(type, values))
    if kinds <= _VALUES:
        return True
    return kinds == {tuple} and all(set(map(type, value)) <= _VALUES for value in values)


def is_same(old: Any, new: Any) -> bool:
    """Return whether two items are the same object, or equal immutable values."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new):
        return False
    if kind is tuple:
        return len(old) == len(new) and all(is_same(one, other) for one, other in zip(old, new, strict=True))
    if kind is types.MethodType:
        return old.__self__ is new.__self__ and old.__func__ is new.__func__
    return is_atom(old) and bool(old == new or (old != old and new != new))
