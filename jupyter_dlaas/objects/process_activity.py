"""Threads, handlers and late modules: a loop starts or registers them, and no checkpoint can keep them.

Each is reported with its remedy. What the program starts above the loop, it starts again when it runs again.
"""

from __future__ import annotations

import dis
import functools
import logging
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any, Final

from jupyter_dlaas.objects.object_values import is_atom, is_infrastructure, is_of_the_program, own_modules

__all__ = ["is_repeated", "read_activity", "remedy_of"]

_THREAD: Final = "thread "
_PROCESS: Final = "process "
_SIGNAL: Final = "handler of "
_LOGGER: Final = "handlers and filters of the logger "
_ERRORS: Final = "handler of numpy's errors"
_MODULE: Final = "state of the module "
_REMEDIES: Final = {
    _THREAD: "it was started in the loop: start it above the loop, so that the job starts it again",
    _PROCESS: "it was started in the loop: start it above the loop, so that the job starts it again",
    _SIGNAL: "it was set in the loop: call signal.signal above the loop",
    _LOGGER: "they were changed in the loop: add them above the loop",
    _ERRORS: "it was set in the loop: call numpy.seterrcall above the loop",
    _MODULE: "it was first imported in the loop: import it above the loop",
}


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
    yield from ((f"{_MODULE}{name}", True) for name in own_modules() if _has_state(name, id(sys.modules.get(name))))


def is_repeated(label: str) -> bool:
    """Return whether an epoch that starts or registers something does so again when the job resumes within it."""
    return not label.startswith(_MODULE)


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
