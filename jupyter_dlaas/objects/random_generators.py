"""Random generators as parts of a checkpoint: their states are read and restored in place."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from typing import Any, Final

from jupyter_dlaas.objects.array_digests import Budget
from jupyter_dlaas.objects.object_aspects import Aspect

__all__ = ["Generator", "generator_of"]


class Generator(Aspect):
    """State of a random generator."""

    def __init__(
        self, get: Callable[[Any], Any], put: Callable[[Any, Any], object], seed: Callable[[Any, int], object]
    ) -> None:
        self._get, self._put, self.seed = get, put, seed

    def read(self, value: Any, budget: Budget) -> bytes:
        return pickle.dumps(self._get(value), protocol=5)

    def put(self, value: Any, carried: bytes) -> None:
        self._put(value, pickle.loads(carried))  # noqa: S301 - pickled by this job


def _bits(generator: Any) -> tuple[Any, int]:
    """Return a bit generator's state, and the number of generators spawned from its seed, which that lacks."""
    return generator.state, getattr(getattr(generator, "seed_seq", None), "n_children_spawned", 0)


def _put_bits(generator: Any, state: Any) -> None:
    spawned = 0
    if isinstance(state, tuple):  # checkpoints of former versions hold the state alone
        state, spawned = state
    generator.state = state
    if missing := max(spawned - _bits(generator)[1], 0):
        generator.seed_seq.spawn(missing)


def _seed_bits(generator: Any, seed: int) -> None:
    generator.state = type(generator)(seed).state


_PYTHON: Final = Generator(
    lambda rng: rng.getstate(), lambda rng, state: rng.setstate(state), lambda rng, n: rng.seed(n)
)
_BITS: Final = Generator(_bits, _put_bits, _seed_bits)
_NUMPY: Final = Generator(
    lambda rng: _bits(rng.bit_generator),
    lambda rng, state: _put_bits(rng.bit_generator, state),
    lambda rng, n: _seed_bits(rng.bit_generator, n),
)
_LEGACY: Final = Generator(
    lambda rng: rng.get_state(), lambda rng, state: rng.set_state(state), lambda rng, n: rng.seed(n % 2**32)
)
_TORCH: Final = Generator(
    lambda rng: rng.get_state(), lambda rng, state: rng.set_state(state), lambda rng, n: rng.manual_seed(n)
)


def generator_of(value: Any) -> Generator | None:
    """Return the methods to read and restore a random generator's state; None for other objects."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _PYTHON
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        for kind, aspect in ((numpy.Generator, _NUMPY), (numpy.BitGenerator, _BITS), (numpy.RandomState, _LEGACY)):
            if isinstance(value, kind):
                return aspect
    torch: Any = sys.modules.get("torch")
    return _TORCH if torch is not None and isinstance(value, torch.Generator) else None
