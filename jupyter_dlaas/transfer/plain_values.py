"""Plain values: numbers, strings, and containers of them."""

from __future__ import annotations

import numbers
from typing import Final

__all__ = ["LEAVES", "is_plain"]

_ELEMENTS_MAX: Final = 200_000


LEAVES: Final = (str, bytes, bool, int, float, complex, type(None))


def is_plain(value: object) -> bool:
    """Return whether a value consists of numbers, strings, lists, tuples, sets and dicts, which load without code."""
    todo, seen = [value], 0
    while todo:
        one = todo.pop()
        seen += 1
        if seen > _ELEMENTS_MAX:
            return False
        kind = type(one)
        if kind in (list, tuple, set, frozenset):
            todo.extend(one)  # type: ignore[arg-type]  # its exact type was checked
        elif kind is dict:
            todo.extend(one)  # type: ignore[arg-type]
            todo.extend(one.values())  # type: ignore[attr-defined]
        elif kind not in LEAVES and not _is_number(one):
            return False
    return True


def _is_number(value: object) -> bool:
    """Return whether a value is a number, including NumPy's, but not an array or tensor, which may be on a device."""
    return isinstance(value, numbers.Number) and not hasattr(value, "requires_grad")
