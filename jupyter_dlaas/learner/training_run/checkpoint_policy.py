"""Checkpoint policy of a run. A snapshot is taken between two steps and written while training continues."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.training_run import checkpoint_state
from jupyter_dlaas.wire.protocol import Elastic

if TYPE_CHECKING:
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["Add", "is_due", "save"]

OUTSIDE: Final = "dlaas-checkpoints"
"""The directory for `run.checkpoint()` outside a job, in the working directory. Nothing reads it automatically."""
FIRST_S: Final = 1.0
"""The maximum time in seconds to the first checkpoint of a job that resizes automatically by checkpoint and restart.

Without a checkpoint, no other size is tried.
"""
_IN_PARTS: Final = (
    "[no checkpoint on request: each learner holds a part of the state, so all of them must call run.checkpoint()]"
)
Add = Callable[[Path], dict[str, Any]]
"""A function that returns the state of a framework's own loop, and writes larger objects into the given folder."""


def is_due(run: RunState) -> bool:
    """Return whether a checkpoint is due at this boundary, by time or on request."""
    if run.wants_checkpoint:
        return run.rank == 0 or bool(run.checkpoint_hooks)
    context = run.context
    if run.rank or context is None:
        return False
    if run.checkpoint_hooks and run.world_size > 1:
        if run.boundaries.wants_checkpoint:
            run.boundaries.kept = run.boundaries.asked
            print(_IN_PARTS, file=sys.stderr, flush=True)
        return False
    if run.boundaries.wants_checkpoint:
        return True
    every_s = context.spec.checkpoint_every_s
    if not run.has_checkpoint and context.spec.elastic is Elastic.AUTO and run.membership is None:
        every_s = min(every_s or math.inf, FIRST_S)
    return every_s > 0 and time.monotonic() - run.saved_s >= every_s and not checkpoint_files.is_busy()


def save(run: RunState, position: Position, add: Add | None = None, first: Callable[[], object] | None = None) -> None:
    """Take a snapshot, and write it in the background while training continues.

    An OSError is printed, and training continues without this checkpoint. `first`: writes what the checkpoint depends
    on, before it.
    """
    context = run.context
    run.wants_checkpoint = False
    run.boundaries.kept = asked = run.boundaries.asked
    run.has_checkpoint = True
    content, left_out = checkpoint_state.content_of(run, is_framework=add is not None)
    try:
        write = checkpoint_files.take(
            context.job_dir if context else Path(OUTSIDE).absolute(),
            position,
            content,
            generation=context.generation if context else 0,
            learners=run.world_size,
            trained=run.trained,
            asked=asked,
            left_out=left_out,
            add=add,
        )
    except OSError as error:
        print(f"[no checkpoint at step {run.step}: {error}]", file=sys.stderr, flush=True)
        return
    finally:
        run.saved_s = time.monotonic()
    send = context.control.send if context is not None else lambda _: None
    checkpoint_files.write_later(write, position.step, send, first)
