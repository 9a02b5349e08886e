"""Which learner of which job this process is; None outside the service."""

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
    """Raised at a step boundary in a learner that is told to leave: no error, so `except Exception` lets it pass."""

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
    """The secrets among the variables that this process was started with."""
    is_joining: bool = False
    """The others train already; the state comes from them."""
    may_change: bool = False
    """Learners may join and leave while the others train."""
    has_gpus: bool = True
    """As it was started: the program may set CUDA_VISIBLE_DEVICES itself."""
    script: dict[str, Any] = field(default_factory=dict)
    """The names of train.py, as it runs."""
    is_terminated: bool = False
    """SIGTERM came."""
    is_orphaned: bool = False
    """No guardian answered for so long that this learner ends itself."""
    before_results: list[Callable[[], object]] = field(default_factory=list)
    """Called when user code ended, before results are stored."""
    at_end: list[Callable[[], dict[str, Any]]] = field(default_factory=list)
    """Called when user code ended or left; each gives fields of result.json."""
    started_s: float = field(default_factory=time.time)

    @property
    def output_dir(self) -> Path:
        folder = self.job_dir / "output"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


_current: list[Context] = []


def current() -> Context | None:
    """The context of this very process. A process that it started (a data worker) has none."""
    return _current[0] if _current and _current[0].control.pid == os.getpid() else None


def enter(context: Context) -> None:
    """Called once, by the runner."""
    _current[:] = [context]
