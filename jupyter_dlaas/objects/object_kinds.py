"""Kinds of objects from a checkpoint's view: their parts, whether they changed, and how they are restored.

Reads what the interpreter itself stores (dict, slots, contents of containers), so that no property or `__getattr__` of
the user runs. Objects of a class that defines its own pickling are pickled by it, and restored in place if possible.
"""

from __future__ import annotations

import copyreg
import functools
import operator
import os
import pickle
import sys
import types
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects import keras_objects, process_objects, special_objects
from jupyter_dlaas.objects.array_digests import Budget, digest, is_lazy, own_memory, tensor_digest
from jupyter_dlaas.objects.object_aspects import Aspect
from jupyter_dlaas.objects.object_items import (
    DESCRIPTORS,
    FIELDS,
    HEAP_TYPE,
    INSTANCE_FIELDS,
    KEY,
    LARGE,
    Cell,
    Changes,
    ClassItems,
    ContextVariable,
    Dict,
    EnumMember,
    Factory,
    Function,
    Items,
    MemberFields,
    Module,
    Skipped,
    TensorFields,
    ThreadLocal,
    changed_items,
    put_items,
    slots,
)
from jupyter_dlaas.objects.object_values import are_values, is_infrastructure, is_same, is_tensor
from jupyter_dlaas.objects.random_generators import generator_of

__all__ = [
    "CONTAINERS",
    "FIELDS",
    "KEY",
    "Aspect",
    "Budget",
    "Cell",
    "Changes",
    "Items",
    "Skipped",
    "Whole",
    "aspects_of",
    "changed_items",
    "has_plain_fields",
    "is_readable_file",
    "new_object",
    "position_of",
    "put_items",
    "seek",
    "skipped_items",
]


def new_object(kind: type, *arguments: Any) -> Any:
    """Create an object without calling its `__init__`, as unpickling does."""
    create: Any = kind.__new__
    return create(kind, *arguments)


class _Content:
    """Stands for an object whose content is pickled, where the object itself would be pickled as its path."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        make, *rest = self.value.__reduce_ex__(protocol)
        usual: Any = copyreg
        return stored.new_object if make is usual.__newobj__ else make, *rest


# -- containers that are stored in full


class _Sequence(Aspect):
    def __init__(self, kind: type) -> None:
        self.kind: Any = kind

    def read(self, value: Any, budget: Budget) -> list[Any]:
        return list(self.kind.__iter__(value))

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if len(value) > LARGE and are_values(value):
            return iter(())
        return ((f"[{number}]", part) for number, part in enumerate(self.kind.__iter__(value)))

    def differs(self, base: list[Any], now: list[Any]) -> bool:
        if len(base) == len(now) and all(map(operator.is_, base, now)):
            return False
        return len(base) != len(now) or not all(map(is_same, base, now))

    def put(self, value: Any, carried: list[Any]) -> None:
        old = list(self.kind.__iter__(value))
        new = [
            (old[at] if at < len(old) else None) if isinstance(one, Skipped) else one for at, one in enumerate(carried)
        ]
        self.kind.clear(value)
        self.kind.extend(value, new)


class _Set(Aspect):
    def read(self, value: Any, budget: Budget) -> set[Any]:
        return set(set.__iter__(value))

    def is_opaque(self, value: Any) -> bool:
        return not are_values(value)

    def put(self, value: Any, carried: set[Any]) -> None:
        set.clear(value)
        set.update(value, carried)


class _Bytes(Aspect):
    def read(self, value: Any, budget: Budget) -> bytes:
        return bytes(value)

    def put(self, value: Any, carried: bytes) -> None:
        value[:] = carried


# -- arrays


class _Array(Aspect):
    """NumPy arrays of numbers."""

    can_revert = False

    def read(self, value: Any, budget: Budget) -> Any:
        return value.shape, value.dtype.str, digest(value, budget)

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        return _Content(value)

    def put(self, value: Any, carried: Any) -> None:
        if value.shape != carried.shape:
            value.resize(carried.shape, refcheck=False)
        value[...] = carried

    def copy(self, value: Any) -> Any:
        return value.copy()

    def size(self, value: Any) -> int:
        return int(value.nbytes)


class _Tensor(Aspect):
    """Tensors of torch: their numbers, and whether they require gradients."""

    can_revert = False

    def __init__(self, *, has_data: bool) -> None:
        self.has_data = has_data

    def read(self, value: Any, budget: Budget) -> Any:
        if is_lazy(value):
            return None
        content = tensor_digest(value, budget) if self.has_data else None
        shape = (tuple(value.shape), value.stride()) if self.has_data else None
        return shape, str(value.dtype), content, bool(value.requires_grad)

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        is_moved = self.has_data and (base is None or base[:3] != now[:3])
        return (own_memory(value.detach()) if is_moved else None), bool(value.requires_grad)

    def put(self, value: Any, carried: Any) -> None:
        torch: Any = sys.modules["torch"]
        data, is_trained = carried
        with torch.no_grad():
            if data is not None and is_lazy(value):
                value.materialize(data.shape, dtype=data.dtype)
            is_alike = data is not None and (value.shape, value.dtype) == (data.shape, data.dtype)
            is_dense = data is not None and data.is_contiguous() == value.is_contiguous()
            if data is not None and not (is_alike and is_dense and 0 not in value.stride()):
                value.data = data.to(value.device)
            elif data is not None:
                value.copy_(data)
        if value.is_leaf and value.requires_grad != is_trained:
            value.requires_grad_(is_trained)

    def copy(self, value: Any) -> Any:
        has_data = self.has_data and not is_lazy(value)
        return value.detach().clone() if has_data else None, bool(value.requires_grad)

    def size(self, value: Any) -> int:
        return int(value.numel() * value.element_size()) if self.has_data and not is_lazy(value) else 0


# -- files, shared memory, and objects with their own pickling


class _Position(Aspect):
    """Position in a file that is being read or updated; the file may be closed by now."""

    def read(self, value: Any, budget: Budget) -> int:
        return position_of(value)

    def put(self, value: Any, carried: int) -> None:
        seek(value, carried)


def position_of(file: Any) -> int:
    """Return the position in an open file, and write out what is in its buffer; -1 if it is closed.

    Raises OSError where a loop or `next` reads a file of text.
    """
    try:
        return -1 if file.closed else int(file.tell())
    except OSError as error:
        raise OSError("a loop or next() reads it, so that its position is not known: use readline()") from error


def seek(file: Any, position: int) -> None:
    """Continue in a file at a position, unless it is closed or shorter."""
    if position >= 0 and not file.closed and position <= os.fstat(file.fileno()).st_size:
        file.seek(position)


def skipped_items(aspect: Aspect, value: Any, carried: Any, present: Any = None) -> dict[Any, Any]:
    """Return the items of an object in place of which nothing was stored: of `present`, by default those it has now."""
    if not (isinstance(aspect, Items) and isinstance(carried, Changes)):
        return {}
    left_out = [key for key, item in carried.values.items() if isinstance(item, Skipped)]
    if left_out and present is None:
        present = aspect.items(value)
    return {key: present[key] for key in left_out if key in present}


class _Shared(Aspect):
    """Value or array in memory that processes share: `multiprocessing.Value("i")`."""

    def read(self, value: Any, budget: Budget) -> bytes:
        return bytes(memoryview(value.get_obj()).cast("B"))

    def put(self, value: Any, carried: bytes) -> None:
        memoryview(value.get_obj()).cast("B")[:] = carried


class _CTypes(Aspect):
    """Value, array or structure of ctypes without pointers: its type may have no name that pickle finds."""

    def read(self, value: Any, budget: Budget) -> bytes:
        return bytes(value)

    def put(self, value: Any, carried: bytes) -> None:
        memoryview(value).cast("B")[:] = carried


class Whole(Aspect):
    """Object of a class that defines its own pickling."""

    is_whole = is_pickled = True
    can_revert = False


class _Refilled(Aspect):
    """Object of a class written in Python that defines its own pickling: the existing object gets the new fields."""

    is_pickled = True
    can_revert = False

    def __init__(self, left_out: frozenset[str] = frozenset()) -> None:
        """`left_out`: fields that the class does not pickle; they stay."""
        self._left_out = left_out

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        return _Content(value)

    def put(self, value: Any, carried: Any) -> None:
        before = FIELDS.items(value)
        stays = {name: item for name, item in before.items() if name in self._left_out}
        for name in before:
            FIELDS.delete(value, name)
        for name, item in (FIELDS.items(carried) | stays).items():
            FIELDS.set(value, name, item)


class _LeftOut(Items):
    """Fields that a class leaves out of its own pickling."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def items(self, value: Any) -> dict[Any, Any]:
        return {name: one for name, one in FIELDS.items(value).items() if name in self._names}

    def set(self, value: Any, key: Any, item: Any) -> None:
        FIELDS.set(value, key, item)

    def delete(self, value: Any, key: Any) -> None:
        FIELDS.delete(value, key)


# -- which kind an object is of


def aspects_of(value: Any, *, has_data: bool = True) -> tuple[Aspect, ...]:
    """Return the ways in which an object can change; none if it is known by its path alone."""
    kind: Any = type(value)
    special = special_objects.aspects_of(value)
    if special is not None:
        return special
    if isinstance(value, types.FunctionType):
        return () if is_infrastructure(value) else (_FUNCTION,)
    if is_readable_file(value):
        return (_POSITION,)
    if kind.__module__ == "multiprocessing.sharedctypes" and hasattr(kind, "get_obj"):
        return (_SHARED,)
    if isinstance(value, DESCRIPTORS):
        return ()
    if isinstance(value, tuple):
        return (FIELDS,)
    if isinstance(value, EnumMember):
        return (_MEMBER,)
    if _is_ctypes(value):
        return (_CTYPES,)
    if process_objects.is_thread_local(value):
        return (_THREAD_LOCAL,)
    if process_objects.context_value(value) is not None:
        return (_CONTEXT_VARIABLE,)
    if process_objects.is_in_memory(value):
        return (_DATABASE,)
    if is_infrastructure(value) or not (has_data or is_tensor(value)):
        return ()
    for exact, aspect in _EXACT.items():
        if isinstance(value, exact):
            found = (aspect, _FACTORY) if kind is defaultdict else (aspect,)
            return found if kind is exact or not hasattr(value, "__dict__") else (*found, FIELDS)
    if isinstance(value, type):
        return (_CLASS,)
    if isinstance(value, types.ModuleType):
        return (_MODULE,)
    generator = generator_of(value)
    if generator is not None:
        return (generator,)
    if is_tensor(value):
        torch: Any = sys.modules["torch"]
        is_usual = value.layout == torch.strided and not value.is_quantized and not value.is_meta
        return (_Tensor(has_data=has_data), _TENSOR_FIELDS) if is_usual else (_WHOLE,)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
        return (_ARRAY,) if value.flags.writeable else ()
    keras = keras_objects.aspect_of(value)
    if keras is not None:
        return (keras, keras_objects.LAYER_FIELDS) if keras_objects.is_layer(value) else (keras,)
    if has_plain_fields(kind):
        return (INSTANCE_FIELDS,)
    if not (_has_plain_layout(kind) and _is_rebuilt_as_its_class(value)):
        return (_WHOLE,)
    left_out = _left_out_of_pickling(value)
    return (_Refilled(left_out), _LeftOut(left_out)) if left_out else (_REFILLED,)


def _left_out_of_pickling(value: Any) -> frozenset[str]:
    """Return the fields that are not in the state that a class pickles by its own `__getstate__`."""
    usual: Any = object
    if getattr(type(value), "__getstate__", None) in (None, getattr(usual, "__getstate__", None)):
        return frozenset()
    try:
        state = value.__getstate__()
    except Exception:  # noqa: BLE001 - objects of any class may fail in any way
        return frozenset()
    return frozenset(FIELDS.items(value)) - state.keys() if isinstance(state, dict) else frozenset()


def _is_ctypes(value: Any) -> bool:
    """Return whether an object of ctypes can be stored as its bytes."""
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is None or not isinstance(value, ctypes.Array | ctypes.Structure | ctypes.Union | ctypes._SimpleCData):
        return False
    try:
        value.__reduce__()
    except ValueError:  # it holds pointers
        return False
    return True


def _is_rebuilt_as_its_class(value: Any) -> bool:
    """Return whether unpickling an object calls its own class, and no function that may return something else."""
    try:
        reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - objects of any class may fail in any way
        return False
    if not isinstance(reduced, tuple):
        return False
    made, given = reduced[0], reduced[1]
    usual: Any = copyreg
    return made is type(value) or (made in (usual.__newobj__, usual._reconstructor) and given[0] is type(value))


def is_readable_file(value: Any) -> bool:
    """Return whether a value is an open file that is read or updated, and that opening again leaves as it is."""
    io_module = type(value).__module__ in ("_io", "io")
    try:
        return (
            io_module
            and not special_objects.is_deleted(value)
            and hasattr(value, "readable")
            and value.readable()
            and value.seekable()
            and (not value.writable() or str(getattr(value, "mode", "")).replace("b", "") == "r+")
        )
    except ValueError:  # closed
        return False


@functools.lru_cache(maxsize=4096)
def has_plain_fields(kind: Any) -> bool:
    """Return whether a class is written in Python, has no state beside dict and slots, and inherits its pickling."""
    torch: Any = sys.modules.get("torch")
    known = (torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler) if torch is not None else ()
    if issubclass(kind, (*known, types.SimpleNamespace)):
        return True
    usual: Any = object
    has_own_way = any(
        getattr(kind, name, None) is not getattr(usual, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )
    return not has_own_way and _has_plain_layout(kind)


@functools.lru_cache(maxsize=4096)
def _has_plain_layout(kind: Any) -> bool:
    """Return whether a class is written in Python, and has no state beside dict and slots."""
    if any(base is not object and not base.__flags__ & HEAP_TYPE for base in kind.__mro__):
        return False
    return bool(kind.__basicsize__ <= object.__basicsize__ + 8 * (len(slots(kind)) + 2))


_DICT, _FACTORY, _FUNCTION, _CLASS, _MODULE, _CELL = Dict(), Factory(), Function(), ClassItems(), Module(), Cell()
_CONTEXT_VARIABLE, _THREAD_LOCAL, _DATABASE = ContextVariable(), ThreadLocal(), process_objects.Database()
_TENSOR_FIELDS, _MEMBER, _CTYPES = TensorFields(), MemberFields(), _CTypes()
_ARRAY, _POSITION, _SHARED, _WHOLE, _REFILLED = _Array(), _Position(), _Shared(), Whole(), _Refilled()
_EXACT: Final[Mapping[type, Aspect]] = {
    dict: _DICT,
    list: _Sequence(list),
    deque: _Sequence(deque),
    set: _Set(),
    bytearray: _Bytes(),
    types.CellType: _CELL,
}
CONTAINERS: Final = (dict, list, deque, set, bytearray)
