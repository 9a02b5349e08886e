"""One seed per job: every learner and every restart begins with the same random numbers.

So the cells before the training (a random split, say) give the same on each of them. Training itself then gets its own
numbers per learner (see `running`).
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import random
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

__all__ = ["derive", "seed_all", "seed_of"]

_SEEDERS: Final[dict[str, Callable[[ModuleType, int], object]]] = {
    "numpy.random": lambda module, seed: module.seed(seed % 2**32),
    "torch": lambda module, seed: module.manual_seed(seed),
}


def seed_of(job: str) -> int:
    """The seed of a job: the same for all its learners, at every start."""
    return derive(job)


def derive(*parts: object) -> int:
    """A seed from anything that names what it is for."""
    text = ":".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def seed_all(seed: int, *, later: bool = False) -> None:
    """Seed Python, NumPy and torch as far as they are loaded; `later`: the others as soon as they are."""
    random.seed(seed)
    missing = {}
    for name, seeder in _SEEDERS.items():
        module = sys.modules.get(name)
        if module is not None:
            seeder(module, seed)
        else:
            missing[name] = seeder
    if later and missing:
        sys.meta_path.insert(0, _Seeding(missing, seed))


class _Seeding(importlib.abc.MetaPathFinder):
    """Lets others find a module and seeds it once it is loaded."""

    def __init__(self, missing: dict[str, Callable[[ModuleType, int], object]], seed: int) -> None:
        self._missing = missing
        self._seed = seed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        seeder = self._missing.pop(fullname, None)
        if seeder is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                seeder(module, self._seed)

            loader.exec_module = exec_module
        return spec
