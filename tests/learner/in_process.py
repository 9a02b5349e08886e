"""A learner's run in this process: a program is halted at the head of its loop and resumes from its checkpoint."""

from __future__ import annotations

import io
import linecache
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.control import context
from jupyter_dlaas.learner.control.guardian_channel import Control
from jupyter_dlaas.learner.environment import seeds
from jupyter_dlaas.learner.training_run import run as running
from jupyter_dlaas.transfer import rng_state
from jupyter_dlaas.wire.codec import decode
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = ["SETUP", "run_with_halts", "start"]

SETUP = """
import collections, copy, itertools, random
import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
import jupyter_dlaas as dlaas
"""


def start(
    folder: Path, source: str, *, stop_at: int | None = None, rank: int = 0, job: str = "test-1", **spec: Any
) -> dict[str, Any] | None:
    """Run a program as a learner does, to its end or up to a boundary; returns its names, or None where it left."""
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(source)
    linecache.checkcache(str(script))
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(script))
    one = context.Context(
        job=job,
        job_dir=folder,
        spec=decode(JobSpec, {"name": "test", "checkpoint_every_s": 0.0, **spec}),
        member=rank,
        generation=0,
        rank=rank,
        world_size=1,
        seed=seeds.seed_of(job),
        control=Control(folder, rank),
        script=module.__dict__,
    )
    before, outside = sys.modules["__main__"], rng_state.snapshot()
    sys.modules["__main__"] = module
    context.enter(one)
    running._runs.clear()
    seeds.seed_all(one.seed)
    if stop_at is not None:
        running.run_of(one).internals.boundaries._stop_at = stop_at
    try:
        exec(compile(source, str(script), "exec", dont_inherit=True), module.__dict__)
        for act in one.at_end:
            act()
    except context.Leave:
        return None
    finally:
        checkpoint_files.settle()
        for run in running._runs:
            run.internals.metrics.close()
        for value in module.__dict__.values():
            if isinstance(value, io.IOBase):
                value.close()
        context._current.clear()
        running._runs.clear()
        sys.modules["__main__"] = before
        rng_state.put_back(outside)
    return module.__dict__


def run_with_halts(folder: Path, source: str, halts: Iterable[int] = (), **spec: Any) -> dict[str, Any]:
    """Run a program that is halted after so many boundaries each time, and return its names at the end."""
    for stop_at in halts:
        names = start(folder, source, stop_at=stop_at, **spec)
        if names is not None:
            return names
    names = start(folder, source, **spec)
    assert names is not None
    return names
