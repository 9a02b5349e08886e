"""State of the user's callbacks, modules and datasets: stored in checkpoints and restored in place."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, Final

__all__ = ["flat", "held"]

_LEAVES: Final = (str, bytes, bool, int, float, complex, type(None))


def flat(given: Any) -> list[Any]:
    """Return a `callbacks` argument as a flat list: it may be one callback, several, or nested lists."""
    if isinstance(given, list | tuple):
        return [one for part in given for one in flat(part)]
    return [] if given is None else [given]


def held(one: Any, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return an object's attributes that are numbers, texts, arrays, importable functions, or containers of these."""
    return {name: value for name, value in vars(one).items() if name not in but and _is_data(value)}


def _is_data(value: Any) -> bool:
    if type(value) in (list, tuple, set):
        return all(map(_is_data, value))
    if type(value) is dict:
        return all(map(_is_data, value)) and all(map(_is_data, value.values()))
    if isinstance(value, FunctionType):  # Keras' EarlyStopping negates min_delta if its function is unset
        return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value
    return type(value) in _LEAVES or type(value).__module__ == "numpy"
