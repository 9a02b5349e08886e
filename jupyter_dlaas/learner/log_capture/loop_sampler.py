"""A sampler of the program's own loops: reads their positions twice a second from the control thread.

It serves loops whose end no framework, progress bar or printed line reveals. The loops themselves are not slowed down.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.log_capture import recorder
from jupyter_dlaas.learner.log_capture.log_position import Spot
from jupyter_dlaas.learner.log_capture.loop_progress import Frame, Loops, Program
from jupyter_dlaas.learner.reporting.progress import Meter
from jupyter_dlaas.learner.training_run import run

__all__ = ["Sampler", "names_in"]

_DEEPEST: Final = 200
_OPTIMIZED: Final = 0x1
"""The flag of function code, whose variables are not in a dict."""
_LIVE_LOCALS: Final = sys.version_info >= (3, 13)
"""True if a frame's `f_locals` is a view of its variables (PEP 667); before, it is a copy that the frame keeps."""
_READERS: Final = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack"})
"""Functions through which a program may use that copy itself."""


class Sampler:
    """The sampler: reads the main thread's stack and reports the progress of its loops."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._script = str(context.job_dir / "train.py")
        self._files = str(context.job_dir / "files")
        self._programs: dict[str, Program | None] = {}
        self._loops = Loops()
        self._meter = Meter(context.job_dir / "progress.json")
        self._is_over = False

    def look(self) -> None:
        """Take one sample. An error stops the sampling, not the learner."""
        if self._is_over:
            return
        try:
            spot = self._loops.look(self._stack())
        except Exception as error:  # noqa: BLE001 - the program's objects may do anything
            self._is_over = True
            print(f"[loop progress is not shown: {type(error).__name__}: {error}]", file=sys.__stderr__)
            return
        if spot is not None:
            self._tell(spot)

    def end(self) -> None:
        """Stop when the program's loops have ended."""
        self._is_over = True
        if run.existing_run() is None:
            self._meter.tell_last()

    def _tell(self, spot: Spot) -> None:
        one = recorder.made_recorder()
        if one is not None:
            one.loops(spot)
        elif run.existing_run() is None:
            self._meter.show(spot.done or 0, spot.epochs, spot.step or 0, spot.steps, spot.fraction)

    def _stack(self) -> list[Frame]:
        """Return the user's part of the main thread's stack, outermost first."""
        found: list[Frame] = []
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        frames: list[FrameType] = []
        while frame is not None and len(frames) < _DEEPEST:
            frames.append(frame)
            frame = frame.f_back
        for frame in reversed(frames):
            program = self._program(frame.f_code.co_filename)
            names = names_in(frame) if program is not None else None
            if program is not None:
                if names is None:
                    break
                code = frame.f_code
                found.append(Frame(program, frame.f_lineno, code.co_name, code.co_firstlineno, names, id(frame)))
        return found

    def _program(self, path: str) -> Program | None:
        if path not in self._programs:
            is_script = path == self._script
            known = None
            if is_script or path.startswith(self._files):
                try:
                    text = Path(path).read_text(encoding="utf-8", errors="replace")
                    known = Program(text, entry_alone=is_script and bool(self._context.spec.cells))
                except (OSError, SyntaxError, ValueError, RecursionError):
                    known = None
            self._programs[path] = known
        return self._programs[path]


def names_in(frame: FrameType) -> dict[str, Any] | None:
    """Return the variables visible in a frame; None if reading them could affect the program.

    Before Python 3.13 the frame keeps a copy of its variables, which would extend the life of a batch.
    """
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        return frame.f_globals
    if _LIVE_LOCALS:
        return {**frame.f_globals, **frame.f_locals}
    if frame.f_trace is not None or sys.gettrace() is not None or _reads_locals(code):
        return None
    copy = frame.f_locals
    found = {**frame.f_globals, **copy}
    copy.clear()
    return found


def _reads_locals(code: CodeType) -> bool:
    return not _READERS.isdisjoint(code.co_names)
