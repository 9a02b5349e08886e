"""Interrupts of a running cell that its code caught: the cell has then ended early, and without an error."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["InterruptWatch"]


class InterruptWatch:
    """Count of the interrupts of running cells. The former handler acts as before, and is back when they have ended."""

    def __init__(self) -> None:
        self._count = 0
        self._cells = 0  # running ones: `%run other.ipynb` runs cells inside of a cell
        self._former: Any = None

    def begin(self) -> int:
        """Observe interrupts of a cell; return the number before it."""
        self._cells += 1
        former = signal.getsignal(signal.SIGINT)
        if self._cells == 1 and callable(former) and threading.current_thread() is threading.main_thread():
            self._former = former
            signal.signal(signal.SIGINT, self._interrupted)
        return self._count

    def end(self, before: int) -> bool:
        """Restore the handler, unless the cell has set another one; return whether the cell was interrupted."""
        self._cells -= 1
        if self._cells == 0 and self._former is not None:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and signal.getsignal(signal.SIGINT) == self._interrupted:
                signal.signal(signal.SIGINT, self._former)
            self._former = None
        return self._count > before

    def _interrupted(self, number: int, frame: FrameType | None) -> Any:
        self._count += 1
        return self._former(number, frame)
