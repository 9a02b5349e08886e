"""The report of an exception that ended a program: the failure for the card, and the traceback for the log.

User code may leave anything behind: exceptions that cannot be printed, closed descriptors, signal handlers that raise,
replaced builtins. If the full report fails or does not end, a minimal one keeps class, message, cell and line.
"""

from __future__ import annotations

import builtins
import mmap
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.failures.diagnosis import from_exception
from jupyter_dlaas.learner.environment.tracebacks import arguments_text, class_names, failure_of, in_cells
from jupyter_dlaas.wire.codec import clean
from jupyter_dlaas.wire.protocol import Cause, Failure, Where

__all__ = ["Report", "call_hook", "calm", "is_success", "minimal", "report", "report_exit", "restore_builtins", "show"]

T = TypeVar("T")
Report = tuple[Failure, str]
"""The failure, and its traceback in cells."""

_EXIT_ADVICE: Final = "The program exits in this line: check what leads to it, and the end of the log."
_FULL_S: Final = 10.0
_SHOW_S: Final = 5.0
_HOOK_S: Final = 10.0
_RECURSION: Final = 1000
_CODE_MAX: Final = 1 << 31
_WHAT_MAX: Final = 1000
_LINE_MAX: Final = 500
_TEXT_MAX: Final = 30_000
_FRAMES_MAX: Final = 20
_RESERVE_BYTES: Final = 4 << 20
_NAMES: Final = vars(builtins)
_BUILTINS: Final = dict(_NAMES)

_reserve: list[mmap.mmap] = [mmap.mmap(-1, _RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)]
"""Reserved memory for the report of a program that has exhausted all other; it uses no pages."""


def restore_builtins() -> None:
    """Restore the names of `builtins`. Calls nothing that a program can have replaced."""
    _NAMES.update(_BUILTINS)


@contextmanager
def calm() -> Iterator[None]:
    """Return a context that disables what the program has set up: signal handlers, trace functions, limits."""
    _reserve.clear()
    handlers: dict[int, Any] = {}
    set_handler = getattr(signal.signal, "__wrapped__", signal.signal)  # not as the program's own choice
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            with suppress(OSError, ValueError):
                handlers[number] = set_handler(number, signal.SIG_IGN)
    sys.settrace(None)
    sys.setprofile(None)
    limit = sys.getrecursionlimit()
    with suppress(RecursionError):
        sys.setrecursionlimit(_RECURSION)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        for caught, handler in handlers.items():
            if caught != signal.SIGTERM:  # what is left is short, and must not be interrupted
                set_handler(caught, handler)


def report(
    error: BaseException, cells: CellMap, own_folder: Path, *, is_alone: bool = False, has_gpus: bool = True
) -> Report:
    """Describe an exception, with less detail if its methods or the state of the process prevent a full report."""
    if issubclass(type(error), MemoryError):  # regardless of its __class__
        traceback.clear_frames(error.__traceback__)
    found = _within(_FULL_S, lambda: _full(error, cells, own_folder, is_alone, has_gpus))
    if found is None:
        found = minimal(error, cells)
    failure, text = found
    return _clean(failure), text


def _full(error: BaseException, cells: CellMap, own_folder: Path, is_alone: bool, has_gpus: bool) -> Report:
    failure = failure_of(error, cells, own_folder, is_alone=is_alone, has_gpus=has_gpus)
    return failure, in_cells(error, cells)


def is_success(end: SystemExit) -> bool:
    """Return whether this exit is a success: None or 0, as for the interpreter."""
    code = _code_of(end)
    return code is None or (issubclass(type(code), int) and code == 0)


def report_exit(end: SystemExit, cells: CellMap, own_folder: Path) -> tuple[int, Failure, str]:
    """Return the exit code, failure and log text of a program that ended itself with an error."""
    code = _code_of(end)
    failure, _ = report(end, cells, own_folder)
    if isinstance(code, int):
        number = int(code) & 0xFF or 1
        said = f"ended with exit code {int(code) if abs(code) < _CODE_MAX else number}"
        text = ""
    else:
        number, text = 1, _within(_SHOW_S, lambda: str(code)) or arguments_text(end)
        said = f"sys.exit: {text[:500]}"
    advice = "See the end of the log." if failure.where is None else _EXIT_ADVICE
    found = replace(failure, cause=Cause.YOUR_CODE, what=said, traceback=None)
    if failure.code != "program_arguments":
        found = replace(found, code="exit_code", advice=advice)
    return number, _clean(found), text and f"{text[:_TEXT_MAX]}\n"


def _code_of(end: SystemExit) -> object:
    return SystemExit.__dict__["code"].__get__(end)


def _clean(failure: Failure) -> Failure:
    """Return the failure with texts of bounded length, without zero bytes and lone surrogates."""
    where = failure.where
    if where is not None:
        source = tuple(_sendable(line, _LINE_MAX) for line in where.source)
        name = where.function and _sendable(where.function, _LINE_MAX)
        where = replace(where, label=_sendable(where.label, _LINE_MAX), function=name, source=source)
    trace = failure.traceback and _sendable(failure.traceback, _TEXT_MAX)
    what, advice = _sendable(failure.what, _WHAT_MAX), _sendable(failure.advice, _TEXT_MAX)
    return replace(failure, what=what, advice=advice, where=where, traceback=trace)


def _sendable(text: str, limit: int) -> str:
    return str(clean(text[:limit]))


def show(text: str, log: Path) -> None:
    """Write to the log through the program's own stream, or directly to the file if no stream works."""
    if not _within(_SHOW_S, lambda: _written(text)):
        with suppress(OSError), log.open("ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))


def call_hook(error: BaseException) -> None:
    """Call the program's own `sys.excepthook`: experiment trackers use it to mark failed runs."""
    if sys.excepthook is not sys.__excepthook__:
        _within(_HOOK_S, lambda: sys.excepthook(type(error), error, error.__traceback__))


def _written(text: str) -> bool:
    for stream in (sys.stderr, sys.__stderr__):
        try:
            stream.write(text)  # type: ignore[union-attr]  # None is caught below
            stream.flush()  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001, S112 - closed, replaced or broken by the program: the next one may work
            continue
        return True
    return False


def _within(limit_s: float, call: Callable[[], T]) -> T | None:
    """Return the result of a call in a separate thread; None if it raises or exceeds the time limit."""
    found: list[T] = []

    def run() -> None:
        with suppress(BaseException):
            found.append(call())

    helper = threading.Thread(target=run, name="dlaas-report", daemon=True)
    try:
        helper.start()
    except (RuntimeError, MemoryError):  # no memory for a stack, or the thread limit is reached
        run()
    else:
        helper.join(limit_s)
    return found[0] if found else None


# -- minimal report --------------------------------------------------------------------------------------------------


def minimal(error: BaseException, cells: CellMap) -> Report:
    """Describe class, message, cell and line, without any code of the exception's class."""
    names = class_names(error)
    message = arguments_text(error)
    frames = [(tb.tb_frame.f_code.co_filename, tb.tb_lineno) for tb in _traceback(error)]
    own = [line for path, line in frames if path == cells.script]
    where = None
    if own:
        label, line = cells.location(cells.script, own[-1])
        where = Where(label=label, line=line, first_line=line)
    said = f"{names[0]}: {message}" if message else names[0]
    rows = [f'  File "{path}", line {line}\n' for path, line in frames[-_FRAMES_MAX:]]
    text = cells.rewrite("Traceback (most recent call last):\n" + "".join(rows)) + f"{said}\n"
    try:
        return from_exception(names, message, where=where, traceback=text), text
    except Exception:  # noqa: BLE001 - not enough resources for the table of causes: the cause itself is known
        advice = "See the line and the log."
        failure = Failure(cause=Cause.YOUR_CODE, code="your_code", what=said, advice=advice, where=where)
        return failure, text


def _traceback(error: BaseException) -> Iterator[TracebackType]:
    tb = BaseException.__dict__["__traceback__"].__get__(error)
    while tb is not None:
        yield tb
        tb = tb.tb_next
