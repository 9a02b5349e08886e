"""Requests to stop, and programs that do not let them end them.

A request arrives as an exception: `Leave`, at a boundary of a training loop or from the handler of SIGTERM. A program
may catch it (`except:`, `finally: return`, `contextlib.suppress`) or handle SIGTERM itself. Its end is then no
completion, it passes no further boundary, and a program that continues is reported before it is killed.
"""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from jupyter_dlaas.learner.control.context import Context, Leave
from jupyter_dlaas.learner.reporting.notes import STOP_IGNORED, report

__all__ = ["StopRequests"]

_LOOK_S: Final = 0.5
_CAUGHT: Final = 4
"""The number of successive looks at which no code handles the request, after which the program continues without it."""
_KILLED: Final = "It is killed when its grace period ends."
_CATCHES: Final = (
    "The program caught the request to stop and continues{at}. " + _KILLED + " Write `except Exception:` instead of "
    "`except:`, `except BaseException:` or `finally: return`: it lets the request pass."
)
_HANDLES: Final = (
    "The program handles SIGTERM itself and continues{at}. " + _KILLED + " End the program in the handler, or check "
    "run.should_stop in the loop."
)


class StopRequests:
    """The handler of SIGTERM, and the watch over a program that was asked to stop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._is_over = False
        self._is_watched = False
        self._has_own_handler = False
        self._set_handler: Callable[..., Any] = signal.signal
        self.where: Callable[[str, int, str], str] | None = None
        """Describes a location for the user."""
        self.script = ""
        context.on_leave = self._watch

    def install(self) -> None:
        """Handle SIGTERM, and learn of handlers that the program sets itself."""
        set_handler = self._set_handler = signal.signal

        @functools.wraps(set_handler)
        def setting(number: int, handler: Any) -> Any:
            is_own = number == signal.SIGTERM and handler != self.on_term
            if is_own and (callable(handler) or handler == signal.SIG_IGN):
                handler = self._watched(handler)
            before = set_handler(number, handler)
            return getattr(before, "_dlaas_handler", before)

        set_handler(signal.SIGTERM, self.on_term)
        vars(signal)["signal"] = setting

    def _watched(self, handler: Any) -> Callable[..., Any]:
        """Return a program's own handler of SIGTERM that also notes the request."""

        def handle(*args: Any) -> Any:
            self._has_own_handler = True
            if handler == signal.SIG_IGN:
                self._watch()
                return None
            self._context.is_terminated = True
            self._watch()
            return handler(*args)

        vars(handle)["_dlaas_handler"] = handler
        return handle

    def on_term(self, *_: object) -> None:
        """Handle SIGTERM. Raises Leave."""
        self._context.is_terminated = True
        self._watch()
        raise Leave("terminated")

    def over(self) -> None:
        """Note that the program has ended. What is left is short, and SIGTERM must not interrupt it."""
        self._is_over = True
        if threading.current_thread() is threading.main_thread():
            self._set_handler(signal.SIGTERM, signal.SIG_IGN)

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            # Not a Thread: a signal handler may run while the main thread holds the locks of `threading`.
            _thread.start_new_thread(self._look, ())

    def _look(self) -> None:
        caught = 0
        while caught < _CAUGHT:
            time.sleep(_LOOK_S)
            if self._is_over:
                return
            caught = 0 if _is_handled() else caught + 1
        text = _HANDLES if self._has_own_handler else _CATCHES
        report(STOP_IGNORED, text.format(at=self._place()))

    def _place(self) -> str:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        if frame is None or self.where is None:
            return ""
        return f" in {self.where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)}"


def _is_handled() -> bool:
    """Return whether a thread is about to end because of the request: a `finally` or an `except` may save something."""
    exceptions: dict[int, Any] = sys._current_exceptions()
    for found in exceptions.values():
        error = found[1] if isinstance(found, tuple) else found  # a tuple before Python 3.12
        for _ in range(100):
            if error is None:
                break
            if issubclass(type(error), Leave):
                return True
            error = error.__context__
    return False
