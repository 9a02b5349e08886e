"""Preloading: imports that a process makes before others are forked from it, and the conditions for forking.

Zygotes of a pool and of a job follow the same rules, each of which was measured to matter: thread variables are 1
before the first import; the process has one thread for its whole life; it never touches CUDA.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.runtime.system.process import thread_count

__all__ = ["LEAN", "PADDING", "QUIET", "TORCH", "has_memory", "load", "places", "unfit"]

LEAN: Final = "lean"
TORCH: Final = "torch"
PADDING: Final = "DLAAS_PADDING"
"""Long variable that reserves space in which forks write the environment that /proc shows of them."""
QUIET: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Environment variables during the import of libraries that read them at import time."""
MEMORY_LEAST_BYTES: Final = 512 << 20
_OURS: Final = (
    "jupyter_dlaas.learner.process.main",
    "jupyter_dlaas.learner.process.rehearsal",
    "jupyter_dlaas.learner.training_run.run",
    "jupyter_dlaas.transfer.results",
    "jupyter_dlaas.learner.training_run.pushed",
)
_MODULES: Final = {
    LEAN: (),
    # torch.optim loads torch._dynamo at its first use, which takes about a second.
    TORCH: (
        "numpy",
        "numpy.random",
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "torch.nn.parallel",
        "torch.utils.data",
        "torch.optim",
        "jupyter_dlaas.learner.elastic.data_parallel",
        "jupyter_dlaas.learner.elastic.gradient_snapshot",
        # What a loop with `run` imports at its first `prepare`, change of size and checkpoint.
        "jupyter_dlaas.learner.training_run.preparation",
        "jupyter_dlaas.learner.training_run.membership",
        "jupyter_dlaas.learner.checkpoint.namespace",
        "jupyter_dlaas.transfer.pushed_objects",
    ),
}


def load(kind: str) -> None:
    """Import what all learners import, or what those that train with PyTorch import. Raise what the imports raise."""
    for name in (*_OURS, *_MODULES[kind]):
        importlib.import_module(name)


def places() -> Mapping[str, int]:
    """Return the directories on the import path with the time of their last change."""
    found = {}
    for entry in sys.path:
        with suppress(OSError):
            found[entry] = os.stat(entry).st_mtime_ns  # noqa: PTH116 - a few of these calls precede each fork
    return found


def unfit(seen: Mapping[str, int]) -> str | None:
    """Return the reason why this process must not fork, or None. `seen` holds its `places` before its imports."""
    if thread_count() != 1:
        return "the process has more than one thread; its forks could hang"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised in this process; its forks cannot use it"
    if places() != seen:
        return "the environment's packages changed"
    return None


def has_memory() -> bool:
    """Return whether the machine has enough memory to spare for an idle process."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 > MEMORY_LEAST_BYTES
    return True
