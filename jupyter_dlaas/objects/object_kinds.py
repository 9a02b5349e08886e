"""Kinds of objects from a checkpoint's view: their parts, whether they changed, and how they are restored.

Reads what the interpreter itself stores (dict, slots, contents of containers), so that no property or `__getattr__` of
the user runs. Objects of a class that defines its own pickling are stored whole.
"""

from __future__ import annotations

import functools
import operator
import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.objects.array_digests import Budget, as_bytes, digest, is_lazy, own_memory
from jupyter_dlaas.objects.object_aspects import Aspect
from jupyter_dlaas.objects.object_values import are_values, is_atom, is_infrastructure, is_same, is_tensor

__all__ = [
    "FIELDS",
    "Aspect",
    "Budget",
    "Cell",
    "Changes",
    "Generator",
    "Items",
    "Skipped",
    "Whole",
    "aspects_of",
    "changed_items",
    "generator_of",
    "has_plain_fields",
    "put_items",
]

_LARGE: Final = 10_000
"""Length above which a container of values is not searched for objects."""
_HEAP_TYPE: Final = 1 << 9
_LEFT_ALONE: Final = frozenset({"_iterator", "_opt_called", "_dlaas_ddp"})
"""Fields of library objects that are recreated on demand."""


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


def put_items(space: dict[str, Any], changes: Changes) -> None:
    """Apply changes to a namespace."""
    for key in changes.gone:
        space.pop(key, None)
    space.update({key: item for key, item in changes.values.items() if not isinstance(item, Skipped)})


class _Dict(Items):
    def items(self, value: Any) -> dict[Any, Any]:
        return dict(dict.items(value))

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
        keys = ((f" (key {number})", key) for number, key in enumerate(value) if not is_atom(key))
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
        return {name: part for name, part in found.items() if name not in _LEFT_ALONE}

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
        return value.view()

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
        content = digest(as_bytes(value), budget) if self.has_data else None
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


# -- random generators and files


class Generator(Aspect):
    """State of a random generator."""

    def __init__(
        self, get: Callable[[Any], Any], put: Callable[[Any, Any], object], seed: Callable[[Any, int], object]
    ) -> None:
        self._get, self._put, self.seed = get, put, seed

    def read(self, value: Any, budget: Budget) -> bytes:
        return pickle.dumps(self._get(value), protocol=5)

    def put(self, value: Any, carried: bytes) -> None:
        self._put(value, pickle.loads(carried))  # noqa: S301 - pickled by this job


def _put_bits(generator: Any, state: Any) -> None:
    generator.state = state


def _seed_bits(generator: Any, seed: int) -> None:
    generator.state = type(generator)(seed).state


_PYTHON: Final = Generator(
    lambda rng: rng.getstate(), lambda rng, state: rng.setstate(state), lambda rng, n: rng.seed(n)
)
_BITS: Final = Generator(lambda rng: rng.state, _put_bits, _seed_bits)
_NUMPY: Final = Generator(
    lambda rng: rng.bit_generator.state,
    lambda rng, state: _put_bits(rng.bit_generator, state),
    lambda rng, n: _seed_bits(rng.bit_generator, n),
)
_LEGACY: Final = Generator(
    lambda rng: rng.get_state(), lambda rng, state: rng.set_state(state), lambda rng, n: rng.seed(n % 2**32)
)
_TORCH: Final = Generator(
    lambda rng: rng.get_state(), lambda rng, state: rng.set_state(state), lambda rng, n: rng.manual_seed(n)
)


class _Position(Aspect):
    """Position in a file that is being read; the file may be closed by now."""

    def read(self, value: Any, budget: Budget) -> int:
        return -1 if value.closed else int(value.tell())

    def put(self, value: Any, carried: int) -> None:
        if carried >= 0 and not value.closed:
            value.seek(carried)


class Whole(Aspect):
    """Object of a class that defines its own pickling."""

    is_whole = True
    can_revert = False


def generator_of(value: Any) -> Generator | None:
    """Return the methods to read and restore a random generator's state; None for other objects."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _PYTHON
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        for kind, aspect in ((numpy.Generator, _NUMPY), (numpy.BitGenerator, _BITS), (numpy.RandomState, _LEGACY)):
            if isinstance(value, kind):
                return aspect
    torch: Any = sys.modules.get("torch")
    return _TORCH if torch is not None and isinstance(value, torch.Generator) else None


# -- which kind an object is of


def aspects_of(value: Any, *, has_data: bool = True) -> tuple[Aspect, ...]:
    """Return the ways in which an object can change; none if it is known by its path alone."""
    kind: Any = type(value)
    if isinstance(value, types.FunctionType):
        return () if is_infrastructure(value) else (_FUNCTION,)
    if _is_readable_file(value):
        return (_POSITION,)
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
        return (_Tensor(has_data=has_data),) if is_usual else (_WHOLE,)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
        return (_ARRAY,) if value.flags.writeable else ()
    keras = keras_objects.aspect_of(value)
    if keras is not None:
        return (keras,)
    return (FIELDS,) if has_plain_fields(kind) else (_WHOLE,)


def _is_readable_file(value: Any) -> bool:
    io_module = type(value).__module__ in ("_io", "io")
    try:
        return (
            io_module and hasattr(value, "readable") and value.readable() and not value.writable() and value.seekable()
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
    if any(base is not object and not base.__flags__ & _HEAP_TYPE for base in kind.__mro__):
        return False
    usual: Any = object
    has_own_way = any(
        getattr(kind, name, None) is not getattr(usual, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )
    return not has_own_way and kind.__basicsize__ <= object.__basicsize__ + 8 * (len(_slots(kind)) + 2)


_DICT, FIELDS, _FUNCTION, _CLASS, _MODULE, _CELL = _Dict(), _Fields(), _Function(), _Class(), _Module(), Cell()
_ARRAY, _POSITION, _WHOLE = _Array(), _Position(), Whole()
_EXACT: Final[Mapping[type, Aspect]] = {
    dict: _DICT,
    list: _Sequence(list),
    deque: _Sequence(deque),
    set: _Set(),
    bytearray: _Bytes(),
    types.CellType: _CELL,
}
