"""Interrupts of a running cell that its code caught: the cell has then ended early, and without an error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["InterruptWatch"]


class _Counted:
    """A signal handler that counts its calls and acts as the former one.

    `__call__` is a property, so that the frame that counts has ended when the former handler raises KeyboardInterrupt:
    otherwise the traceback of every interrupt would end in this file.
    """

    def __init__(self) -> None:
        self.former: Callable[[int, FrameType | None], Any] = signal.default_int_handler
        self.count = 0

    @property
    def __call__(self) -> Callable[[int, FrameType | None], Any]:
        self.count += 1
        return self.former


class InterruptWatch:
    """Count of the interrupts of running cells. The former handler acts as before, and is back when they have ended."""

    def __init__(self) -> None:
        self._handler = _Counted()
        self._cells = 0  # running ones: `%run other.ipynb` runs cells inside of a cell

    def begin(self) -> int:
        """Observe interrupts of a cell; return the number before it."""
        self._cells += 1
        former = signal.getsignal(signal.SIGINT)
        if self._cells == 1 and callable(former) and threading.current_thread() is threading.main_thread():
            if former is not self._handler:
                self._handler.former = former
            signal.signal(signal.SIGINT, self._handler)
        return self._handler.count

    def end(self, before: int) -> bool:
        """Restore the handler, unless the cell has set another one; return whether the cell was interrupted."""
        self._cells -= 1
        is_main = threading.current_thread() is threading.main_thread()
        if self._cells == 0 and is_main and signal.getsignal(signal.SIGINT) is self._handler:
            signal.signal(signal.SIGINT, self._handler.former)
        return self._handler.count > before
