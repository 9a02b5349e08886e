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
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects import keras_objects, process_objects, special_objects
from jupyter_dlaas.objects.array_digests import Budget, digest, is_lazy, own_memory, tensor_digest
from jupyter_dlaas.objects.object_aspects import Aspect
from jupyter_dlaas.objects.object_values import are_values, is_atom, is_infrastructure, is_same, is_tensor
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
    "new_object",
    "put_items",
]

_LARGE: Final = 10_000
"""Length above which a container of values is not searched for objects."""
KEY: Final = " (key "
"""Begin of the step to an object that is a dictionary's key."""
_HEAP_TYPE: Final = 1 << 9
_LEFT_ALONE: Final = frozenset({"_iterator", "_opt_called"})
"""Fields of library objects that are recreated on demand."""
_OWN_FIELDS: Final = "_dlaas_"


@dataclass(slots=True)
class Changes:
    """Changes of an object's items: new values, and removed items."""

    values: dict[Any, Any] = field(default_factory=dict)
    gone: list[Any] = field(default_factory=list)

    def __reduce__(self) -> tuple[Any, ...]:
        return stored.changes, (self.values, self.gone)


class Skipped:
    """Placeholder for an object that could not be stored; the existing object stays in place."""

    def __reduce__(self) -> tuple[Any, ...]:
        return stored.skipped, ()


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


# -- objects with named items


class Items(Aspect):
    """Objects that hold others by name or key: only changed items are stored."""

    def items(self, value: Any) -> dict[Any, Any]:
        raise NotImplementedError

    def set(self, value: Any, key: Any, item: Any) -> None:
        raise NotImplementedError

    def delete(self, value: Any, key: Any) -> None:
        raise NotImplementedError

    def read(self, value: Any, budget: Budget) -> dict[Any, Any]:
        return self.items(value)

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        for number, (key, part) in enumerate(self.items(value).items()):
            yield self.step(key, number), part

    def step(self, key: Any, number: int) -> str:
        return f".{key}"

    def differs(self, base: dict[Any, Any], now: dict[Any, Any]) -> bool:
        has_same_keys = len(base) == len(now) and all(map(operator.is_, base, now))
        if has_same_keys and all(map(operator.is_, base.values(), now.values())):
            return False
        changes = changed_items(base, now)
        return bool(changes.values or changes.gone)

    def carry(self, value: Any, base: dict[Any, Any], now: dict[Any, Any]) -> Changes:
        return changed_items(base, now)

    def put(self, value: Any, carried: Changes) -> None:
        for key in carried.gone:
            self.delete(value, key)
        for key, item in carried.values.items():
            if not isinstance(item, Skipped):
                self.set(value, key, item)


def changed_items(base: Mapping[Any, Any], now: Mapping[Any, Any]) -> Changes:
    """Return the new or replaced items; changes of infrastructure objects do not count."""
    return Changes(
        {
            key: item
            for key, item in now.items()
            if not (key in base and is_same(base[key], item)) and not is_infrastructure(item)
        },
        [key for key, item in base.items() if key not in now and not is_infrastructure(item)],
    )


def _is_in_order(base: Mapping[Any, Any], now: Mapping[Any, Any]) -> bool:
    """Return whether removing and adding items to `base` gives the order of `now`."""
    if len(base) == len(now) and all(map(operator.is_, base, now)):
        return True
    return all(map(operator.is_, (key for key in base if key in now), now))


def put_items(space: dict[str, Any], changes: Changes) -> None:
    """Apply changes to a namespace."""
    for key in changes.gone:
        space.pop(key, None)
    space.update({key: item for key, item in changes.values.items() if not isinstance(item, Skipped)})


class _Dict(Items):
    """Dictionaries: their items and the order of these."""

    def items(self, value: Any) -> dict[Any, Any]:
        return dict((OrderedDict if isinstance(value, OrderedDict) else dict).items(value))

    def differs(self, base: dict[Any, Any], now: dict[Any, Any]) -> bool:
        return super().differs(base, now) or not _is_in_order(base, now)

    def carry(self, value: Any, base: dict[Any, Any], now: dict[Any, Any]) -> Changes:
        if _is_in_order(base, now):
            return changed_items(base, now)
        return Changes({key: item for key, item in now.items() if not is_infrastructure(item)}, [*base])

    def put(self, value: Any, carried: Changes) -> None:
        before = self.items(value)
        again = {key: before[key] for key in carried.gone if key in before and self._stays(before[key], key, carried)}
        super().put(value, carried)
        for key, item in again.items():
            self.set(value, key, item)

    def _stays(self, item: Any, key: Any, carried: Changes) -> bool:
        """Return whether an item stays what it is although its key is removed for the order of all."""
        return isinstance(carried.values.get(key), Skipped) or (is_infrastructure(item) and key not in carried.values)

    def set(self, value: Any, key: Any, item: Any) -> None:
        value[key] = item

    def delete(self, value: Any, key: Any) -> None:
        if dict.__contains__(value, key):
            del value[key]

    def step(self, key: Any, number: int) -> str:
        return f"[{key!r}]" if type(key) in (str, int) else f"[#{number}]"

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if len(value) > _LARGE and are_values(value.values()):
            return iter(())
        keys = ((f"{KEY}{number})", key) for number, key in enumerate(value) if not is_atom(key))
        return iter((*super().parts(value), *keys))


class _Fields(Items):
    """Instance dict and slots of an object."""

    def items(self, value: Any) -> dict[Any, Any]:
        found = dict(vars(value)) if hasattr(type(value), "__dict__") and hasattr(value, "__dict__") else {}
        for name, member in _slots_of(value).items():
            try:
                found[name] = member.__get__(value)
            except AttributeError:  # a slot that was never set
                continue
        return {
            name: part
            for name, part in found.items()
            if name not in _LEFT_ALONE and not (isinstance(name, str) and name.startswith(_OWN_FIELDS))
        }

    def set(self, value: Any, key: Any, item: Any) -> None:
        member = _slots_of(value).get(key)
        if member is not None:
            member.__set__(value, item)
        else:
            value.__dict__[key] = item

    def delete(self, value: Any, key: Any) -> None:
        member = _slots_of(value).get(key)
        if member is not None:
            member.__delete__(value)
        else:
            value.__dict__.pop(key, None)


class _Function(_Fields):
    """Attributes of a function; its closure and defaults are only searched."""

    def items(self, value: Any) -> dict[Any, Any]:
        return {name: part for name, part in vars(value).items() if name != "__wrapped__"}

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield from super().parts(value)
        names = value.__code__.co_freevars
        yield from ((f" (its {name})", cell) for name, cell in zip(names, value.__closure__ or (), strict=True))
        yield from ((f" (default {number})", part) for number, part in enumerate(value.__defaults__ or ()))
        yield from ((f" (default {name})", part) for name, part in (value.__kwdefaults__ or {}).items())


class _Class(Items):
    """Values of a class of the notebook."""

    def items(self, value: Any) -> dict[Any, Any]:
        kept: tuple[type, ...] = (
            types.FunctionType, staticmethod, classmethod, property, functools.cached_property,
            types.GetSetDescriptorType, types.MemberDescriptorType,
        )  # fmt: skip
        return {
            name: part for name, part in vars(value).items() if not name.startswith("__") and not isinstance(part, kept)
        }

    def set(self, value: Any, key: Any, item: Any) -> None:
        setattr(value, key, item)

    def delete(self, value: Any, key: Any) -> None:
        if key in vars(value):
            delattr(value, key)


class _Module(_Fields):
    """Values of a module of the user."""

    def items(self, value: Any) -> dict[Any, Any]:
        found = vars(value).items()
        return {k: v for k, v in found if not k.startswith("__") and not isinstance(v, types.ModuleType)}


class _ContextVariable(Items):
    """Value of a context variable in the training's context."""

    def items(self, value: Any) -> dict[Any, Any]:
        return process_objects.context_value(value) or {}

    def set(self, value: Any, key: Any, item: Any) -> None:
        value.set(item)

    def delete(self, value: Any, key: Any) -> None:
        """Leave the value: only the token of the call that set it could unset it."""


class _ThreadLocal(_Fields):
    """Attributes that an object has in the training's thread."""

    def items(self, value: Any) -> dict[Any, Any]:
        return dict(value.__dict__)


class Cell(Items):
    """Variable shared by functions."""

    def items(self, value: Any) -> dict[Any, Any]:
        try:
            return {"cell_contents": value.cell_contents}
        except ValueError:  # not bound yet
            return {}

    def set(self, value: Any, key: Any, item: Any) -> None:
        value.cell_contents = item

    def delete(self, value: Any, key: Any) -> None:
        del value.cell_contents


# -- containers that are stored in full


class _Sequence(Aspect):
    def __init__(self, kind: type) -> None:
        self.kind: Any = kind

    def read(self, value: Any, budget: Budget) -> list[Any]:
        return list(self.kind.__iter__(value))

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if len(value) > _LARGE and are_values(value):
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
        return tuple(value.shape) if self.has_data else None, str(value.dtype), content, bool(value.requires_grad)

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        is_moved = self.has_data and (base is None or base[:3] != now[:3])
        return (own_memory(value.detach()) if is_moved else None), bool(value.requires_grad)

    def put(self, value: Any, carried: Any) -> None:
        torch: Any = sys.modules["torch"]
        data, is_trained = carried
        with torch.no_grad():
            if data is not None and is_lazy(value):
                value.materialize(data.shape, dtype=data.dtype)
            if data is not None and (value.shape != data.shape or value.dtype != data.dtype or 0 in value.stride()):
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
        return -1 if value.closed else int(value.tell())  # writes out what is in the buffer

    def put(self, value: Any, carried: int) -> None:
        if carried >= 0 and not value.closed and carried <= os.fstat(value.fileno()).st_size:
            value.seek(carried)


class _Shared(Aspect):
    """Value or array in memory that processes share: `multiprocessing.Value("i")`."""

    def read(self, value: Any, budget: Budget) -> bytes:
        return bytes(memoryview(value.get_obj()).cast("B"))

    def put(self, value: Any, carried: bytes) -> None:
        memoryview(value.get_obj()).cast("B")[:] = carried


class Whole(Aspect):
    """Object of a class that defines its own pickling."""

    is_whole = is_pickled = True
    can_revert = False


class _Refilled(Aspect):
    """Object of a class written in Python that defines its own pickling: the existing object gets the new fields."""

    is_pickled = True
    can_revert = False

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        return _Content(value)

    def put(self, value: Any, carried: Any) -> None:
        for name in FIELDS.items(value):
            FIELDS.delete(value, name)
        for name, item in FIELDS.items(carried).items():
            FIELDS.set(value, name, item)


# -- which kind an object is of


def aspects_of(value: Any, *, has_data: bool = True) -> tuple[Aspect, ...]:
    """Return the ways in which an object can change; none if it is known by its path alone."""
    kind: Any = type(value)
    special = special_objects.aspects_of(value)
    if special is not None:
        return special
    if isinstance(value, types.FunctionType):
        return () if is_infrastructure(value) else (_FUNCTION,)
    if _is_readable_file(value):
        return (_POSITION,)
    if kind.__module__ == "multiprocessing.sharedctypes" and hasattr(kind, "get_obj"):
        return (_SHARED,)
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
            found = (aspect,)
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
        return (_Tensor(has_data=has_data), FIELDS) if is_usual else (_WHOLE,)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
        return (_ARRAY,) if value.flags.writeable else ()
    keras = keras_objects.aspect_of(value)
    if keras is not None:
        return (keras,)
    if has_plain_fields(kind):
        return (FIELDS,)
    return (_REFILLED,) if _has_plain_layout(kind) and _is_rebuilt_as_its_class(value) else (_WHOLE,)


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


def _is_readable_file(value: Any) -> bool:
    io_module = type(value).__module__ in ("_io", "io")
    try:
        return (
            io_module
            and hasattr(value, "readable")
            and value.readable()
            and value.seekable()
            and (not value.writable() or str(getattr(value, "mode", "")).replace("b", "") == "r+")
        )
    except ValueError:  # closed
        return False


def _slots_of(value: object) -> dict[str, Any]:
    kind: Any = type(value)
    return _slots(kind)


@functools.lru_cache(maxsize=4096)
def _slots(kind: Any) -> dict[str, Any]:
    return {
        name: member
        for base in kind.__mro__
        if base.__flags__ & _HEAP_TYPE
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType
    }


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
    if any(base is not object and not base.__flags__ & _HEAP_TYPE for base in kind.__mro__):
        return False
    return bool(kind.__basicsize__ <= object.__basicsize__ + 8 * (len(_slots(kind)) + 2))


_DICT, FIELDS, _FUNCTION, _CLASS, _MODULE, _CELL = _Dict(), _Fields(), _Function(), _Class(), _Module(), Cell()
_CONTEXT_VARIABLE, _THREAD_LOCAL, _DATABASE = _ContextVariable(), _ThreadLocal(), process_objects.Database()
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
