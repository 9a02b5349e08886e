"""Names whose objects a training cell changes in place, found by comparison of their content.

The analysis of a cell's text cannot see all of them: a list in a closure, in a module or in a callback.
"""

from __future__ import annotations

import functools
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from jupyter_dlaas.objects import code_versions, keras_objects
from jupyter_dlaas.objects.object_kinds import FIELDS
from jupyter_dlaas.objects.object_values import is_infrastructure
from jupyter_dlaas.transfer.result_kinds import (
    ATOMS,
    has_state,
    is_estimator,
    is_table,
    is_tensor,
    is_users,
)
from jupyter_dlaas.transfer.shared_objects import DigestFile, TooLarge, reference

__all__ = ["ObjectContents"]

_BYTES_MAX: Final = 1 << 16
"""Maximum size of a value's content; of larger containers, only the length is compared."""
_ARRAY_BYTES_MAX: Final = 1 << 16
"""Maximum size of an array that is compared."""
_OBJECTS_MAX: Final = 200_000
"""Maximum number of objects that are read when the training cell begins: tens of milliseconds. With a limit in seconds,
the report would depend on the machine's speed."""
_CONTAINERS: Final = frozenset({"deque", "defaultdict", "OrderedDict", "Counter", "partial", "SimpleNamespace"})
_FUNCTIONS: Final = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)


class ObjectContents:
    """The content of a program's objects at the beginning of its training cell."""

    def __init__(self, names: Mapping[str, Any], returned: Collection[int] = frozenset()) -> None:
        """Record the content of the objects with these names, in their order, up to a number of objects.

        `returned`: identities of objects that the job returns; what refers to them in the notebook follows.
        """
        self._returned = returned
        self._found: dict[str, tuple[Callable[[], object], object]] = {}
        left = _OBJECTS_MAX
        for name, value in names.items():
            if left <= 0:
                break
            if not name.startswith("_") and _has_content(value):
                content, count = _content(value, returned)
                self._found[name] = reference(value), content
                left -= count

    def changed(self, names: Mapping[str, Any]) -> list[str]:
        """Return the names that still have the same object, with another content."""
        same = {name: before for name, (get, before) in self._found.items() if name in names and get() is names[name]}
        same = {name: before for name, before in same.items() if before is not None}
        return sorted(name for name, before in same.items() if _content(names[name], self._returned)[0] != before)


def _has_content(value: Any) -> bool:
    """Return whether a value can change in place. The analysis of the text finds what trains models and optimisers."""
    if isinstance(value, types.ModuleType):
        return code_versions.is_own_module(value)
    if keras_objects.is_layer(value):  # the text does not show draws in a pipeline of tf.data
        return True
    return not (isinstance(value, (str, bytes, int, float, complex, type(None))) or has_state(value))


def _content(value: Any, returned: Collection[int]) -> tuple[object, int]:
    """Return something that differs if the content of a value differs, and the number of objects that were read.

    The content is None if it cannot be read.
    """
    file = DigestFile(_BYTES_MAX)
    contents = _Contents(file, returned)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            contents.dump(_Opened(value) if isinstance(value, type | types.ModuleType) else value)
    except TooLarge:
        return len(value) if isinstance(value, list | dict | set | tuple) else None, contents.count
    except Exception:  # noqa: BLE001 - values of any class may refuse in any way
        return None, contents.count
    return file.digest(), contents.count


class _Opened:
    """A class or module of the user whose own values are compared; otherwise its name stands for it."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _equal(*parts: object) -> None:
    """Stand for an object in its content; never called."""


class _Contents(pickle.Pickler):
    """Pickler that writes what a program can change in an object, without running the program's code."""

    def __init__(self, file: DigestFile, returned: Collection[int]) -> None:
        super().__init__(file, protocol=5)
        self._returned = returned
        self.count = 0
        """The number of objects that were read."""

    def persistent_id(self, obj: Any) -> Any:
        self.count += 1
        return "returned" if id(obj) in self._returned else None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is _Opened:
            return _equal, tuple(sorted(_own_values(obj.value).items()))
        if obj is _equal:
            return NotImplemented
        if isinstance(obj, _FUNCTIONS):
            return _equal, _parts_of_function(obj)
        if keras_objects.is_layer(obj):
            return _equal, (kind.__qualname__, [one.tolist() for one in keras_objects.generator_states(obj)])
        if is_infrastructure(obj) or isinstance(obj, type | types.ModuleType) or has_state(obj):
            return _equal, (kind.__qualname__, getattr(obj, "__qualname__", ""))
        if is_tensor(obj):
            is_small = obj.device.type == "cpu" and obj.numel() * obj.element_size() <= _ARRAY_BYTES_MAX
            is_compared = is_small and not obj.requires_grad and obj.layout == sys.modules["torch"].strided
            return _equal, (tuple(obj.shape), obj.contiguous().numpy().tobytes() if is_compared else b"")
        if kind.__module__ == "numpy":
            has_objects = getattr(getattr(obj, "dtype", None), "hasobject", False)
            is_compared = not has_objects and getattr(obj, "nbytes", 0) <= _ARRAY_BYTES_MAX
            return NotImplemented if is_compared else (_equal, (getattr(obj, "shape", ()),))
        if is_table(obj):
            return _equal, (obj.shape, obj.to_dict() if obj.size * 8 <= _ARRAY_BYTES_MAX else {})
        if kind.__name__ in _CONTAINERS and not is_users(kind):
            return NotImplemented
        if isinstance(obj, ATOMS):
            return _equal, (kind.__qualname__, str(obj))
        base: Any = next((one for one in (dict, list, set, tuple, frozenset) if isinstance(obj, one)), None)
        if base is not None:  # of a class derived from it
            items = [*dict.items(obj)] if base is dict else [*base.__iter__(obj)]
            return _equal, (kind.__qualname__, items, *sorted(FIELDS.items(obj).items()))
        if is_estimator(obj) or is_users(kind):
            return _equal, (kind.__qualname__, *sorted(FIELDS.items(obj).items()))
        return _equal, (kind.__qualname__,)  # an object of a library: its content is its own affair


def _parts_of_function(function: Any) -> tuple[object, ...]:
    if not isinstance(function, types.FunctionType):
        owner = getattr(function, "__self__", None)
        return (function.__name__, None if isinstance(owner, types.ModuleType) else owner)
    if not is_users(function):
        return (function.__qualname__,)
    held = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is not bound yet
            held.append(cell.cell_contents)
    return (function.__qualname__, held, function.__defaults__, function.__kwdefaults__, function.__dict__)


def _own_values(owner: type | types.ModuleType) -> dict[str, object]:
    """Return the data of a class or module, without its definitions and imports."""
    if isinstance(owner, type) and not is_users(owner):
        return {}
    return {
        name: value
        for name, value in vars(owner).items()
        if not (name.startswith("__") or hasattr(type(value), "__get__"))
        and not isinstance(value, type | types.ModuleType | functools.cached_property)
    }
