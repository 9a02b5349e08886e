"""Objects that named values share with each other, and with the values from before a training cell.

A model and its optimiser form one object graph and are stored as one.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import importlib
import logging
import pickle
import sys
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import PurePath
from typing import Any, Final

from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.objects.object_kinds import FIELDS
from jupyter_dlaas.transfer.library_reducers import reduce_state
from jupyter_dlaas.transfer.plain_values import LEAVES
from jupyter_dlaas.transfer.result_kinds import (
    FILLED,
    has_state,
    is_estimator,
    is_keras_part,
    is_own_object,
    is_torch,
    is_users,
    own_fields,
)
from jupyter_dlaas.transfer.shared_arrays import SharedMemory, shared_between

__all__ = [
    "ClassAttributes",
    "DigestFile",
    "Origins",
    "TooLarge",
    "direct_parts",
    "groups",
    "parts_of",
    "reference",
]

_WITHOUT_IDENTITY: Final = (
    *(str, bytes, int, float, complex, tuple, frozenset, range, slice, type(Ellipsis)),
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
    *(enum.Enum, PurePath, logging.Logger, dt.date, dt.time, dt.timedelta, dt.tzinfo),
)
"""Immutable values, and values that pickle stores by name: two copies of them are equivalent."""
_CONSTANTS: Final = frozenset({"dtype", "device", "layout", "memory_format"})
"""Such values of torch and NumPy, by the names of their classes."""
_PARTS_MAX: Final = 20_000
_DIGESTED_BYTES: Final = 16 << 20
"""Maximum size of a class attribute that is compared."""
_ITEMS_MAX: Final = 1000
"""Maximum number of items of a container that have a path."""


def groups(values: Mapping[str, object]) -> list[tuple[str, ...]]:
    """Partition names so that values of different groups share no mutable object.

    Pickles each value without keeping the bytes; tensors are not copied. A value that cannot be pickled is a group of
    its own.
    """
    scans = {name: _Scan() for name in values}
    found: dict[str, tuple[str, ...]] = {}
    parts: dict[str, frozenset[object]] = {}
    for name, value in values.items():  # every scan keeps its objects alive, so that no id is reused
        parts[name] = scans[name].parts(value)
    blocks = shared_between({name: scan.memory for name, scan in scans.items()})
    for name, own_ids in parts.items():
        joined = {
            other
            for other in found
            if not (own_ids.isdisjoint(parts[other]) and blocks[name].isdisjoint(blocks[other]))
        }
        members = {name}.union(*(found[other] for other in joined))
        group = tuple(one for one in values if one in members)
        found.update(dict.fromkeys(group, group))
    return list(dict.fromkeys(found[name] for name in values))


class _Nowhere:
    """File that discards everything."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _Scan(pickle.Pickler):
    """Pickler whose memo lists the objects that a value consists of."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=5)
        self._torch: Any = sys.modules.get("torch")
        self._byvalue: Any = importlib.import_module("jupyter_dlaas.transfer.code_by_value")
        self._storages: set[tuple[str, int]] = set()
        self.memory = SharedMemory()
        """The arrays and tensors of the value."""

    def parts(self, value: object) -> frozenset[object]:
        try:
            self.dump(value)
        except Exception:  # noqa: BLE001 - a value of any class may refuse in any way; storing it says why
            return frozenset()
        memo: dict[int, tuple[int, object]] = self.memo.copy()
        return frozenset(number for number, (_, one) in memo.items() if not _is_constant(one)) | self._storages

    def reducer_override(self, obj: Any) -> Any:
        self.memory.reduce(obj)
        if self._torch is not None and isinstance(obj, self._torch.Tensor):
            self._note_storage(obj)
            if obj.is_leaf and obj.grad is not None:
                self._note_storage(obj.grad)
            return str, ()
        self._storages.update(("variable", id(one)) for one in keras_objects.variables_of(obj))
        if isinstance(obj, types.FunctionType) and not self._byvalue.is_found(obj):
            return self._byvalue.reduce(obj)
        return reduce_state(obj)

    def _note_storage(self, tensor: Any) -> None:
        """Record a tensor's storage: views share memory, which torch keeps shared in a file."""
        try:
            address = tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage
            return
        if address:
            self._storages.add(("storage", address))


def _is_constant(value: object) -> bool:
    return isinstance(value, _WITHOUT_IDENTITY) or any(one.__name__ in _CONSTANTS for one in type(value).__mro__)


class Origins:
    """The objects in named values at the beginning of a training cell, to be found again in the results.

    Whoever refers to an object that the cell changes (`history = trainer.history`) sees the change. An object that the
    cell creates in its place is another one. After loading, only this record can tell one from the other.
    """

    def __init__(self, values: Mapping[str, object], classes: Iterable[type] = ()) -> None:
        """Record these values, and the attributes of their classes and of `classes`."""
        parts = {name: _parts_and_kinds(name, value) for name, value in values.items()}
        self._classes = _classes_of({*classes}.union(*(kinds for _, kinds in parts.values())))
        attributes = {key: value for kind in self._classes for key, value in _attributes(kind).items()}
        self._digests = {key: _digest(value) for key, value in attributes.items()}
        parts |= {key: _parts_and_kinds(key, value) for key, value in attributes.items()}
        self._paths: dict[int, tuple[Callable[[], object], dict[str, str]]] = {}
        for name, (found, _) in parts.items():
            for path, part in (found or {}).items():
                self._paths.setdefault(id(part), (reference(part), {}))[1][name] = path

    @property
    def objects(self) -> frozenset[int]:
        """The identities of the recorded objects."""
        return frozenset(self._paths)

    def of(self, values: Mapping[str, object]) -> dict[str, dict[str, str]]:
        """Return, for each name, the former paths of its parts by their present ones; other parts are new.

        A name is left out if it has too many parts.
        """
        found: dict[str, dict[str, str]] = {}
        for name, value in values.items():
            parts = parts_of(name, value)
            if parts is not None:
                former = {path: self._former(part) for path, part in parts.items()}
                found[name] = {path: one.get(name) or next(iter(one.values())) for path, one in former.items() if one}
        return found

    def changed_attributes(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the attributes of these values' classes that were changed since: "__main__:Trainer.history".

        Instances share them, and pickle stores a class by its name only.
        """
        kinds = set[type]().union(*(_parts_and_kinds(name, value)[1] for name, value in values.items()))
        classes = _classes_of(kinds) & self._classes
        found = {key: value for kind in classes for key, value in _attributes(kind).items()}
        digests = {key: _digest(value) for key, value in found.items()}
        return {
            key: found[key]
            for key, digest in digests.items()
            if digest is not None and self._digests.get(key) != digest
        }

    def _former(self, part: object) -> dict[str, str]:
        get, paths = self._paths.get(id(part), (None, {}))
        return paths if get is not None and get() is part else {}


def parts_of(name: str, value: object) -> dict[str, object] | None:
    """Return the mutable parts of a value, except models and optimisers, by their paths: "trainer.history".

    Two processes in which a program built the same value get the same paths. Returns None if there are too many.
    """
    return _parts_and_kinds(name, value)[0]


def _parts_and_kinds(name: str, value: object) -> tuple[dict[str, object] | None, set[type]]:
    """Return the same, and the classes of all parts that were looked at. Parts of libraries' objects have no path."""
    found: dict[str, object] = {}
    kinds: dict[type, bool] = {}
    queue = deque([(name, value)])
    seen: set[int] = set()
    while queue:
        path, part = queue.popleft()
        kind = type(part)
        if kind in LEAVES or id(part) in seen:
            continue
        if len(seen) == _PARTS_MAX:
            return None, {*kinds}
        seen.add(id(part))
        if kind not in kinds:
            kinds[kind] = not (has_state(part) or is_keras_part(part) or _is_constant(part))
        if kinds[kind]:
            found[path] = part
        queue.extend((path + step, one) for step, one in direct_parts(part))
    return found, {*kinds}


def direct_parts(part: Any) -> list[tuple[str, object]]:
    """Return the objects that a container, a torch module or an object of the user holds: (".fc", layer)."""
    kind = type(part)
    if kind in (list, tuple, deque):
        return [(f"[{number}]", one) for number, one in enumerate(islice(part, _ITEMS_MAX))]
    if kind in FILLED and isinstance(part, dict):
        return [(f"[{key!r}]", one) for key, one in islice(part.items(), _ITEMS_MAX) if type(key) in (str, int)]
    if is_torch(part, "nn", "Module") and not is_keras_part(part):
        fields = [(f".{name}", one) for name, one in own_fields(part).items()]
        return [*fields, *((f".{name}", one) for name, one in part._modules.items())]
    if is_own_object(part) and is_users(kind) and not is_estimator(part):
        return [(f".{name}", one) for name, one in FIELDS.items(part).items()]
    return []


class ClassAttributes:
    """The attributes among loaded values that `Origins.changed_attributes` has added, and their classes here."""

    def __init__(self, loaded: Mapping[str, object]) -> None:
        self._found: dict[str, tuple[type, str]] = {}
        for key in loaded:
            module, is_attribute, path = key.partition(":")
            names, _, name = path.rpartition(".")
            kind: Any = sys.modules.get(module)
            for one in names.split("."):
                kind = vars(kind).get(one) if isinstance(kind, type | types.ModuleType) else None
            if is_attribute and isinstance(kind, type):
                self._found[key] = kind, name

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the loaded values that are attributes of a class."""
        return tuple(self._found)

    @property
    def loaded(self) -> frozenset[int]:
        """The identities of the classes."""
        return frozenset(id(kind) for kind, _ in self._found.values())

    def values(self) -> dict[str, object]:
        """Return the present values by these names."""
        return {key: vars(kind)[name] for key, (kind, name) in self._found.items() if name in vars(kind)}

    def bind(self, values: Mapping[str, object]) -> None:
        """Set the attributes."""
        for key, (kind, name) in self._found.items():
            if name not in vars(kind) or vars(kind)[name] is not values[key]:
                setattr(kind, name, values[key])


def _classes_of(kinds: Iterable[type]) -> set[type]:
    """Return the user's classes among these and their bases, except local ones."""
    bases = {base for kind in kinds for base in kind.__mro__}
    return {kind for kind in bases if is_users(kind) and "<" not in kind.__qualname__}


def _attributes(kind: type) -> dict[str, object]:
    """Return the data that a class holds, without its methods, descriptors and inner classes, by key."""
    if issubclass(kind, enum.Enum):
        return {}
    return {
        f"{kind.__module__}:{kind.__qualname__}.{name}": value
        for name, value in vars(kind).items()
        if not (name.startswith(("__", "_abc_")) or hasattr(type(value), "__get__") or isinstance(value, type))
    }


class TooLarge(Exception):
    """Error of a value whose content is too large to compare."""


class DigestFile:
    """File that keeps a digest of what is written, up to a number of bytes. `write` raises TooLarge beyond it."""

    def __init__(self, bytes_max: int) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._left = bytes_max

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self._left -= count
        if self._left < 0:
            raise TooLarge
        self._hash.update(data)
        return count

    def digest(self) -> bytes:
        """Return the digest."""
        return self._hash.digest()


def _digest(value: object) -> bytes | None:
    """Return a digest of a value's content; None if it cannot be pickled or is large."""
    file = DigestFile(_DIGESTED_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterators, which newer versions of Python do not pickle
            pickle.Pickler(file, protocol=5).dump(value)
    except Exception:  # noqa: BLE001 - a value of any class may refuse in any way
        return None
    return file.digest()


def reference(part: object) -> Callable[[], object]:
    """Return a call for an object that does not keep it alive, if the object allows it: arrays may be large."""
    try:
        return weakref.ref(part)
    except TypeError:
        return lambda: part
