"""Traversal of objects without running their code: their kinds, their parts, and the path to a part.

A property, `__class__`, `__getattr__` or metaclass may run the user's code, so only what the interpreter itself stores
is read: type, dict, slots, and the contents of the usual containers.
"""

from __future__ import annotations

import functools
import io
import re
import socket
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

__all__ = [
    "GRAD_SCALER",
    "fields_of",
    "is_a",
    "is_from",
    "made_of",
    "path_to",
    "process_bound_kind",
    "shown",
    "title",
    "trained_in",
    "walk",
]

_MRO: Final = type.__dict__["__mro__"].__get__
_MODULE: Final = type.__dict__["__module__"].__get__
_QUALNAME: Final = type.__dict__["__qualname__"].__get__
_OWN: Final = type.__dict__["__dict__"].__get__
_SUBMODULE: Final = re.compile(r"\._modules\['(\w+)'\]")
_PARTS_MAX: Final = 1000
"""Maximum number of elements of a container; the first ones stand for the others."""
_LEAVES: Final = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType)
_CONTAINERS: Final = (
    *(dict, list, tuple, deque, set, frozenset),
    *(types.FunctionType, types.MethodType, functools.partial),
)
_PROCESS_BOUND: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), "an open file"),
    ((type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore), "a lock"),
    ((threading.Event, threading.Barrier), "a synchronisation object of threads"),
    ((threading.Thread,), "a thread"),
    ((socket.socket,), "a network connection"),
    ((types.GeneratorType,), "a running generator"),
    ((types.CoroutineType, types.AsyncGeneratorType), "a coroutine"),
    ((types.ModuleType,), "a module"),
    ((weakref.ref, weakref.ProxyType, weakref.CallableProxyType), "a weak reference"),
    ((types.FrameType, types.TracebackType), "a stack frame"),
    ((memoryview,), "a memory view"),
)
_TRAINED: Final = frozenset(
    {
        ("torch.nn.parameter", "Parameter"),
        ("torch.nn.modules.module", "Module"),
        ("torch.optim.optimizer", "Optimizer"),
        ("keras.src.backend.common.variables", "Variable"),
        ("keras.src.layers.layer", "Layer"),
        ("keras.src.optimizers.base_optimizer", "BaseOptimizer"),
    }
)
_HANDLES: Final[Mapping[tuple[str, str], str]] = {
    ("torch.cuda.streams", "Stream"): "a GPU handle",
    ("torch.cuda.streams", "Event"): "a GPU handle",
    ("torch.cuda.graphs", "CUDAGraph"): "a GPU handle",
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"): "an iterator of a DataLoader",
    ("tensorflow.python.data.ops.dataset_ops", "DatasetV2"): "a pipeline of tf.data",
    ("_csv", "writer"): "a CSV writer",
    ("csv", "DictWriter"): "a CSV writer",
    ("sqlite3", "Connection"): "a database connection",
    ("subprocess", "Popen"): "a running process",
    ("concurrent.futures.thread", "ThreadPoolExecutor"): "a thread pool",
    ("concurrent.futures.process", "ProcessPoolExecutor"): "a process pool",
    ("multiprocessing.pool", "Pool"): "a process pool",
}


def is_a(value: object, *kinds: object) -> bool:
    """Return the result of `isinstance` without using the object's `__class__`."""
    return any(base is kind for base in _MRO(type(value)) for kind in kinds)


def title(kind: type) -> tuple[str, str]:
    """Return the module and qualified name of a class."""
    module = _MODULE(kind)
    return module if type(module) is str else "", _QUALNAME(kind)


GRAD_SCALER: Final = ("torch.amp.grad_scaler", "GradScaler")
"""The title of a class whose objects cannot be pickled between `step` and `update`."""


def is_from(value: object, module: str, name: str) -> bool:
    """Return whether the object's class or a base of it has this module and name."""
    return any(title(base) == (module, name) for base in _MRO(type(value)))


def process_bound_kind(value: object) -> str | None:
    """Return the kind of an object that exists only inside this process; None for all others."""
    for kinds, what in _PROCESS_BOUND:
        if is_a(value, *kinds):
            return what
    return next((_HANDLES[one] for base in _MRO(type(value)) if (one := title(base)) in _HANDLES), None)


def fields_of(value: object) -> Mapping[str, object]:
    """Return an object's own dict; empty if it has none."""
    get = _dict_of(type(value))
    fields = get(value) if get is not None else None
    return fields if type(fields) is dict else {}


def _dict_of(kind: type) -> Callable[[object], object] | None:
    """Return the function that reads the dict of a class' objects."""
    for base in _MRO(kind):
        found = _OWN(base).get("__dict__")
        if type(found) is types.GetSetDescriptorType or type(found) is types.MemberDescriptorType:
            get: Callable[[object], object] = found.__get__
            return get
    return None


@dataclass(frozen=True, slots=True)
class _Kind:
    """Method of reading the objects of one class."""

    kind: type
    is_leaf: bool
    is_container: bool
    get_dict: Callable[[object], object] | None
    slots: tuple[tuple[str, Any], ...]
    is_trained: bool


def _kind(kind: type) -> _Kind:
    lineage = _MRO(kind)
    slots = [
        (f".{name}", member)
        for base in lineage
        if title(base)[0] != "builtins"
        for name, member in _OWN(base).items()
        if type(member) is types.MemberDescriptorType and name != "__dict__"
    ]
    return _Kind(
        kind=kind,
        is_leaf=any(base is leaf for base in lineage for leaf in _LEAVES),
        is_container=any(base is one for base in lineage for one in _CONTAINERS),
        get_dict=_dict_of(kind),
        slots=tuple(slots),
        is_trained=any(title(base) in _TRAINED for base in lineage),
    )


def _parts(value: object, kind: _Kind) -> Iterator[tuple[str, object]]:
    """Yield the objects that an object holds, each with the text to append to its path."""
    if kind.is_leaf:
        return
    if kind.is_container:
        yield from _contents(value)
    fields = kind.get_dict(value) if kind.get_dict is not None else None
    if type(fields) is dict:
        for name, part in list(islice(fields.items(), _PARTS_MAX)):
            yield f".{name}" if type(name) is str else "", part
    for step, member in kind.slots:
        try:
            yield step, member.__get__(value)
        except AttributeError:  # a slot that was never set
            continue


def _contents(value: Any) -> Iterator[tuple[str, object]]:
    if is_a(value, dict):
        for key, part in list(islice(dict.items(value), _PARTS_MAX)):
            yield f"[{key!r}]" if type(key) in (str, int) else "[…]", part
            yield " (a key)", key
    elif is_a(value, list, tuple, deque):
        base: Any = next(kind for kind in (list, tuple, deque) if is_a(value, kind))
        yield from ((f"[{n}]", part) for n, part in enumerate(islice(base.__iter__(value), _PARTS_MAX)))
    elif is_a(value, set, frozenset):
        kind: Any = set if is_a(value, set) else frozenset
        yield from ((" (an element)", part) for part in islice(kind.__iter__(value), _PARTS_MAX))
    elif is_a(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield from ((f" (its `{name}`)", part) for part in _content(cell))
        yield from ((" (a default)", part) for part in (value.__defaults__ or ()))
        yield from ((" (a default)", part) for part in (value.__kwdefaults__ or {}).values())
    elif is_a(value, types.MethodType):
        yield ".__self__", types.MethodType.__self__.__get__(value)
    elif is_a(value, functools.partial):
        for name in ("func", "args", "keywords"):
            yield f".{name}", functools.partial.__dict__[name].__get__(value)


def _content(cell: types.CellType) -> Iterator[object]:
    try:
        yield cell.cell_contents
    except ValueError:  # not bound yet
        return


def walk(
    roots: Mapping[str, object], objects_max: int, *, stops_at: Callable[[object], bool] = lambda _: False
) -> Iterator[tuple[str, object]]:
    """Yield objects and their parts, nearest first, each once, with the path to it.

    The parts of an object that `stops_at` names are left out.
    """
    return ((path, value) for path, value, _ in _walk(roots, objects_max, stops_at))


def _walk(
    roots: Mapping[str, object], objects_max: int, stops_at: Callable[[object], bool] = lambda _: False
) -> Iterator[tuple[str, object, _Kind]]:
    queue = deque(roots.items())
    seen = {id(value) for value in roots.values()}
    kinds: dict[int, _Kind] = {}  # by identity: a metaclass may define its own hash
    while queue:
        path, value = queue.popleft()
        number = id(type(value))
        kind = kinds.get(number) or kinds.setdefault(number, _kind(type(value)))
        yield path, value, kind
        if stops_at(value):
            continue
        for step, part in _parts(value, kind):
            if id(part) not in seen and len(seen) < objects_max:
                seen.add(id(part))
                queue.append((path + step, part))


def path_to(roots: Mapping[str, object], wanted: object, objects_max: int = 200_000) -> str | None:
    """Return the path from a named object to one that it holds: "model.cache['lock']"."""
    path = next((path for path, value in walk(roots, objects_max) if value is wanted), None)
    return None if path is None else shown(path)


def shown(path: str) -> str:
    """Return a path of `walk` as a user writes it: submodules by their names or numbers."""
    return _SUBMODULE.sub(lambda found: f"[{found[1]}]" if found[1].isdigit() else f".{found[1]}", path)


def trained_in(value: object, objects_max: int) -> frozenset[int]:
    """Return the ids of the weights, layers and optimisers in an object; a second copy would train separately."""
    return frozenset(id(part) for _, part, kind in _walk({"": value}, objects_max) if kind.is_trained)


def made_of(value: object, objects_max: int = 20_000) -> frozenset[str]:
    """Return the classes and functions of the notebook that an object consists of."""
    found: set[str] = set()
    for _, part in walk({"": value}, objects_max):
        kind = part if is_a(part, type) else type(part)
        if is_a(part, types.FunctionType):
            module, name = part.__module__, part.__qualname__  # type: ignore[attr-defined]   # of a function
        else:
            module, name = title(kind)  # type: ignore[arg-type]  # a class, as checked above
        if module == "__main__" and "<" not in name:  # local classes and functions are sent by value
            found.add(name.partition(".")[0])
    return frozenset(found)
