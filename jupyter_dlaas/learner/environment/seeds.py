"""One seed per job: every learner and every restart begins with the same random state.

So the code before the training (a random split, for example) gives the same result in each of them. The training itself
then uses a separate seed per learner (see `training_run`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import sys
from collections.abc import Callable
from typing import Any, Final

from jupyter_dlaas.learner.environment import import_hooks

__all__ = ["derive", "seed_all", "seed_of"]

_CUPY_SEED: Final = "CUPY_SEED"
"""Variable with which CuPy seeds the stream of a GPU when it is first used."""
_given: Final[list[str | None]] = [None]
"""Value that this process has given to the variable last."""


def _seed_cupy(seed: int, module: Any) -> None:
    """Seed the GPUs that have drawn numbers and those that will. A value of the variable from the user counts."""
    number = seed % 2**32
    if os.environ.get(_CUPY_SEED) in (None, _given[0]):
        os.environ[_CUPY_SEED] = _given[0] = str(number)
    owner = getattr(module, "_generator", None)
    for one in getattr(owner, "_random_states", {}).values():
        one.seed(number)
    get = getattr(owner, "get_random_state", None)
    if get is not None and not hasattr(get, "__wrapped__"):
        vars(owner)["get_random_state"] = vars(module)["get_random_state"] = _counted(get)


def _counted(get: Callable[[], Any]) -> Callable[[], Any]:
    """Return CuPy's function that all draws from its global streams call, with the number of `calls`."""

    @functools.wraps(get)
    def get_random_state() -> Any:
        vars(get_random_state)["calls"] += 1
        return get()

    vars(get_random_state)["calls"] = 0
    return get_random_state


def _seed_torch(seed: int, module: Any) -> None:
    """Seed all devices; in a learner without GPUs only the CPU.

    For each kind of accelerator that is not in use yet, `torch.manual_seed` records a stack trace. With three kinds,
    that takes 2 ms, for which a gang waits when a learner joins.
    """
    others = [getattr(module.version, "xpu", None), module.backends.mps.is_built(), hasattr(module, _custom(module))]
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and not any(others):
        module.default_generator.manual_seed(seed)
    else:
        module.manual_seed(seed)


def _custom(module: Any) -> str:
    """Return the name of the module of a kind of accelerator that another package adds, such as `npu`."""
    name: str = module._C._get_privateuse1_backend_name()
    return name


_SEEDERS: Final[dict[str, Callable[[int, Any], object]]] = {
    "numpy.random": lambda seed, module: module.seed(seed % 2**32),
    "torch": _seed_torch,
    "cupy.random": _seed_cupy,
    "tensorflow": lambda seed, module: module.random.set_seed(seed % 2**32),
}


def seed_of(job: str) -> int:
    """Return the seed of a job, which is the same for all its learners at every start."""
    return derive(job)


def derive(*parts: object) -> int:
    """Return a seed derived from values that identify its purpose."""
    text = ":".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def seed_all(seed: int, *, later: bool = False) -> None:
    """Seed Python, NumPy, torch, CuPy and TensorFlow if they are loaded; `later`: also if they are imported later."""
    random.seed(seed)
    for name, seeder in _SEEDERS.items():
        if later or name in sys.modules:
            import_hooks.after(name, functools.partial(seeder, seed))
