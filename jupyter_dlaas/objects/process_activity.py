"""Threads, handlers, registrations and late modules: a loop makes them, and no checkpoint can keep them.

Each is reported with its remedy. What the program starts above the loop, it starts again when it runs again.
"""

from __future__ import annotations

import abc
import atexit
import copy
import dis
import functools
import logging
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any, Final

from jupyter_dlaas.objects.object_values import (
    is_atom,
    is_infrastructure,
    is_of_the_program,
    own_modules,
    program_mentions,
)

__all__ = ["is_repeated", "read_activity", "remedy_of"]

_STREAMS: Final = "random streams of CuPy"
_SEEDED: Final = "random.seed(run.step"
"""Text of a program that draws the numbers of each step from a seed of its own."""
_THREAD: Final = "thread "
_PROCESS: Final = "process "
_SIGNAL: Final = "handler of "
_LOGGER: Final = "handlers and filters of the logger "
_ERRORS: Final = "handler of numpy's errors"
_MODULE: Final = "state of the module "
_ABSTRACT: Final = "classes registered with "
_TIMER: Final = "timer of signal.setitimer"
_AT_EXIT: Final = "functions of atexit"
_REGISTERED: Final = "entries of "
_IN_LOOP: Final = "it was registered in the loop: register it above the loop"
_REMEDIES: Final = {
    _STREAMS: "CuPy cannot return their position: call cupy.random.seed(run.step) at the beginning of each step",
    _THREAD: "it was started in the loop: start it above the loop, so that the job starts it again",
    _PROCESS: "it was started in the loop: start it above the loop, so that the job starts it again",
    _SIGNAL: "it was set in the loop: call signal.signal above the loop",
    _LOGGER: "they were changed in the loop: add them above the loop",
    _ERRORS: "it was set in the loop: call numpy.seterrcall above the loop",
    _MODULE: "it was first imported in the loop: import it above the loop",
    _ABSTRACT: _IN_LOOP,
    _TIMER: "it was started in the loop: start it above the loop",
    _AT_EXIT: _IN_LOOP,
    _REGISTERED: _IN_LOOP,
}
_REGISTRIES: Final = (
    ("copyreg", "dispatch_table"),
    ("gc", "callbacks"),
    ("sqlite3", "adapters"),
    ("sqlite3", "converters"),
    ("sys", "meta_path"),
    ("keras.src.saving.object_registration", "GLOBAL_CUSTOM_OBJECTS"),
    ("torch.distributions.kl", "_KL_REGISTRY"),
    ("torch.utils._pytree", "SUPPORTED_NODES"),
)
"""Dictionaries and lists by module and name in which libraries keep functions and classes that programs register."""


def read_activity() -> Iterator[tuple[str, Any]]:
    """Yield what the program has started or registered, with what identifies it."""
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None) or type(thread)
        if is_of_the_program(target):
            yield f"{_THREAD}{thread.name}", id(thread)
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    for child in list(getattr(multiprocessing, "_children", ())):
        if is_of_the_program(getattr(child, "_target", None) or type(child)):
            yield f"{_PROCESS}{child.name}", id(child)
    if threading.current_thread() is threading.main_thread():
        for number in _CATCHABLE:
            found: Any = signal.getsignal(number)
            if is_of_the_program(found):
                yield f"{_SIGNAL}{number.name}", id(found)
    yield from _of_loggers()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and (handler := numpy.geterrcall()) is not None:
        yield _ERRORS, id(handler)
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield _TIMER, True
    cupy: Any = sys.modules.get("cupy.random")
    if (draws := getattr(getattr(cupy, "get_random_state", None), "calls", 0)) and not program_mentions(_SEEDED):
        yield _STREAMS, draws
    yield from _registrations()
    yield from ((f"{_MODULE}{name}", True) for name in own_modules() if _has_state(name, id(sys.modules.get(name))))


def _registrations() -> Iterator[tuple[str, Any]]:
    """Yield the registries that hold functions or classes of the program, with what identifies their content."""
    if program_mentions("atexit"):
        yield _AT_EXIT, atexit._ncallbacks()
    for module, name in _REGISTRIES:
        registry = getattr(sys.modules.get(module), name, ())
        if registry and (own := _own_members(f"{module}.{name}", registry)):
            yield f"{_REGISTERED}{module}.{name}", own
    if program_mentions("register"):
        yield from _registered_classes(abc.get_cache_token())


def _own_members(path: str, registry: Any) -> tuple[int, ...]:
    """Return the ids of the program's members of a registry; all of them are searched only if the registry changed."""
    known, own = _searched.get(path, (None, ()))
    if known != registry:
        own = tuple(id(one) for one in _members(registry) if is_of_the_program(one))
        _searched[path] = copy.copy(registry), own
    return own


_searched: dict[str, tuple[Any, tuple[int, ...]]] = {}
"""By path, the content of a registry when it was last searched, and the ids of the program's members of it."""


def _members(registry: Any) -> Iterator[Any]:
    items = (part for pair in registry.items() for part in pair) if isinstance(registry, dict) else iter(registry)
    for one in items:
        yield from one if isinstance(one, tuple) else (one,)


@functools.lru_cache(maxsize=1)
def _registered_classes(token: object) -> tuple[tuple[str, Any], ...]:
    """Return the abstract classes with the classes registered with them, if the program defines either.

    `token`: the number of registrations so far, which `abc` counts; all classes are searched only if it changes.
    """
    found: dict[str, tuple[str, ...]] = {}
    kinds: list[Any] = [object]
    seen: set[Any] = set()
    for kind in kinds:
        new = [one for one in type.__subclasses__(kind) if one not in seen]
        seen.update(new)
        kinds += new
        if isinstance(kind, abc.ABCMeta):
            registered = [one for reference in _registry_of(kind) if (one := reference()) is not None]
            own = [one.__qualname__ for one in registered if is_of_the_program(kind) or is_of_the_program(one)]
            if own:
                found[f"{_ABSTRACT}{kind.__qualname__}"] = tuple(sorted(own))
    return tuple(found.items())


def _registry_of(kind: abc.ABCMeta) -> frozenset[Any]:
    """Return references to the classes registered with an abstract class; none where this Python does not tell."""
    dump = vars(abc).get("_get_dump")
    return frozenset() if dump is None else frozenset(dump(kind)[0])


def is_repeated(label: str) -> bool:
    """Return whether an epoch that starts or registers something does so again when the job resumes within it."""
    return not label.startswith((_MODULE, _STREAMS))


def remedy_of(label: str) -> str:
    """Return the reason and the remedy for something that the loop has started or registered."""
    return next(text for start, text in _REMEDIES.items() if label.startswith(start))


def _of_loggers() -> Iterator[tuple[str, Any]]:
    loggers: Any = logging.getLogger().manager.loggerDict
    for name, one in [("root", logging.getLogger()), *loggers.items()]:
        if isinstance(one, logging.Logger) and (one.handlers or one.filters):
            handlers = [handler for handler in one.handlers if _is_chosen(type(handler))]
            if handlers or one.filters:
                yield f"{_LOGGER}{name}", (*map(id, handlers), *map(id, one.filters))


def _is_chosen(kind: type) -> bool:
    """Return whether a program adds handlers of this class: libraries add those that only print by themselves."""
    is_printing = kind in (logging.StreamHandler, logging.NullHandler)
    return is_of_the_program(kind) or (kind.__module__.partition(".")[0] == "logging" and not is_printing)


@functools.lru_cache(maxsize=512)
def _has_state(name: str, identity: int) -> bool:
    """Return whether a module holds objects that can change, or has functions that rebind its names."""
    for key, one in vars(sys.modules[name]).items():
        if isinstance(one, types.FunctionType):
            if any(step.opname == "STORE_GLOBAL" for step in dis.get_instructions(one.__code__)):
                return True
        elif not (key.startswith("__") or is_atom(one) or is_infrastructure(one) or isinstance(one, _DEFINED)):
            return True
    return False


_DEFINED: Final = (type, types.ModuleType, types.BuiltinFunctionType)
_CATCHABLE: Final = [one for one in signal.Signals if one not in (signal.SIGKILL, signal.SIGSTOP)]
