"""Whether the main thread of a learner moves: what its heartbeats tell of it. Asked by the control thread."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

__all__ = ["BEAT_S", "Beats"]

BEAT_S: Final = 0.5
_DEEPEST: Final = 64
_QUIET_S: Final = 1.0
"""Without a step for so long, beats say where the program is."""


class Beats:
    """One beat each half second, from the moment at which there are steps to be counted."""

    def __init__(self) -> None:
        main = threading.main_thread()
        assert main.ident is not None
        self._ident = main.ident
        self._thread = os.getpid()  # the main thread's own number; `native_id` is the parent's in a fork
        self._clock = time.pthread_getcpuclockid(main.ident)
        self.step: Callable[[], int | None] = lambda: None
        """How many steps were begun; None: no loop runs, and nobody can tell how long something may take."""
        self.waits_for_word: Callable[[], bool] = lambda: False
        """Whether the main thread waits for the guardian to tell how to go on."""
        self.talks: Callable[[], int] = lambda: 0
        """How many talks with the others were begun in the group in use: who began more waits for who began less."""
        self.where: Callable[[str, int, str], str] = lambda path, line, function: f"{path}, line {line}, {function}"
        """A place in the user's words."""
        self.describe: Callable[[str, int, str], dict[str, Any]] | None = None
        """The same place, with its lines, as a `Where` on the wire."""
        self.is_limited = False
        """The owner set a limit for learners that do nothing: then programs without steps beat, too, and sleep is no
        movement."""
        self.script = ""
        self._seen: object = None
        self._others_s = 0.0
        self._step: int | None = None
        self._step_s = 0.0

    def beat(self) -> dict[str, Any] | None:
        """The message; None while there is nothing to say."""
        step = self.step()
        if step is None and not self.is_limited:
            return None
        now = time.monotonic()
        if step is None and self._step_s == 0.0:
            self._step_s = now
        if step != self._step:
            self._step, self._step_s = step, now
        message: dict[str, Any] = {"t": "beat", "step": step, "moves": self._moves()}
        with suppress(RuntimeError):  # the group is lost: others tell that
            message["talks"] = self.talks()
        if self.waits_for_word():
            message["waits"] = True
        if now - self._step_s >= _QUIET_S:
            message |= self._place()
        return message

    def _moves(self) -> bool:
        """Whether the main thread computed or went on since the last beat, sleeps for a while, or waits for a child.

        A deadlock does none of these. Who sleeps wakes up by itself; a program that it called may take its time.
        """
        stack: list[tuple[int, int]] = []
        frame = sys._current_frames().get(self._ident)
        while frame is not None and len(stack) < _DEEPEST:
            stack.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        before, self._seen = self._seen, (time.clock_gettime_ns(self._clock), tuple(stack), self._children_ticks())
        if self.is_limited:
            return before != self._seen or self._other_threads_work()
        return before != self._seen or self._sleeps()

    def _other_threads_work(self) -> bool:
        """Return whether other threads computed for more than a hundredth of the time since the last beat."""
        others_s = time.process_time() - time.thread_time()
        before, self._others_s = self._others_s, others_s
        return others_s - before > BEAT_S / 100

    def _children_ticks(self) -> int:
        total = 0
        with suppress(OSError):
            for pid in Path(f"/proc/self/task/{self._thread}/children").read_text().split():
                with suppress(OSError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    total += int(fields[11]) + int(fields[12])
        return total

    def _sleeps(self) -> bool:
        with suppress(OSError):
            return "nanosleep" in Path(f"/proc/self/task/{self._thread}/wchan").read_text()
        return False

    def _place(self) -> dict[str, Any]:
        """The innermost line of the user's program, or of whatever runs if none of it is on the stack."""
        frame = first = sys._current_frames().get(self._ident)
        while frame is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        found: FrameType | None = frame or first
        if found is None:
            return {}
        place = (found.f_code.co_filename, found.f_lineno, found.f_code.co_name)
        message: dict[str, Any] = {"at": self.where(*place)}
        if self.describe is not None and found.f_code.co_filename == self.script:
            message["where"] = self.describe(*place)
        return message
