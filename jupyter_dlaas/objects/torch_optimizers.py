"""Pickling of PyTorch optimisers with the attributes that their classes add."""

from __future__ import annotations

import sys
from typing import Any, Final

__all__ = ["reduce_state"]

_NOT_STORED: Final = ("_optimizer_", "_zero_grad_profile_name", "_warned_")
"""Prefixes of attributes that torch creates itself: hooks and names for the profiler."""


def reduce_state(value: Any) -> Any:
    """Return the reduction of an optimiser with all its attributes; NotImplemented for other objects.

    `Optimizer.__getstate__` returns defaults, state and parameter groups only: LBFGS loses its parameters, and wrappers
    such as SAM or Lookahead the optimiser inside. A class with its own pickling is left alone.
    """
    torch: Any = sys.modules.get("torch")
    base = getattr(getattr(torch, "optim", None), "Optimizer", None)
    if base is None or not isinstance(value, base):
        return NotImplemented
    usual = {"__getstate__": base.__getstate__, "__reduce__": object.__reduce__, "__reduce_ex__": object.__reduce_ex__}
    if any(getattr(type(value), name) is not method for name, method in usual.items()):
        return NotImplemented
    reduced = value.__reduce_ex__(5)
    state = reduced[2]
    added = {
        name: one
        for name, one in vars(value).items()
        # schedulers, among others, replace methods of the object, and do so again where it is loaded
        if name not in state and not callable(getattr(type(value), name, None)) and not name.startswith(_NOT_STORED)
    }
    return (*reduced[:2], state | added, *reduced[3:]) if added else NotImplemented
