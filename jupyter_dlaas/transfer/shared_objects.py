"""Groups of named values that share objects: a model and its optimiser form one object graph and are stored as one."""

from __future__ import annotations

import datetime as dt
import enum
import importlib
import logging
import pickle
import sys
import types
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.transfer.library_reducers import reduce_state
from jupyter_dlaas.transfer.shared_arrays import SharedMemory, shared_between

__all__ = ["groups"]

_WITHOUT_IDENTITY: Final = (
    *(str, bytes, int, float, complex, tuple, frozenset, range, slice, type(Ellipsis)),
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
    *(enum.Enum, PurePath, logging.Logger, dt.date, dt.time, dt.timedelta, dt.tzinfo),
)
"""Immutable values, and values that pickle stores by name: two copies of them are equivalent."""
_CONSTANTS: Final = frozenset({"dtype", "device", "layout", "memory_format"})
"""Such values of torch and NumPy, by the names of their classes."""


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
