"""Exceptions of user code, described in terms of the user's cells: "cell [7], line 3"."""

from __future__ import annotations

import builtins
import dis
import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.failures.diagnosis import from_exception
from jupyter_dlaas.wire.protocol import Cause, Failure, Where

__all__ = ["arguments_text", "class_names", "failure_of", "in_cells"]

_OURS: Final = str(Path(__file__).parent.parent.parent)
_LONGEST: Final = 20_000
_ARGUMENT_MAX: Final = 500
_CAUSES_MAX: Final = 10
_ARGUMENTS_MAX: Final = 4
_NUMBER_MAX: Final = 10**100
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_RAISED: Final = "The program raises this error itself in this line: check the condition that leads to it."
_RAISABLE: Final = ("your_code", "warning_as_error")
"""Codes of failures that say little if the program itself raises the exception."""
_IN_WORKER: Final = re.compile(r"Caught \w+ in (.+)\.\nOriginal Traceback")
_QUOTED: Final = "Traceback (most recent call last):\n"
_QUOTED_STACK: Final = "\nfrom user code:\n"
"""Line of torch.compile's messages before the program's stack."""
_QUOTED_ERROR: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: (.*))?$", re.MULTILINE)


def _is_ours(path: str) -> bool:
    return path.startswith((_OURS, "<frozen"))


def _user_part(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback without our own outer frames; the whole traceback if all frames are ours."""
    inner = tb
    while inner is not None and _is_ours(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner or tb


def _frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, frame.f_code.co_name


def in_cells(error: BaseException, cells: CellMap) -> str:
    """Return the traceback for the log: with cells, without our frames, of bounded length."""
    text = "".join(traceback.format_exception(type(error), error, _user_part(error.__traceback__)))
    return _clipped(cells.rewrite(text), _LONGEST)


def _clipped(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - longest:,} characters left out …\n{text[-half:]}"


def failure_of(
    error: BaseException, cells: CellMap, own_folder: Path, *, is_alone: bool = False, has_gpus: bool = True
) -> Failure:
    """Return the failure for an exception that ended user code. A group is described by its first exception."""
    trace = in_cells(error, cells)
    first, others = _first_of_group(error)
    where = _where(first, cells, own_folder) or _where(error, cells, own_folder)
    names, message = class_names(first), _message(first)
    failure = from_exception(names, message, where=where, traceback=trace, is_alone=is_alone, has_gpus=has_gpus)
    if type(first) is KeyboardInterrupt and _is_raised(first):  # not from a signal: retrying cannot help
        failure = replace(failure, cause=Cause.YOUR_CODE, code="your_code", advice=_RAISED)
        failure = replace(failure, what=f"KeyboardInterrupt: {message}" if message else "KeyboardInterrupt")
    elif failure.code in _RAISABLE and where is not None and _is_raised_by_user(first, cells, own_folder):
        failure = replace(failure, code="your_code", advice=_RAISED)
    if failure.code == "your_code":
        failure = _quoted(failure, first, has_gpus=has_gpus)
    if failure.code == "your_code":
        with suppress(Exception):  # the methods of a cause may fail in any way
            failure = _caused(failure, first, cells, own_folder, has_gpus=has_gpus)
    if first is not error:
        more = f" and {others} more" if others else ""
        failure = replace(failure, what=f"{failure.what} ({class_names(error)[0]}{more})")
    return failure


def _quoted(failure: Failure, error: BaseException, *, has_gpus: bool) -> Failure:
    """Return the failure with cause and advice of the error whose traceback its message quotes, if any.

    So do process groups, searches over parameters, `tf.data`, and programs that raise `traceback.format_exc()`.
    """
    whole = _text(error)
    _, header, text = whole.rpartition(_QUOTED)
    found = _QUOTED_ERROR.search(text)
    if not header or found is None or _IN_WORKER.match(whole):
        return failure
    cls = getattr(builtins, found[1], Exception)
    bases = [_class_name(base) for base in cls.__mro__] if isinstance(cls, type) else ["Exception"]
    quoted = from_exception(
        [found[1], *bases], found[2] or "", where=None, traceback=text, is_alone=True, has_gpus=has_gpus
    )
    failure = replace(failure, what=f"{failure.what} (caused by {quoted.what})")
    if quoted.code == "your_code":
        return failure
    return replace(failure, cause=quoted.cause, code=quoted.code, advice=quoted.advice)


def _caused(failure: Failure, error: BaseException, cells: CellMap, own_folder: Path, *, has_gpus: bool) -> Failure:
    """Return the failure with cause, advice and place of the known error that this one was raised from, if any."""
    for _ in range(_CAUSES_MAX):
        cause = error.__cause__
        if not isinstance(cause, Exception) or _is_remote(cause):
            break
        error, text = cause, in_cells(cause, cells)
        found = from_exception(
            class_names(error), _message(error), where=None, traceback=text, is_alone=True, has_gpus=has_gpus
        )
        if found.code != "your_code":
            is_own = any(_is_own(path, cells, own_folder) for path, _, _ in _frames(error))
            where = _where(error, cells, own_folder) if is_own else failure.where
            what = f"{failure.what} (caused by {found.what})"
            return replace(failure, cause=found.cause, code=found.code, advice=found.advice, what=what, where=where)
    return failure


def _first_of_group(error: BaseException) -> tuple[BaseException, int]:
    """Return the first exception that is not a group, and the number of other exceptions."""
    others = 0
    while isinstance(error, BaseExceptionGroup):
        others += len(error.exceptions) - 1
        error = error.exceptions[0]
    return error, others


def _is_raised(error: BaseException) -> bool:
    """Return whether a `raise` statement raised it, not a signal handler or a C library."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb is not None and tb.tb_frame.f_code.co_code[tb.tb_lasti] == _RAISE


def _is_raised_by_user(error: BaseException, cells: CellMap, own_folder: Path) -> bool:
    """Return whether a `raise` in the user's own code raised it."""
    *_, path = (cells.script, *(one[0] for one in _frames(error)))
    return _is_raised(error) and _is_own(path, cells, own_folder)


def _where(error: BaseException, cells: CellMap, own_folder: Path) -> Where | None:
    where: Where | None = None
    if isinstance(error, SyntaxError) and _is_own(error.filename, cells, own_folder) and error.lineno is not None:
        where = cells.where(str(error.filename), error.lineno, None)
    else:
        frames = [one for one in _frames(error) if not _is_ours(one[0])]
        users = [one for one in frames if _is_own(one[0], cells, own_folder)]
        if users or frames:
            where = cells.where(*(users or frames)[-1])
    for path, line, function in _FRAME.findall(_worker_traceback(error)):
        if _is_own(path, cells, own_folder):
            where = cells.where(path, int(line), function)
    return where


def _is_own(path: object, cells: CellMap, own_folder: Path) -> bool:
    """Return whether a file is the program or one of the user's modules that were sent with it."""
    return isinstance(path, str) and (path == cells.script or path.startswith(str(own_folder)))


def _worker_traceback(error: BaseException) -> str:
    """Return the traceback text that an error quotes, such as that of the worker process in which it arose, or ""."""
    cause = error.__cause__
    if cause is not None and _is_remote(cause):
        return _text(cause)
    text = _text(error)
    return text if _IN_WORKER.match(text) or _QUOTED in text or _QUOTED_STACK in text else ""


def _is_remote(error: BaseException) -> bool:
    """Return whether an exception only holds the traceback text of another process."""
    return class_names(error)[0] in ("RemoteTraceback", "_RemoteTraceback")


def _message(error: BaseException) -> str:
    """Return the message of an exception, without a traceback that it quotes."""
    text = _text(error)
    found = _IN_WORKER.match(text)
    if found is None:
        return text.partition(_QUOTED)[0]
    last = text.rstrip().rpartition("\n")[2].removeprefix(f"{class_names(error)[0]}: ")
    return f"{last} (in {found[1]})"


def _text(error: BaseException) -> str:
    """Return the exception's text, of bounded length; its arguments if its `__str__` fails."""
    try:
        return _clipped(str(error), _LONGEST)
    except Exception:  # noqa: BLE001 - the `__str__` of any exception may fail in any way
        return arguments_text(error)


# -- without code of the exception's class ---------------------------------------------------------------------------


def class_names(error: BaseException) -> list[str]:
    """Return the names of the exception's class and its base classes, in method resolution order."""
    return [_class_name(cls) for cls in type.__dict__["__mro__"].__get__(type(error))]


def _class_name(cls: type) -> str:
    name: str = type.__dict__["__name__"].__get__(cls)
    return name[:_ARGUMENT_MAX]


def arguments_text(error: BaseException) -> str:
    """Return the exception's arguments as text, as far as they are plain values."""
    parts = []
    for one in BaseException.__dict__["args"].__get__(error)[:_ARGUMENTS_MAX]:
        kind = type(one)
        if kind is str:
            parts.append(one[:_ARGUMENT_MAX])
        elif kind in (float, bool, type(None)) or (kind is int and abs(one) < _NUMBER_MAX):
            parts.append(repr(one))
        else:
            parts.append(f"<{_class_name(kind)}>")
    return ", ".join(parts)
