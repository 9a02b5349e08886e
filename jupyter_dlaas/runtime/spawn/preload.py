"""What a process imports before others are forked from it, and what must hold of it then.

Zygotes (for many jobs) and nurseries (for one) go by the same rules, each of which was measured to matter: thread
variables are 1 before the first import; one thread for ever; nothing of CUDA.
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

__all__ = ["LEAN", "QUIET", "ROOM", "TORCH", "has_memory", "load", "places", "unfit"]

LEAN: Final = "lean"
TORCH: Final = "torch"
ROOM: Final = "DLAAS_ROOM"
"""A long variable that only makes room, where forks write the environment that /proc shows of them."""
QUIET: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""The environment's, while libraries are imported that read it then."""
MEMORY_LEAST_BYTES: Final = 512 << 20
_OURS: Final = (
    "jupyter_dlaas.learner.process.main",
    "jupyter_dlaas.learner.training_run.run",
    "jupyter_dlaas.transfer.results",
    "jupyter_dlaas.learner.training_run.pushed",
)
_MODULES: Final = {
    LEAN: (),
    # torch._dynamo: torch.optim loads it at its first use, which takes about a second.
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
    ),
}


def load(kind: str) -> None:
    """Import what learners import: all of them, or those that train with PyTorch. Raises what the imports raise."""
    for name in (*_OURS, *_MODULES[kind]):
        importlib.import_module(name)


def places() -> Mapping[str, int]:
    """The folders that packages come from, with the time of their last change."""
    found = {}
    for entry in sys.path:
        with suppress(OSError):
            found[entry] = os.stat(entry).st_mtime_ns  # noqa: PTH116 - a few of these stand before each fork
    return found


def unfit(seen: Mapping[str, int]) -> str | None:
    """Why nobody may be forked from this process, if so. `seen`: its `places` when it began to import."""
    if thread_count() != 1:
        return "a second thread runs here; forks of it could hang"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA was touched here; forks of it cannot use it"
    if places() != seen:
        return "the environment's packages changed"
    return None


def has_memory() -> bool:
    """Whether the machine has so much to spare that a process may wait here for what might come."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 > MEMORY_LEAST_BYTES
    return True
