"""Objects that hold others by name or key: namespaces, dictionaries, fields, functions, classes, modules.

Only changed items are stored.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects import process_objects
from jupyter_dlaas.objects.array_digests import Budget
from jupyter_dlaas.objects.object_aspects import Aspect
from jupyter_dlaas.objects.object_values import are_values, is_atom, is_infrastructure, is_same

__all__ = [
    "DESCRIPTORS",
    "FIELDS",
    "HEAP_TYPE",
    "INSTANCE_FIELDS",
    "KEY",
    "LARGE",
    "Cell",
    "Changes",
    "ClassItems",
    "ContextVariable",
    "Dict",
    "EnumMember",
    "Factory",
    "Function",
    "Items",
    "MemberFields",
    "Module",
    "Skipped",
    "TensorFields",
    "ThreadLocal",
    "changed_items",
    "put_items",
    "slots",
]

LARGE: Final = 10_000
"""Length above which a container of values is not searched for objects."""
KEY: Final = " (key "
"""Begin of the step to an object that is a dictionary's key."""
HEAP_TYPE: Final = 1 << 9
"""Flag of classes that are not built in: `Py_TPFLAGS_HEAPTYPE`."""
_LEFT_ALONE: Final = frozenset({"_iterator", "_opt_called"})
"""Fields of library objects that are recreated on demand."""
_OWN_FIELDS: Final = "_dlaas_"
_CLASS: Final = "__class__"
DESCRIPTORS: Final = (staticmethod, classmethod, property, functools.cached_property)
"""Objects through which a class holds functions."""


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


class Dict(Items):
    """Dictionaries: their items and the order of these."""

    def items(self, value: Any) -> dict[Any, Any]:
        return dict((OrderedDict if isinstance(value, OrderedDict) else dict).items(value))

    def differs(self, base: dict[Any, Any], now: dict[Any, Any]) -> bool:
        return bool(base or now) and (super().differs(base, now) or not _is_in_order(base, now))

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
        if len(value) > LARGE and are_values(value.values()):
            return iter(())
        keys = ((f"{KEY}{number})", key) for number, key in enumerate(value) if not is_atom(key))
        return iter((*super().parts(value), *keys))


class Factory(Aspect):
    """Function with which a `defaultdict` creates missing values."""

    def read(self, value: Any, budget: Budget) -> tuple[Any, ...]:
        return (value.default_factory,)

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield ".default_factory", value.default_factory

    def differs(self, base: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
        return not is_same(base, now)

    def put(self, value: Any, carried: tuple[Any, ...]) -> None:
        (value.default_factory,) = carried


class Fields(Items):
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


class TensorFields(Fields):
    """Fields of a tensor, and its hooks, which it keeps elsewhere."""

    _hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")

    def items(self, value: Any) -> dict[Any, Any]:
        found = super().items(value)
        for name in self._hooks if value.is_leaf else ():
            hooks = getattr(value, name, None)
            if hooks is not None and not (hooks and all(map(is_infrastructure, hooks.values()))):
                found[name] = hooks
        return found

    def set(self, value: Any, key: Any, item: Any) -> None:
        if key in self._hooks:
            for one in self._of_infrastructure(value, key):
                item[max(item, default=0) + 1] = one
            setattr(value, key, item)
        else:
            super().set(value, key, item)

    def _of_infrastructure(self, value: Any, key: str) -> list[Any]:
        return [one for one in (getattr(value, key, None) or {}).values() if is_infrastructure(one)]

    def delete(self, value: Any, key: Any) -> None:
        if key in self._hooks:
            ours = self._of_infrastructure(value, key)
            setattr(value, key, OrderedDict(enumerate(ours)) if ours else None)
        else:
            super().delete(value, key)


class InstanceFields(Fields):
    """Fields of an object, and its class, which a program may replace."""

    def items(self, value: Any) -> dict[Any, Any]:
        found = super().items(value)
        found[_CLASS] = type(value)
        return found

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", part) for name, part in super().items(value).items())

    def set(self, value: Any, key: Any, item: Any) -> None:
        if key == _CLASS:
            object.__setattr__(value, _CLASS, item)
        else:
            super().set(value, key, item)

    def delete(self, value: Any, key: Any) -> None:
        if key != _CLASS:
            super().delete(value, key)


class Function(Fields):
    """Attributes, code, defaults and names of a function; its closure is only searched."""

    _own = ("__code__", "__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__doc__")

    def items(self, value: Any) -> dict[Any, Any]:
        return self._attributes(value) | {name: getattr(value, name) for name in self._own}

    def _attributes(self, value: Any) -> dict[Any, Any]:
        return {name: part for name, part in vars(value).items() if name != "__wrapped__"}

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield from ((f".{name}", part) for name, part in self._attributes(value).items())
        names = value.__code__.co_freevars
        yield from ((f" (its {name})", cell) for name, cell in zip(names, value.__closure__ or (), strict=True))
        yield from ((f" (default {number})", part) for number, part in enumerate(value.__defaults__ or ()))
        yield from ((f" (default {name})", part) for name, part in (value.__kwdefaults__ or {}).items())

    def set(self, value: Any, key: Any, item: Any) -> None:
        if key in self._own:
            setattr(value, key, item)
        else:
            super().set(value, key, item)


class EnumMember:
    """Stands for the attributes of a member of an enumeration, which is a value by itself."""

    def __init__(self, member: Any) -> None:
        self.member = member


class MemberFields(Items):
    """Attributes that a program sets on a member of an enumeration."""

    def items(self, value: EnumMember) -> dict[Any, Any]:
        return {name: one for name, one in vars(value.member).items() if not name.startswith("_")}

    def set(self, value: EnumMember, key: Any, item: Any) -> None:
        setattr(value.member, key, item)

    def delete(self, value: EnumMember, key: Any) -> None:
        delattr(value.member, key)


class ClassItems(Items):
    """Values, methods, names and bases of a class of the notebook or of its modules."""

    _own = ("__name__", "__qualname__", "__bases__")

    def items(self, value: Any) -> dict[Any, Any]:
        left_out = (types.GetSetDescriptorType, types.MemberDescriptorType)
        found = {
            name: part
            for name, part in vars(value).items()
            if not isinstance(part, left_out) and (not name.startswith("__") or isinstance(part, types.FunctionType))
        }
        return found | {name: getattr(value, name) for name in self._own}

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        for name, part in self.items(value).items():
            for step, one in _functions_of(part) if isinstance(part, DESCRIPTORS) else [("", part)]:
                yield f".{name}{step}", one
        if isinstance(value, enum.EnumType):
            members: Mapping[str, Any] = value.__members__
            yield from ((f".{name} (member)", EnumMember(one)) for name, one in members.items())

    def set(self, value: Any, key: Any, item: Any) -> None:
        setattr(value, key, item)

    def delete(self, value: Any, key: Any) -> None:
        if key in vars(value):
            delattr(value, key)


def _functions_of(descriptor: Any) -> Iterator[tuple[str, Any]]:
    names = ("__func__", "fget", "fset", "fdel", "func")
    return ((f".{name}", one) for name in names if (one := getattr(descriptor, name, None)) is not None)


class Module(Fields):
    """Values of a module of the user."""

    def items(self, value: Any) -> dict[Any, Any]:
        found = vars(value).items()
        return {k: v for k, v in found if not k.startswith("__") and not isinstance(v, types.ModuleType)}


class ContextVariable(Items):
    """Value of a context variable in the training's context."""

    is_of_epoch = True

    def items(self, value: Any) -> dict[Any, Any]:
        return process_objects.context_value(value) or {}

    def set(self, value: Any, key: Any, item: Any) -> None:
        value.set(item)

    def delete(self, value: Any, key: Any) -> None:
        """Leave the value: only the token of the call that set it could unset it."""


class ThreadLocal(Fields):
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


def _slots_of(value: object) -> dict[str, Any]:
    kind: Any = type(value)
    return slots(kind)


@functools.lru_cache(maxsize=4096)
def slots(kind: Any) -> dict[str, Any]:
    return {
        name: member
        for base in kind.__mro__
        if base.__flags__ & HEAP_TYPE
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType
    }


FIELDS: Final = Fields()
INSTANCE_FIELDS: Final = InstanceFields()
