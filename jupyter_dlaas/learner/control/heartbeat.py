"""Heartbeats: progress of the learner's main thread, observed by the control thread."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from jupyter_dlaas.wire.learner_messages import Heartbeat
from jupyter_dlaas.wire.protocol import Where

__all__ = ["BEAT_S", "Beats"]

BEAT_S: Final = 0.5
_DEEPEST: Final = 64
_QUIET_S: Final = 1.0
"""Seconds without a step after which heartbeats include the program's location."""


class Beats:
    """The heartbeats of a learner, one each half second once there are steps to count."""

    def __init__(self) -> None:
        main = threading.main_thread()
        assert main.ident is not None
        self._ident = main.ident
        self._thread = os.getpid()  # the main thread's own id; in a fork, `native_id` is the parent's
        self._clock = time.pthread_getcpuclockid(main.ident)
        self.step: Callable[[], int | None] = lambda: None
        """Returns the number of steps begun; None if no loop runs, so that no limit for a step applies."""
        self.awaits_guardian: Callable[[], bool] = lambda: False
        """Returns whether the main thread waits for a decision of the guardian."""
        self.collectives_started: Callable[[], int] = lambda: 0
        """Returns the number of collectives started in the current group: learners ahead wait for those behind."""
        self.where: Callable[[str, int, str], str] = lambda path, line, function: f"{path}, line {line}, {function}"
        """Describes a location for the user."""
        self.describe: Callable[[str, int, str], Where] | None = None
        """Describes the same location with its source lines."""
        self.is_limited = False
        """True if the job has a hang limit (`hang_after_s`).

        Programs without steps send heartbeats then, too, and sleeping does not count as progress.
        """
        self.script = ""
        self._seen: object = None
        self._others_s = 0.0
        self._step: int | None = None
        self._step_s = 0.0

    def beat(self) -> Heartbeat | None:
        """Return the next heartbeat message; None if there is nothing to report."""
        step = self.step()
        if step is None and not self.is_limited:
            return None
        now = time.monotonic()
        if step is None and self._step_s == 0.0:
            self._step_s = now
        if step != self._step:
            self._step, self._step_s = step, now
        collectives = 0
        with suppress(RuntimeError):  # the group is lost, which is reported elsewhere
            collectives = self.collectives_started()
        place, where = self._place() if now - self._step_s >= _QUIET_S else ("", None)
        return Heartbeat(
            step=step,
            is_moving=self._moves(),
            collectives_started=collectives,
            awaits_guardian=self.awaits_guardian(),
            place=place,
            where=where,
        )

    def _moves(self) -> bool:
        """Return whether the main thread made progress since the last heartbeat, sleeps, or waits for active children.

        A deadlock does none of these. A sleeping thread wakes by itself, and a child process may take its time.
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
        """Return whether other threads used more than 1 % of the time since the last heartbeat."""
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

    def _place(self) -> tuple[str, Where | None]:
        """Return the innermost line of the user's program, or of other code if the program is not on the stack."""
        frame = first = sys._current_frames().get(self._ident)
        while frame is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        found: FrameType | None = frame or first
        if found is None:
            return "", None
        place = (found.f_code.co_filename, found.f_lineno, found.f_code.co_name)
        is_described = self.describe is not None and found.f_code.co_filename == self.script
        return self.where(*place), self.describe(*place) if is_described and self.describe is not None else None
