"""User state: the plain values that a script changes at module level during training (`best`, `losses`).

Checkpoints store and restore them, so that a list filled epoch by epoch is complete after a restart. Only what has
*changed* since the loop began is stored: a constant that depends on the number of learners must be the new one.
"""

from __future__ import annotations

import functools
import pickle
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.transfer.plain_values import LEAVES, is_plain

__all__ = ["LARGEST", "Base", "Mark", "back_to", "base", "changed", "mark", "marked_objects", "put_back"]

LARGEST: Final = 1 << 20
_OWN: Final = Path(__file__).parents[2]
_SIZED: Final = (list, dict, set, str, bytes)
Base = dict[str, bytes | int]
"""Per name, the value when the loop began: the pickle of a plain value, the length of another container."""


def _pickled(value: object) -> bytes | None:
    if not is_plain(value):
        return None
    data = pickle.dumps(value, protocol=5)
    return data if len(data) <= LARGEST else None


def _own(script: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in script.items() if not name.startswith("__")}


def base(script: Mapping[str, Any]) -> Base:
    """Return the values before the loop, to compare with."""
    found: Base = {}
    for name, value in _own(script).items():
        data = _pickled(value)
        if data is not None:
            found[name] = data
        elif isinstance(value, _SIZED):
            found[name] = len(value)
    return found


def changed(script: Mapping[str, Any], since: Base) -> tuple[dict[str, Any], list[str]]:
    """Return changed and new values, and the names of changed containers that cannot be stored."""
    values: dict[str, Any] = {}
    left_out: list[str] = []
    total = 0
    for name, value in _own(script).items():
        data = _pickled(value)
        before = since.get(name)
        if data is not None:
            if data != before and total + len(data) <= LARGEST:
                total += len(data)
                values[name] = value
            elif data != before:
                left_out.append(name)
        elif isinstance(value, _SIZED) and before != len(value):
            left_out.append(name)
    return values, sorted(left_out)


def put_back(script: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Restore the values; lists, dicts and sets are filled in place, since other objects may refer to them."""
    for name, value in values.items():
        there = script.get(name)
        if isinstance(there, list) and isinstance(value, list):
            there[:] = value
        elif (isinstance(there, dict) and isinstance(value, dict)) or (
            isinstance(there, set) and isinstance(value, set)
        ):
            there.clear()
            there.update(value)
        else:
            script[name] = value


# ------------------------------------------------------------------------------------- within one step of training

_COPIED: Final = 64
"""The length beyond which lists and dicts are assumed to grow only at their end."""
_DEEP: Final = 2
_HEAP_TYPE: Final = 1 << 9
Mark = dict[str, tuple[Any, Any]]
"""Per name, the value at a boundary, and the content of a list, a dict or an object of a user's class."""


class _Fields(dict[str, tuple[Any, Any]]):
    """The mark of an object's fields."""


def mark(names: Mapping[str, Any], depth: int = _DEEP) -> Mark:
    """Record plain values at the start of a step, for a rollback. Takes about 10 µs, so the depth is limited."""
    return {
        name: (value, None if type(value) in _LEAF_TYPES else _held(value, depth))
        for name, value in names.items()
        if _is_marked(type(value))
    }


_LEAF_TYPES: Final = frozenset(LEAVES)
_LISTS: Final = frozenset({list, deque})
_DICTS: Final = frozenset({dict, defaultdict, Counter, OrderedDict})
_MARKED: Final = _LEAF_TYPES | _LISTS | _DICTS | {set}


def _is_users(kind: Any) -> bool:
    """Return whether the class is the user's own and its objects have fields. Data sets are excluded."""
    if not kind.__flags__ & _HEAP_TYPE or not kind.__dictoffset__ or hasattr(kind, "__getitem__"):
        return False
    module: Any = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or (isinstance(file, str) and not file.startswith(_INSTALLED))


_INSTALLED: Final = tuple(
    {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"), str(_OWN)}
)


def _held(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _LISTS or kind in _DICTS or kind is set:
        if len(value) > _COPIED or depth == 0:
            return len(value)
        if kind is set:
            return set(value)
        if kind in _LISTS:
            return [(one, _inner(one, depth)) for one in value]
        return {key: (one, _inner(one, depth)) for key, one in value.items()}
    if depth == 0:
        return None
    fields = vars(value)
    if hasattr(kind, "named_parameters"):  # of a module, only attributes outside the model
        fields = {name: one for name, one in fields.items() if type(one) in _LEAF_TYPES}
    return _Fields(mark(fields, depth - 1))


def _inner(value: Any, depth: int) -> Any:
    kind: Any = type(value)
    return _held(value, depth - 1) if kind not in _LEAF_TYPES and _is_marked(kind) else None


def _is_marked_kind(kind: Any) -> bool:
    return kind in _MARKED or _is_users(kind)


_is_marked: Final[Callable[[Any], bool]] = functools.lru_cache(maxsize=1024)(_is_marked_kind)


def marked_objects(marked: Mapping[Any, tuple[Any, Any]]) -> set[int]:
    """Return the ids of the lists, dicts and objects that a mark can restore."""
    found: set[int] = set()
    for value, held in marked.values():
        if held is None:
            continue
        found.add(id(value))
        if isinstance(held, dict):
            found |= marked_objects(held)
        elif isinstance(held, list):
            found |= marked_objects(dict(enumerate(held)))
    return found


def back_to(names: dict[str, Any], marked: Mapping[str, tuple[Any, Any]]) -> None:
    """Restore the values of a mark and their content."""
    for name, (value, held) in marked.items():
        names[name] = value
        if held is not None:
            _fill(value, held)


def _fill(value: Any, held: Any) -> None:
    if isinstance(held, _Fields):
        back_to(vars(value), held)
    elif isinstance(held, int):
        _shorten(value, held)
    elif isinstance(held, set):
        value.clear()
        value.update(held)
    else:
        inner = held if isinstance(held, list) else held.values()
        for one, deeper in inner:
            if deeper is not None:
                _fill(one, deeper)
        value.clear()
        if isinstance(held, list):
            value.extend([one for one, _ in held])
        else:
            value.update({key: one for key, (one, _) in held.items()})


def _shorten(value: Any, length: int) -> None:
    if isinstance(value, list):
        del value[length:]
    elif isinstance(value, dict):
        for key in list(value)[length:]:
            del value[key]
