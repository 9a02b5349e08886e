"""Objects of libraries with state that neither fields nor pickling show: weak references, hooks, partials, events.

Also values that programs attach to modules and classes of libraries.
"""

from __future__ import annotations

import functools
import io
import os
import re
import stat
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jupyter_dlaas.objects import process_settings
from jupyter_dlaas.objects.array_digests import Budget
from jupyter_dlaas.objects.object_aspects import Aspect
from jupyter_dlaas.objects.object_values import is_atom, is_infrastructure, is_same, program_mentions

__all__ = ["STREAMS", "Attached", "aspects_of", "is_deleted", "is_lost", "reduce_special"]

_UNSET: Final = "_dlaas_unset"
_UNCHANGED: Final = "_dlaas_unchanged"
_WEAK: Final = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_LOST: Final = frozenset(
    {
        *("mmap.mmap", "multiprocessing.queues.Queue", "multiprocessing.queues.SimpleQueue", "_queue.SimpleQueue"),
        *("multiprocessing.queues.JoinableQueue", "_hashlib.HASH", "_blake2.blake2b", "_blake2.blake2s"),
        *("cupy.random._generator.RandomState", "cupy.random._generator_api.Generator"),
        *("zlib.Compress", "zlib.Decompress", "tempfile.TemporaryDirectory", "tempfile._TemporaryFileWrapper"),
        "tempfile.SpooledTemporaryFile",
    }
)
_CACHED: Final = type(functools.lru_cache(bool))
_VARYING: Final = re.compile(
    r"rand|choice|shuffle|normal|uniform|sampl|time|now|uuid|load|read|open|counter|dropout|noise"
)
"""Names of functions whose results differ between calls, by chance, time or files."""
_CALLED_MAX: Final = 20
_RECOMPUTED: Final = (
    "results in a cache cannot be stored, and the function may return others when it computes them again: keep the "
    "results in a dictionary, which is stored"
)
_COUNTED: Final = (
    "its counts begin again at 0 where the job resumes, and the program reads them with cache_info(): count the calls "
    "in a variable, which is stored"
)
_ACQUIRED: Final = "it was acquired in the loop: acquire it above the loop, so that the job acquires it again"
_SIGNALS: Final = (threading.Event, threading.Semaphore)
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))


class Attached:
    """Stands for attributes that a program sets on a module or class of a library: `torch.nn.functional.scale`."""

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self.owner, self.names = owner, tuple(names)


class _Attached(Aspect):
    """Values of these attributes; a missing one has a value of its own."""

    def read(self, value: Attached, budget: Budget) -> list[Any]:
        return [vars(value.owner).get(name, _UNSET) for name in value.names]

    def parts(self, value: Attached) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", vars(value.owner)[name]) for name in value.names if name in vars(value.owner))

    def differs(self, base: list[Any], now: list[Any]) -> bool:
        return not all(map(is_same, base, now))

    def put(self, value: Attached, carried: Sequence[Any]) -> None:
        for name, one in zip(value.names, carried, strict=True):
            if isinstance(one, str) and one == _UNSET:
                if name in vars(value.owner):
                    delattr(value.owner, name)
            elif not _is_skipped(one):
                setattr(value.owner, name, one)


class _Streams(_Attached):
    """Streams to which `print` writes, which a `with` statement may redirect."""

    is_of_epoch = True

    def parts(self, value: Attached) -> Iterator[tuple[str, Any]]:
        return (pair for pair in super().parts(value) if not is_infrastructure(pair[1]))

    def carry(self, value: Attached, base: Any, now: Sequence[Any]) -> list[Any]:
        return [_UNCHANGED if is_infrastructure(one) else one for one in now]

    def put(self, value: Attached, carried: Sequence[Any]) -> None:
        pairs = zip(value.names, carried, strict=True)
        for name, one in [(name, one) for name, one in pairs if not (_is_skipped(one) or one == _UNCHANGED)]:
            setattr(value.owner, name, one)


class _Weak(Aspect):
    """Weak dictionaries and sets. What they refer to weakly is never kept alive."""

    def read(self, value: Any, budget: Budget) -> list[Any]:
        data: Any = value.data
        if isinstance(value, weakref.WeakSet):
            return [(one,) for one in list(data) if one() is not None]
        items = list(data.items())
        is_by_key = isinstance(value, weakref.WeakKeyDictionary)
        return [pair for pair in items if (pair[0] if is_by_key else pair[1])() is not None]

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, weakref.WeakSet):
            return
        is_by_key = isinstance(value, weakref.WeakKeyDictionary)
        for number, pair in enumerate(self.read(value, Budget())):
            yield f" (entry {number})", pair[1] if is_by_key else pair[0]

    def differs(self, base: list[Any], now: list[Any]) -> bool:
        if len(base) != len(now):
            return True
        return not all(
            one is other or is_same(one, other)
            for pair, other_pair in zip(base, now, strict=True)
            for one, other in zip(pair, other_pair, strict=True)
        )

    def carry(self, value: Any, base: Any, now: list[Any]) -> list[Any]:
        pairs = [tuple(one() if isinstance(one, weakref.ref) else one for one in pair) for pair in now]
        return [pair for pair in pairs if None not in map(_nothing, pair)]

    def put(self, value: Any, carried: Sequence[Any]) -> None:
        value.clear()
        for pair in carried:
            if _is_skipped(pair):
                continue
            if isinstance(value, weakref.WeakSet):
                value.add(pair[0])
            else:
                value[pair[0]] = pair[1]


class _Cache(Aspect):
    """Cache of a function, which cannot be read: it is reported if its results or counts may differ afterwards."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def read(self, value: Any, budget: Budget) -> tuple[int, str]:
        return value.cache_info().misses, str(getattr(value, "__qualname__", "a function"))

    def differs(self, base: tuple[int, str], now: tuple[int, str]) -> bool:
        return False

    def withheld(self, base: tuple[int, str], now: tuple[int, str]) -> Mapping[str, str]:
        return {f"cache of {now[1]}": self._reason} if now[0] != base[0] else {}

    def put(self, value: Any, carried: Any) -> None:
        """Leave the cache: it is filled again."""


def _may_vary(function: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Return whether a function may return something else for the same arguments: by chance, time or other values."""
    while (inner := vars(function).get("__wrapped__")) is not None:
        function = inner
    if not isinstance(function, types.FunctionType) or function in seen or len(seen) > _CALLED_MAX:
        return False
    code, space = function.__code__, function.__globals__
    if code.co_freevars or "self" in code.co_varnames[:1]:
        return True
    for name in _names_in(code):
        one = space.get(name)
        if _VARYING.search(name) or not (one is None or is_atom(one) or callable(one)):
            return True
        if isinstance(one, types.FunctionType) and _may_vary(one, seen | {function}):
            return True
    return False


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names_in(part)


def _nothing(one: object) -> object:
    """Return None for a referent that is gone; anything else is a value, also one that compares in a way of its own."""
    return None if one is None else True


class _Partial(Aspect):
    """Function and arguments of a `functools.partial`."""

    def read(self, value: Any, budget: Budget) -> tuple[Any, ...]:
        return value.func, value.args, value.keywords

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))

    def differs(self, base: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
        return not all(map(is_same, base, now))

    def put(self, value: Any, carried: tuple[Any, ...]) -> None:
        value.__setstate__((*carried, vars(value)))


class _Hooks(Aspect):
    """Hooks of modules, optimisers and tensors of torch, by their order: their numbers differ in each process."""

    def read(self, value: Any, budget: Budget) -> list[tuple[int, Any]]:
        return [(key, one) for key, one in value.items() if not is_infrastructure(one)]

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return ((f" (hook {number})", one) for number, (_, one) in enumerate(self.read(value, Budget())))

    def differs(self, base: list[tuple[int, Any]], now: list[tuple[int, Any]]) -> bool:
        return not is_same(tuple(base), tuple(now))

    def carry(self, value: Any, base: Any, now: list[tuple[int, Any]]) -> list[Any]:
        """Return the positions of the hooks that are left, and new hooks with their numbers."""
        places = {key: place for place, (key, _) in enumerate(base or ())}
        return [places.get(key, (key, one)) for key, one in now]

    def put(self, value: Any, carried: Sequence[Any]) -> None:
        before = self.read(value, Budget())
        self._fill(value, [before[one] if isinstance(one, int) else one for one in carried if not _is_skipped(one)])

    def revert(self, value: Any, base: list[tuple[int, Any]], now: Any) -> None:
        self._fill(value, base)

    def _fill(self, value: Any, hooks: Sequence[tuple[int, Any]]) -> None:
        """Set the program's hooks; those of the infrastructure stay."""
        for key, _ in self.read(value, Budget()):
            del value[key]
        for key, one in hooks:
            value[key if key not in value else max(value) + 1] = one


class _Signal(Aspect):
    """Event or semaphore between threads: whether it is set, or its count."""

    is_of_epoch = True

    def read(self, value: Any, budget: Budget) -> Any:
        return vars(value)["_flag" if isinstance(value, threading.Event) else "_value"]

    def put(self, value: Any, carried: Any) -> None:
        vars(value)["_flag" if isinstance(value, threading.Event) else "_value"] = carried


class _Lock(Aspect):
    """Lock that the loop holds: it is reported, since another thread may hold it, which a job does not continue."""

    is_of_epoch = True

    def __init__(self) -> None:
        self._at_epoch: dict[int, bool] = {}

    def read(self, value: Any, budget: Budget) -> tuple[bool, bool]:
        """Return whether the lock is held, and whether it was held when the epoch began."""
        is_held = value.locked() if isinstance(value, _LOCKS[0]) else value._is_owned()
        return is_held, self._at_epoch.get(id(value), True)

    def differs(self, base: tuple[bool, bool], now: tuple[bool, bool]) -> bool:
        return False

    def mark(self, value: Any, now: tuple[bool, bool]) -> None:
        self._at_epoch[id(value)] = now[0]

    def withheld(self, base: tuple[bool, bool], now: tuple[bool, bool]) -> Mapping[str, str]:
        return {"": _ACQUIRED} if now == (True, True) and not base[0] else {}

    def put(self, value: Any, carried: Any) -> None:
        """Leave the lock: a thread that the job does not continue may have held it."""


def is_lost(value: object) -> bool:
    """Return whether a halt loses what an object holds: memory, queues, checksums in progress, temporary files."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__name__}" in _LOST or (isinstance(value, io.IOBase) and is_deleted(value))


def is_deleted(file: Any) -> bool:
    """Return whether an open file has no name any more, as that of `tempfile.TemporaryFile()`."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):  # no file of the system, or closed
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 0


def _is_skipped(one: object) -> bool:
    return type(one).__name__ == "Skipped"


def aspects_of(value: Any) -> tuple[Aspect, ...] | None:
    """Return the ways in which such an object can change; None for all other objects."""
    if value is process_settings.SETTINGS:
        return (_SETTINGS,)
    if value is os.environ or value is vars(os.environ).get("_data"):
        return ()  # a part of the settings, which leave secrets out
    if value is STREAMS:
        return (_STREAMS,)
    if isinstance(value, Attached):
        return (_ATTACHED,)
    if type(value) is functools.partial:
        return (_PARTIAL,)
    if type(value) is _CACHED:
        return (_CACHE,) if _may_vary(value) else (_COUNTED_CACHE,) if program_mentions("cache_info") else ()
    if type(value) is OrderedDict and _are_hooks(value):
        return (_HOOKS,)
    if type(value) in _WEAK:
        return (_WEAK_CONTAINER,)
    if isinstance(value, _LOCKS):
        return (_LOCK,)
    return (_SIGNAL,) if isinstance(value, _SIGNALS) else None


def _are_hooks(value: Mapping[Any, Any]) -> bool:
    """Return whether a dictionary is one of torch's: functions by numbers."""
    return bool(value) and all(type(key) is int and callable(one) for key, one in value.items())


def reduce_special(value: Any) -> Any:
    """Return the reduction of a weak reference or dictionary, or of hooks; NotImplemented for other objects."""
    if type(value) is OrderedDict and _are_hooks(value):
        return OrderedDict, (), None, None, iter(_HOOKS.read(value, Budget()))
    if type(value) in _WEAK[:2]:
        return type(value), (), None, None, iter(list(value.items()))
    if not isinstance(value, weakref.ref):
        return NotImplemented
    found = value()
    if found is None:
        return weakref.ref, (set(),)  # its referent is gone as soon as everything is loaded
    return (weakref.WeakMethod if type(value) is weakref.WeakMethod else weakref.ref), (found,)


_CACHE, _COUNTED_CACHE, _LOCK = _Cache(_RECOMPUTED), _Cache(_COUNTED), _Lock()
_ATTACHED, _PARTIAL, _HOOKS, _WEAK_CONTAINER, _SIGNAL = _Attached(), _Partial(), _Hooks(), _Weak(), _Signal()
_STREAMS: Final = _Streams()
STREAMS: Final = Attached(sys, ("stdout", "stderr"))
_SETTINGS: Final = process_settings.Settings()
