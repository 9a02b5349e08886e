"""What the user's own callbacks, modules and datasets hold: it travels in checkpoints, and is put back in place."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, Final

__all__ = ["flat", "held"]

_LEAVES: Final = (str, bytes, bool, int, float, complex, type(None))


def flat(given: Any) -> list[Any]:
    """What a `callbacks` argument names: one, several, or lists of them."""
    if isinstance(given, list | tuple):
        return [one for part in given for one in flat(part)]
    return [] if given is None else [given]


def held(one: Any, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Numbers, texts, arrays, functions by name, and containers of these among the attributes of an object."""
    return {name: value for name, value in vars(one).items() if name not in but and _is_data(value)}


def _is_data(value: Any) -> bool:
    if type(value) in (list, tuple, set):
        return all(map(_is_data, value))
    if type(value) is dict:
        return all(map(_is_data, value)) and all(map(_is_data, value.values()))
    if isinstance(value, FunctionType):  # Keras' EarlyStopping turns its least change around where it has none yet
        return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value
    return type(value) in _LEAVES or type(value).__module__ == "numpy"
