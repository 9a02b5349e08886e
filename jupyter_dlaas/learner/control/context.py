"""The learner that this process is; `current()` returns None outside a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_dlaas.learner.control.guardian_channel import Control
from jupyter_dlaas.wire.protocol import JobSpec
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask

__all__ = ["Context", "Leave", "current", "enter"]


class Leave(SystemExit):
    """The exit of a learner that must leave, raised at a step boundary. `except Exception` does not catch it."""

    def __init__(self, why: str) -> None:
        super().__init__(0)
        self.why = why


@dataclass(slots=True)
class Context:
    """One learner, from its start to its result."""

    job: str
    job_dir: Path
    spec: JobSpec
    member: int
    generation: int
    rank: int
    world_size: int
    seed: int
    control: Control
    mask: Mask = NO_MASK
    """The mask for secrets among this process's initial environment variables."""
    is_joining: bool = False
    """True if the gang trains already; the learner receives its state from the others."""
    may_change: bool = False
    """True if learners may join and leave during training."""
    has_gpus: bool = True
    """True if the learner was started with GPUs; the program may change CUDA_VISIBLE_DEVICES itself."""
    script: dict[str, Any] = field(default_factory=dict)
    """The global names of the running train.py."""
    on_entry: Callable[[], object] = lambda: None
    """Called between the cells above the training cell and the training cell."""
    origins: Any = None
    """The objects of the outputs at that moment (`shared_objects.Origins`), if recorded."""
    contents: Any = None
    """The content of the program's other objects at that moment (`changed_names.ObjectContents`), if recorded."""
    is_terminated: bool = False
    """True once SIGTERM was received."""
    has_left: bool = False
    """True once a boundary has asked the program to stop by an exception: what follows does not count."""
    on_leave: Callable[[], None] = lambda: None
    """Called before that exception is raised."""
    end_now: Callable[[], None] = lambda: None
    """Ends the process as if the program had not caught that exception. Does not return."""
    is_orphaned: bool = False
    """True if no guardian has answered for so long that this learner ends itself."""
    before_results: list[Callable[[], object]] = field(default_factory=list)
    """Called when user code has ended, before results are stored."""
    at_end: list[Callable[[], dict[str, Any]]] = field(default_factory=list)
    """Called when user code has ended or left; each returns fields of result.json."""
    started_s: float = field(default_factory=time.time)

    @property
    def output_dir(self) -> Path:
        folder = self.job_dir / "output"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


_current: list[Context] = []


def current() -> Context | None:
    """Return the context of this process; None in a process that it started (a data worker)."""
    return _current[0] if _current and _current[0].control.pid == os.getpid() else None


def enter(context: Context) -> None:
    """Set the context of this process. Called once, at the learner's start."""
    _current[:] = [context]
