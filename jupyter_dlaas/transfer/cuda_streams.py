"""Random state of each GPU, also before CUDA is initialized, when a seed is only pending.

`torch.manual_seed` initializes no GPU: torch keeps the seed and applies it when a program first uses one. A notebook
that seeds and then sends its training cell has usually not used the GPU yet.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["put", "states"]


def states(torch: Any) -> list[Any]:
    """Return the state of each visible GPU, in their order; [] without GPUs, or if they were never seeded."""
    if torch.cuda.is_initialized():
        found: list[Any] = torch.cuda.get_rng_state_all()
        return found
    return _pending(torch)


def put(torch: Any, found: Sequence[Any]) -> None:
    """Restore the states of the GPUs, in their order, as far as there are as many here.

    A job with fewer GPUs than its notebook numbers them from 0, and so do its tensors.
    """
    restored = [state.clone() for state in found[: torch.cuda.device_count()]] if found else []
    if not restored:
        return

    def restore() -> None:
        for generator, state in zip(torch.cuda.default_generators, restored, strict=False):
            generator.set_state(state)

    # Before the initialization, it takes the place of a pending seed. As another pending call it would run before it.
    torch.cuda._lazy_call(restore, seed_all=True)


def _pending(torch: Any) -> list[Any]:
    """Return the states that the GPUs will have when CUDA is initialized, if they are known.

    A generator that is seeded and has drawn nothing has the seed as 8 bytes, and the offset 0 as 8 bytes: see
    `CUDAGeneratorImpl::get_state` in ATen.
    """
    tracker = getattr(torch.cuda, "_lazy_seed_tracker", None)
    for call in reversed(tracker.get_calls() if tracker is not None else []):
        held = inspect.getclosurevars(call[0]).nonlocals if call else {}
        if "restored" in held:
            return list(held["restored"])
        if isinstance(held.get("seed"), int):
            # device_count asks NVML: unlike is_available, it leaves the CUDA driver as it is
            state = struct.pack("<Qq", held["seed"] % 2**64, 0)
            return [torch.frombuffer(bytearray(state), dtype=torch.uint8) for _ in range(torch.cuda.device_count())]
    return []
