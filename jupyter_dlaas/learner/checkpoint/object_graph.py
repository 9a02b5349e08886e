"""The object graph of a program: the objects reachable from its names, each by its path, and their changes.

A checkpoint stores changes, not objects. An object that the program recreates before its loop (a model, a scheduler, a
list) is identified by its path, and only its content is stored and restored. So references to it from a closure, a hook
or a running loop stay valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import pickle
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.learner.checkpoint.graph_pickler import ID_OF, PART, new_pickler
from jupyter_dlaas.learner.environment.seeds import derive
from jupyter_dlaas.objects import object_kinds as kinds
from jupyter_dlaas.objects.array_digests import is_lazy
from jupyter_dlaas.objects.object_values import is_atom, is_infrastructure, is_sharded
from jupyter_dlaas.objects.process_objects import is_finished_cursor
from jupyter_dlaas.objects.random_generators import Generator
from jupyter_dlaas.objects.special_objects import is_lost

__all__ = ["Entry", "ObjectGraph", "Stored", "Undone"]

_ENTRIES_MAX: Final = 300_000
_DEPTH_MAX: Final = 60
_SEARCHED_MAX: Final = 10_000
"""The number of objects made within an epoch that are searched for iterators."""
_WHOLE_BYTES: Final = 1 << 24
"""The size in bytes beyond which an object with its own pickling is not compared."""
_COPIED_BYTES: Final = 1 << 31
_UNCHANGED_BYTES: Final = 1 << 24
"""The size in bytes beyond which an array that has not changed so far is considered data, and not copied."""
_SHARED: Final = "it uses the memory of `{owner}` since the loop began: assign it above the loop"
Changes = dict[str, dict[int, Any]]
"""The new content of objects that existed before the loop, by path and index of the aspect."""
Undone = dict[tuple[str, int], Any]
"""The content that was replaced by the one from before the loop, by path and index of the aspect."""


@dataclass(slots=True, eq=False)
class Entry:
    """An object that existed before the loop."""

    path: str
    value: Any
    aspects: tuple[kinds.Aspect, ...]
    base: list[Any] = field(default_factory=list)
    """The content of each aspect at that time."""


@dataclass(slots=True)
class Stored:
    """Changes as bytes, and the reasons by path for what could not be stored."""

    data: bytes
    left_out: dict[str, str]


class ObjectGraph:
    """The objects reachable from named roots."""

    def __init__(self, roots: Mapping[str, Any], *, given: Iterable[Any] = ()) -> None:
        """Build the graph. `given`: models and optimisers whose weights and states are stored elsewhere."""
        self.entries: dict[str, Entry] = {}
        self.is_partial = False
        """True if the graph is larger than the limits, so that not all objects are in it."""
        self.unstorable: dict[str, object] = {}
        """Objects by path that exist only in this process and that the program may advance."""
        self._aliases: dict[str, Entry] = {}
        """Objects by a path over the key of a dictionary, for those that have another path."""
        self._of: dict[int, Entry] = {}
        self._holders: dict[int, list[str]] = {}
        self._copies: dict[tuple[str, int], Any] = {}
        """By path and aspect, copies of arrays made when this graph was built."""
        self._has_copies = False
        self.parts: dict[str, object] = {}
        """The parts of the running program that no copy can replace, by path: entered context managers."""
        self._given = _kept_otherwise(given)
        self._walk(roots)
        budget = kinds.Budget()
        for entry in self.entries.values():
            self._read_base(entry, budget)
        self._tensors = [(path, one.value) for path, one in self.entries.items() if _has_memory(one.value)]
        self._owners = self._memory_owners()

    def _walk(self, roots: Mapping[str, Any]) -> None:
        queue: deque[tuple[str, Any, str, int]] = deque((path, one, "", 0) for path, one in roots.items())
        # Keys come last: a program that has restored its optimiser has parameters there that a new one has not.
        keys: deque[tuple[str, Any, str, int]] = deque()
        while queue or keys:
            path, value, holder, depth = (queue or keys).popleft()
            if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, kinds.CONTAINERS):
                path, value = f"{path}.__self__", value.__self__  # `record = losses.append`
            if is_atom(value):
                continue
            if isinstance(value, tuple | types.MethodType):
                queue.extend((path + step, part, holder, depth + 1) for step, part in _inside(value))
                if not _has_attributes(value):
                    continue
            entry = self._of.get(id(value))
            if entry is not None and path.endswith(")"):
                self._aliases[path] = entry
            if entry is None:
                if len(self._of) >= _ENTRIES_MAX or depth > _DEPTH_MAX or path in self.entries:
                    self.is_partial = True
                    continue
                self._given |= _sharded_states(value)
                entry = Entry(path, value, kinds.aspects_of(value, has_data=id(value) not in self._given))
                self.entries[path] = self._of[id(value)] = entry
                for aspect in entry.aspects:
                    for step, part in aspect.parts(value):
                        (keys if step.startswith(kinds.KEY) else queue).append((path + step, part, path, depth + 1))
            if any(one.is_whole for one in entry.aspects):
                self._holders.setdefault(id(value), []).append(holder)

    def _read_base(self, entry: Entry, budget: kinds.Budget) -> None:
        try:
            entry.base = [self._read(entry, one, budget) for one in entry.aspects]
        except Exception:  # noqa: BLE001 - objects of any class may fail in any way
            entry.aspects, entry.base = (), []
        if is_lost(entry.value) or (not entry.aspects and is_in_progress(entry.value)):
            holder = self.entries.get(entry.path.removesuffix(".gen"))
            if holder is None or not isinstance(holder.value, contextlib._GeneratorContextManager):
                self.unstorable[entry.path] = entry.value

    def in_progress(self, roots: Mapping[str, Any]) -> dict[str, object]:
        """Return, by path, what cannot be stored of objects made since the loop began: iterators, files, connections.

        Those in fields of objects that existed before are searched, too.
        """
        found: dict[str, object] = {}
        seen: set[int] = set()
        queue = deque(roots.items())
        for entry in self.entries.values():
            for number, aspect in enumerate(entry.aspects):
                if isinstance(aspect, kinds.Items):
                    new = kinds.changed_items(entry.base[number], aspect.items(entry.value)).values
                    queue.extend((entry.path + aspect.step(key, 0), one) for key, one in new.items())
        while queue and len(seen) < _SEARCHED_MAX:
            path, value = queue.popleft()
            if is_atom(value) or id(value) in seen or id(value) in self._of:
                continue
            seen.add(id(value))
            if isinstance(value, contextlib._GeneratorContextManager):
                continue  # its variables are stored
            may_refuse = is_in_progress(value) or _refuses_pickle(value)
            if is_lost(value) or (may_refuse and self._refusal(value, frozenset())):
                found[path] = value
            elif isinstance(value, tuple | types.MethodType):
                queue.extend((path + step, part) for step, part in _inside(value))
            else:
                parts = (pair for aspect in kinds.aspects_of(value) for pair in aspect.parts(value))
                queue.extend((path + step, part) for step, part in parts)
        return found

    def _read(self, entry: Entry, aspect: kinds.Aspect, budget: kinds.Budget) -> Any:
        return self._as_bytes(entry.value) if aspect.is_pickled else aspect.read(entry.value, budget)

    def _as_bytes(self, value: Any) -> bytes:
        """Return the pickle of one object. Raises OverflowError if it is large."""
        file = _Bounded(_WHOLE_BYTES)
        self._pickler(file, frozenset({id(value)})).dump(value)
        return file.getvalue()

    # -- changes

    def store(
        self, names: Callable[[frozenset[int]], dict[str, kinds.Changes]], extra: Any, at_epoch: Changes
    ) -> Stored:
        """Store the changes of all objects, the changed names of each namespace, and `extra`, as one graph.

        `names` receives the ids of changed objects that are stored completely: their names must be bound again.
        `at_epoch`: what `changes_of` returned when the epoch began.
        """
        left_out: dict[str, str] = {}
        changes, wholes = self._changes(left_out)
        namespaces = names(wholes)
        try:
            data = self._dump((changes, namespaces, (extra, self.generators(), at_epoch)), wholes)
        except Exception:  # noqa: BLE001 - objects of any class may fail in any way; find out which one
            changes = {path: self._sound(path, one, wholes, left_out) for path, one in changes.items()}
            at_epoch = {path: self._sound(path, one, wholes, {}) for path, one in at_epoch.items()}
            namespaces = {path: self._sound_items(path, one, wholes, left_out) for path, one in namespaces.items()}
            try:
                data = self._dump((changes, namespaces, (extra, self.generators(), at_epoch)), wholes)
            except Exception as error:  # noqa: BLE001 - as above
                left_out[""] = _words(error)
                data = b""
        return Stored(data, left_out)

    def _changes(self, left_out: dict[str, str]) -> tuple[Changes, frozenset[int]]:
        found: Changes = {}
        wholes: set[int] = set()
        again: set[str] = set()
        budget = kinds.Budget()
        for entry in self.entries.values():
            for number, aspect in enumerate(entry.aspects):
                try:
                    now = self._read(entry, aspect, budget)
                except Exception as error:  # noqa: BLE001 - a class's own pickling may fail at any time
                    left_out[entry.path] = _words(error)
                    continue
                if withheld := aspect.withheld(entry.base[number], now):
                    left_out.update({path or entry.path: why for path, why in withheld.items()})
                if not aspect.differs(entry.base[number], now) and not self._may_have_changed(aspect, entry.value):
                    continue
                if aspect.is_whole:
                    wholes.add(id(entry.value))
                    again.update(self._holders.get(id(entry.value), ()))
                else:
                    carried = aspect.carry(entry.value, entry.base[number], now)
                    found.setdefault(entry.path, {})[number] = carried
        left_out.update(self._newly_shared())
        for path in again & self.entries.keys():
            entry = self.entries[path]
            for number, aspect in enumerate(entry.aspects):
                now = aspect.read(entry.value, budget)
                found.setdefault(path, {})[number] = (
                    kinds.Changes(now) if isinstance(aspect, kinds.Items) else aspect.carry(entry.value, None, now)
                )
        return found, frozenset(wholes)

    def _memory_owners(self) -> dict[str, str]:
        """Return, by path, the first tensor that uses the memory of each tensor."""
        first: dict[int, str] = {}
        return {path: first.setdefault(one.data_ptr(), path) for path, one in self._tensors if one.data_ptr()}

    def _newly_shared(self) -> dict[str, str]:
        """Return the tensors that existed before the loop and that use another one's memory since."""
        now = self._memory_owners()
        return {
            path: _SHARED.format(owner=owner)
            for path, owner in now.items()
            if path != owner and path in self._owners and self._owners[path] != self._owners.get(owner)
        }

    def paths_of_epochs(self) -> tuple[str, ...]:
        """Return the objects that a checkpoint within an epoch restores at its beginning: settings, semaphores."""
        return tuple(path for path, one in self.entries.items() if any(aspect.is_of_epoch for aspect in one.aspects))

    def has(self, value: object) -> bool:
        """Return whether an object existed before the loop."""
        return id(value) in self._of

    def changes_of(self, paths: Iterable[str]) -> Changes:
        """Return the present changes of the objects with these paths."""
        found: Changes = {}
        for entry in [self.entries[path] for path in paths if path in self.entries]:
            for number, aspect in enumerate(entry.aspects):
                now = self._read(entry, aspect, kinds.Budget())
                aspect.mark(entry.value, now)
                found.setdefault(entry.path, {})[number] = aspect.carry(entry.value, entry.base[number], now)
        return found

    def _may_have_changed(self, aspect: kinds.Aspect, value: Any) -> bool:
        """Return whether an object holds others that only it knows, so that it is stored though it looks the same."""
        return aspect.is_opaque(value) and not self._refusal(aspect.read(value, kinds.Budget()), frozenset())

    def _sound(
        self, path: str, one: dict[int, Any], wholes: frozenset[int], left_out: dict[str, str]
    ) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for number, carried in one.items():
            if isinstance(carried, kinds.Changes):
                found[number] = self._sound_items(path, carried, wholes, left_out)
            elif isinstance(carried, list):
                parts = dict(enumerate(carried))
                sound = self._sound_items(path, kinds.Changes(parts), wholes, left_out)
                found[number] = list(sound.values.values())
            elif not (why := self._refusal(carried, wholes)):
                found[number] = carried
            else:
                left_out[path] = why
        return found

    def _sound_items(
        self, path: str, changes: kinds.Changes, wholes: frozenset[int], left_out: dict[str, str]
    ) -> kinds.Changes:
        values = dict(changes.values)
        for key, value in values.items():
            if why := self._refusal(value, wholes):
                values[key] = kinds.Skipped()
                left_out[f"{path}.{key}" if path else str(key)] = why
        return kinds.Changes(values, changes.gone)

    def _refusal(self, value: Any, wholes: frozenset[int]) -> str:
        """Return the reason why a value cannot be stored; "" if it can."""
        try:
            self._pickler(_Nowhere(), wholes).dump(value)
        except Exception as error:  # noqa: BLE001 - as above
            return _words(error)
        return ""

    def _dump(self, value: Any, wholes: frozenset[int]) -> bytes:
        file = io.BytesIO()
        self._pickler(file, wholes).dump(value)
        return file.getvalue()

    def _pickler(self, file: Any, wholes: frozenset[int]) -> pickle.Pickler:
        push = importlib.import_module("jupyter_dlaas.transfer.pushed_objects")
        parts = {id(part): path for path, part in self.parts.items()}
        return new_pickler(push.pickler_class(), file, self._of, wholes, parts)

    # -- restoring

    def load(self, data: bytes) -> tuple[Changes, dict[str, kinds.Changes], Any]:
        """Read what `store` wrote, without changing anything. Raises the errors of objects that cannot be rebuilt."""
        missing = object()

        class Unpickler(stored.Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                if pid.startswith(PART):
                    return parts.get(pid.removeprefix(PART), skipped)
                path = pid.removeprefix(ID_OF)
                entry = entries.get(path, aliases.get(path, missing))
                if entry is missing:
                    raise KeyError(f"the program did not create `{path}` again")
                return entry.value if path == pid else id(entry.value)

        parts, skipped = self.parts, kinds.Skipped()
        entries: Mapping[str, Any] = self.entries
        aliases: Mapping[str, Any] = self._aliases
        found: tuple[Changes, dict[str, kinds.Changes], Any] = Unpickler(io.BytesIO(data)).load()
        return found

    def revert(self, undone: Undone | None = None) -> list[str]:
        """Restore the content that objects had before the loop, as far as known. Return the paths of all others.

        `undone` receives the content that objects had until now, for `put`.
        """
        budget = kinds.Budget()
        other: list[str] = []
        for entry in self.entries.values():
            for number, aspect in enumerate(entry.aspects):
                if not aspect.can_revert and not self._has_copies:
                    continue
                copy = self._copies.get((entry.path, number))
                try:
                    now = self._read(entry, aspect, budget)
                except Exception:  # noqa: BLE001 - a class's own pickling may fail at any time
                    other.append(entry.path)
                    continue
                if not aspect.differs(entry.base[number], now):
                    continue
                if undone is not None:
                    undone[entry.path, number] = now
                if aspect.can_revert:
                    aspect.revert(entry.value, entry.base[number], now)
                elif copy is not None:
                    aspect.put(entry.value, copy)
                else:
                    other.append(entry.path)
        return other

    def changed_in_place(self) -> dict[str, object]:
        """Return, by path, counters and accumulators: objects whose numbers or arrays have changed in place.

        Excluded are new objects in a field (most are caches of the last input), random generators, and closure
        variables, which are variables of running functions.
        """
        budget = kinds.Budget()
        found: dict[str, object] = {}
        for entry in self.entries.values():
            for number, aspect in enumerate(entry.aspects):
                if isinstance(aspect, Generator | kinds.Cell):
                    continue
                now, base = self._read(entry, aspect, budget), entry.base[number]
                if isinstance(aspect, kinds.Items):
                    new = kinds.changed_items(base, now).values
                    is_count = any(_is_number(one) and _is_number(base.get(key, 0)) for key, one in new.items())
                else:
                    is_count = aspect.differs(base, now)
                if is_count:
                    found[entry.path] = entry.value
        return found

    def trained_with(self, given: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Return the trainable tensors by path, and the optimisers, without those of `given` models and optimisers."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return {}, []
        known = {id(one) for one in given}
        for one in given:
            if isinstance(one, torch.nn.Module):
                known.update(id(part) for part in one.parameters())
            elif isinstance(one, torch.optim.Optimizer):
                known.update(id(part) for group in one.param_groups for part in group["params"])
        others = [(path, entry.value) for path, entry in self.entries.items() if id(entry.value) not in known]
        tensors = {path: one for path, one in others if isinstance(one, torch.Tensor) and one.is_leaf}
        optimizers = [one for _, one in others if isinstance(one, torch.optim.Optimizer)]
        return {path: one for path, one in tensors.items() if one.requires_grad}, optimizers

    def keep_arrays(self, before: ObjectGraph) -> None:
        """Copy arrays, so that `revert` can restore them: first those that have changed since an earlier graph."""
        self._has_copies = True
        arrays = [
            (entry, number, aspect)
            for entry in self.entries.values()
            for number, aspect in enumerate(entry.aspects)
            if not aspect.can_revert
        ]
        changed = {id(entry): before.is_changed(entry) for entry, _, _ in arrays}
        left_bytes = _COPIED_BYTES
        for entry, number, aspect in sorted(arrays, key=lambda one: not changed[id(one[0])]):
            size = aspect.size(entry.value)
            if size <= left_bytes and (changed[id(entry)] or size <= _UNCHANGED_BYTES):
                left_bytes -= size
                self._copies[entry.path, number] = aspect.copy(entry.value)

    def is_changed(self, other: Entry) -> bool:
        """Return whether an object, as another graph has read it, is new or differs from this graph's record."""
        mine = self._of.get(id(other.value))
        if mine is None or len(mine.base) != len(other.base):
            return True
        pairs = zip(mine.aspects, mine.base, other.base, strict=True)
        return any(aspect.differs(old, new) for aspect, old, new in pairs)

    def put(self, changes: Changes, *, reverts: bool = False, undone: Undone | None = None) -> list[str]:
        """Apply loaded changes to the objects. `reverts`: first undo the changes of this process, as `revert` does.

        `undone`: `revert` has undone this content already, and the program has not run since.
        What could not be stored stays what the program has made of it since.
        """
        made: list[tuple[Any, Any, dict[Any, Any]]] = []
        for entry, number, carried in self._known(changes) if reverts else ():
            aspect, content = entry.aspects[number], (undone or {}).get((entry.path, number))
            made.append((aspect, entry.value, kinds.skipped_items(aspect, entry.value, carried, content)))
        other = self.revert() if reverts and undone is None else []
        for entry, number, carried in self._known(changes):
            entry.aspects[number].put(entry.value, carried)
        for aspect, value, items in made:
            for key, item in items.items():
                aspect.set(value, key, item)
        return other

    def _known(self, changes: Changes) -> Iterator[tuple[Entry, int, Any]]:
        """Yield the changes of objects that this process has, too: the object, the number of the aspect, the data."""
        for path, one in changes.items():
            entry = self.entries.get(path)
            for number, carried in one.items():
                if entry is not None and number < len(entry.aspects):
                    yield entry, number, carried

    # -- random generators

    def generators(self) -> dict[str, bytes]:
        """Return checksums of the states of random generators before the loop."""
        return {
            entry.path: hashlib.sha256(entry.base[0]).digest()
            for entry in self.entries.values()
            if entry.aspects and isinstance(entry.aspects[0], Generator)
        }

    def reseed(self, theirs: Mapping[str, bytes], seed: int) -> None:
        """Reseed generators that the main learner seeded differently, so that each learner draws its own numbers."""
        for path, mine in self.generators().items():
            if theirs.get(path, mine) != mine:
                aspect: Any = self.entries[path].aspects[0]
                aspect.seed(self.entries[path].value, derive(seed, path))


def is_in_progress(value: object) -> bool:
    """Return whether an object is an iterator, which cannot be repositioned, or a file that opening would truncate."""
    if isinstance(value, io.IOBase):
        return "w" in str(getattr(value, "mode", "")) and not value.closed
    is_over = isinstance(value, types.GeneratorType) and (value.gi_frame is None or value.gi_running)
    return hasattr(type(value), "__next__") and not (is_over or is_infrastructure(value) or is_finished_cursor(value))


def _refuses_pickle(value: Any) -> bool:
    """Return whether an object itself cannot be pickled: a connection, a file of HDF5. Its parts are not looked at."""
    if type(value).__module__ == "builtins" or is_infrastructure(value):
        return False
    try:
        value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - objects of any class may fail in any way
        return True
    return False


def _is_number(value: object) -> bool:
    """Return whether a value is a single number; a tensor or array of one number counts."""
    is_plain = isinstance(value, int | float | complex) and not isinstance(value, bool)
    return is_plain or getattr(value, "shape", None) == ()


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    else:
        yield from ((f"[{number}]", one) for number, one in enumerate(value))


def _kept_otherwise(given: Iterable[Any]) -> frozenset[int]:
    """Return the ids of these models' weights and of these optimisers' states."""
    torch: Any = sys.modules.get("torch")
    found: set[int] = set()
    for one in given:
        if torch is not None and isinstance(one, torch.nn.Module):
            found.update(id(part) for part in one.state_dict(keep_vars=True).values())
        elif torch is not None and isinstance(one, torch.optim.Optimizer):
            found.add(id(one.state))
    return frozenset(found)


def _sharded_states(value: Any) -> frozenset[int]:
    """Return the id of an optimiser's state if its parameters are sharded: it holds this learner's parts."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.optim.Optimizer):
        return frozenset()
    is_in_parts = any(is_sharded(one) for group in value.param_groups for one in group["params"])
    return frozenset({id(value.state)} if is_in_parts else ())


def _has_memory(value: Any) -> bool:
    """Return whether an object is a tensor that has memory of its own, or a view of some."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided or is_lazy(value):
        return False
    try:
        return bool(value.data_ptr())
    except (RuntimeError, NotImplementedError):  # wrappers of tensors have none
        return False


def _has_attributes(value: Any) -> bool:
    """Return whether a tuple of a program's class has attributes beside its items."""
    return isinstance(value, tuple) and bool(getattr(value, "__dict__", None))


class _Nowhere:
    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _Bounded(io.BytesIO):
    """A buffer that raises OverflowError if more is written than its limit."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most:
            raise OverflowError("it is large")
        return super().write(data)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
