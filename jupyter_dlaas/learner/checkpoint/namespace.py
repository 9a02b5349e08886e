"""The namespace of a training program across halts, preemptions, migrations and restarts.

It stores what the loop has bound and changed. The names of the program and of its running functions, and all objects
reachable from them, form one graph: copies of a model, schedulers, counters, early stopping, metrics and buffers keep
their values and their references.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import linecache
import sys
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from jupyter_dlaas.learner.checkpoint import user_state
from jupyter_dlaas.learner.checkpoint.context_managers import (
    AMBIGUOUS,
    KEPT_BY_STACK,
    PREFIX,
    ContextManagers,
    callbacks_of,
    former_values,
    is_entered,
    is_of_random_streams,
    is_recorder,
)
from jupyter_dlaas.learner.checkpoint.library_attributes import attached
from jupyter_dlaas.learner.checkpoint.liveness import dead_names, names_read
from jupyter_dlaas.learner.checkpoint.object_graph import ObjectGraph, Stored, Undone
from jupyter_dlaas.objects import object_kinds as kinds
from jupyter_dlaas.objects.object_values import own_modules
from jupyter_dlaas.objects.special_objects import STREAMS

__all__ = ["Namespace"]

_MODULE_LEVEL: Final = ""
_POSITIONS: Final = "positions of files"
"""Path of the positions in files that were opened since the loop began, by path and name of the variable."""
_RECORD_SHARE: Final = 0.01
"""Largest part of the time that is spent on recording settings at the beginning of epochs."""
_WRITES_THROUGH: Final = sys.version_info >= (3, 13)
"""True if a frame's `f_locals` writes through to its variables (PEP 667)."""
_READERS: Final = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack"})
"""Functions through which a program may use the copy that its frame keeps."""


class Namespace:
    """The names of a program at the head of its loop, to compare with later."""

    def __init__(
        self,
        script: dict[str, Any],
        files: Sequence[Path],
        given: Iterable[Any],
        rank: int = 0,
        also: Mapping[str, Any] = types.MappingProxyType({}),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Record the program's names and objects. `files`: the program, and the folder of the user's modules.

        `given`: objects whose state is stored elsewhere. `also`: further objects by path.
        """
        self._script = script
        self._clock = clock
        self.files = tuple(files)
        self._files = tuple(map(str, files))
        self.rank = rank
        self.gradients: Any = None
        """Watch over the gradients of parameters that are not in `given`; None if there is none."""
        self.surrounding: set[int] = set()
        """The ids of the iterators around loops of `run` that count by themselves."""
        self.not_entered: list[str] = []
        """The context managers whose values `put_back` could not restore, as the program had not entered them."""
        self._base = self._names(self._spaces())
        self._managers = ContextManagers(script, self._files, self._base.values(), self._values_of)
        self._base |= self._names(self._managers.entered()[0])
        roots = {path + name: value for path, names in self._base.items() for name, value in names.items()}
        roots.update(also)
        roots.update(_library_hooks(), streams=STREAMS)
        roots.update({f"module {name}": sys.modules[name] for name in own_modules()})
        texts = [one for file in files for one in (sorted(file.rglob("*.py")) if file.is_dir() else [file])]
        roots.update(attached(texts, {name: one for names in self._base.values() for name, one in names.items()}))
        self._graph = ObjectGraph(roots, given=given)
        self._of_epochs = self._graph.paths_of_epochs()
        self._at_epoch: dict[str, Any] = {}
        self._record_again_s = float("-inf")

    def begin_epoch(self) -> None:
        """Record the objects that a checkpoint within the epoch restores at its beginning: settings, semaphores.

        A `with` statement around an inner loop may have changed them, and its end restores what it found. Epochs of a
        few milliseconds share a record.
        """
        start_s = self._clock()
        if start_s < self._record_again_s:
            return
        self._at_epoch = self._graph.changes_of(self._of_epochs)
        end_s = self._clock()
        self._record_again_s = end_s + (end_s - start_s) / _RECORD_SHARE

    def store(self, extra: Any) -> Stored:
        """Store all changes since this namespace was recorded, and `extra` with shared references kept."""
        managers, ambiguous = self._managers.entered(self._graph.has)
        now, dead = self._names(self._spaces() | managers), self._dead()
        positions, unknown = self._positions(now)
        now[_POSITIONS] = positions
        self._graph.parts = self._parts(now)
        stored = self._graph.store(functools.partial(self._changed, now, dead), extra, self._at_epoch)
        stored.left_out.update(unknown | dict.fromkeys(ambiguous, AMBIGUOUS))
        named = [pair for names in now.values() for pair in names.items()]
        stored.left_out.update({one: KEPT_BY_STACK for pair in named for one in callbacks_of(*pair, self._graph.has)})
        return stored

    def _positions(self, now: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the positions in files that were opened since the loop began, and the reasons for unknown ones."""
        found: dict[str, Any] = {}
        unknown: dict[str, str] = {}
        for path, name, file in [(path, name, one) for path, names in now.items() for name, one in names.items()]:
            if kinds.is_readable_file(file) and not self._graph.has(file):
                try:
                    found[f"{path}{name}"] = kinds.position_of(file)
                except OSError as error:
                    if not any(hasattr(one, "__next__") for one in gc.get_referrers(file)):  # it is reported instead
                        unknown[f"{path}{name}"] = str(error)
        return found, unknown

    def begun_inside(self) -> dict[str, object]:
        """Return, by path, what the innermost loops read, and what was made within the epoch and cannot be stored.

        Files are those that a loop reads line by line.
        """
        roots: dict[str, Any] = {}
        by_line: dict[str, object] = {}
        for path, frame in self._running():
            base = self._base.get(path, {})
            read = names_read("".join(linecache.getlines(frame.f_code.co_filename)), frame.f_lineno)
            for name, one in _usual(locals_of(frame) if path else self._script).items():
                if isinstance(one, io.TextIOWrapper) and kinds.is_readable_file(one):
                    if read.get(name) or not _has_position(one):
                        by_line[path + name] = one
                elif name in read and (folder := self._folder_of(one)) is not None:
                    roots[path + name] = folder
                elif name in read and not (name in base and base[name] is one):
                    roots[path + name] = one
        managers = self._names(self._managers.entered(self._graph.has)[0])
        held = {path + name: one for path, names in managers.items() for name, one in names.items()}
        found = self._graph.in_progress(roots)
        found |= self._graph.in_progress(held)
        stays = {path for path, one in found.items() if id(one) in self.surrounding}
        return by_line | {path: one for path, one in found.items() if path not in stays}

    def line(self) -> tuple[str, int] | None:
        """Return the file and the line of the innermost running code of the program."""
        return next(((frame.f_code.co_filename, frame.f_lineno) for _, frame in self._running()), None)

    def _running(self) -> Iterator[tuple[str, types.FrameType]]:
        """Yield the running code of the program with its path, innermost first."""
        paths = {id(frame): path for path, frame in self._spaces().items() if frame is not None}
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            is_top = frame.f_globals is self._script and frame.f_locals is self._script
            if is_top or id(frame) in paths:
                yield paths.get(id(frame), _MODULE_LEVEL), frame
            frame = frame.f_back

    def _changed(
        self, now: Mapping[str, dict[str, Any]], dead: Mapping[str, frozenset[str]], wholes: frozenset[int]
    ) -> dict[str, kinds.Changes]:
        found: dict[str, kinds.Changes] = {}
        for path, names in now.items():
            base = self._base.get(path, {})
            changes = kinds.changed_items(base, names)
            changes.values |= {name: one for name, one in names.items() if _refers_to(one, wholes)}
            for name in [name for name, one in changes.values.items() if self._stays(one)]:
                del changes.values[name]
            for name in dead.get(path, ()):
                changes.values.pop(name, None)
            found[path] = changes
        return found

    def _stays(self, value: object) -> bool:
        """Return whether an object is a part of the running program that no copy can replace, or a path to such one."""
        is_part = is_entered(value) or _is_running(value) or id(value) in self.surrounding
        return is_part or self._folder_of(value) is not None

    def _folder_of(self, value: object) -> object | None:
        """Return the temporary folder of a path; None for other values."""
        if not isinstance(value, str | PurePath):
            return None
        parents = {str(value), *map(str, PurePath(value).parents)}
        return next((one for one in self._managers.folders() if str(one.name) in parents), None)

    def load(self, data: bytes) -> Any:
        """Read what `store` wrote, without changing anything. Raises the errors of objects that cannot be rebuilt."""
        self._graph.parts = self._parts(self._names(self._spaces()))
        return self._graph.load(data)

    def _parts(self, names: Mapping[str, dict[str, Any]]) -> dict[str, object]:
        """Return the parts of the running program to which variables refer."""
        found = {path + name: one for path, values in names.items() for name, one in values.items()}
        return {path: one for path, one in found.items() if is_entered(one)}

    def put_back(self, loaded: Any, *, reverts: bool, seed: int, undone: Undone | None = None) -> Any:
        """Restore what `load` returned; return `extra`. `reverts`: first undo changes made in this process.

        It is called twice: at the beginning of the loop, then with `reverts` at the position of the checkpoint.
        `seed`: for random generators that each learner seeds differently. `undone`: result of `revert_ahead`.
        """
        changes, names, (extra, generators, *at_epoch) = loaded
        here = self._places()
        if at_epoch and not reverts:
            changes = {path: one for path, one in changes.items() if path not in self._of_epochs} | at_epoch[0]
        if reverts:
            self._revert_names(here)
        self._graph.put(changes, reverts=reverts, undone=undone)
        if self.rank:
            self._graph.reseed(generators, seed)
        positions = names.pop(_POSITIONS, kinds.Changes()).values
        entered = {id(place) for path, place in here.items() if path.startswith(PREFIX)}
        for path, one in names.items():
            if path in here and not (self.rank and is_of_random_streams(here[path])):
                self._bind(here[path], self._without(entered, here[path], one))
        for path, open_now in self._names(here if positions else {}).items():
            for name, file in open_now.items():
                if f"{path}{name}" in positions and kinds.is_readable_file(file):
                    kinds.seek(file, positions[f"{path}{name}"])
        self.not_entered = [path.strip() for path in names if path.startswith(PREFIX) and path not in here]
        return extra

    def _without(self, entered: set[int], place: Any, changes: kinds.Changes) -> kinds.Changes:
        """Return changes without names of entered context managers: the interpreter calls those of this process."""
        names = self._values_of(place) if entered else {}
        values = {name: one for name, one in changes.values.items() if id(names.get(name)) not in entered}
        return kinds.Changes(values, changes.gone)

    def revert(self) -> list[str]:
        """Undo changes as far as they are known. Return the paths of objects with unknown changes."""
        other = self._graph.revert()
        self._revert_names(self._places())
        return other

    def revert_ahead(self) -> Undone:
        """Undo changes of objects now, and return them for `put_back`. The program must not run in between."""
        undone: Undone = {}
        self._graph.revert(undone)
        return undone

    def _revert_names(self, here: Mapping[str, Any]) -> None:
        for path, names_now in self._names(here).items():
            base = self._base.get(path, {})
            back = kinds.changed_items(names_now, {name: one for name, one in base.items() if name in names_now})
            self._bind(here[path], kinds.Changes(back.values))

    def keep_arrays(self, before: Namespace) -> None:
        """Copy arrays, so that `revert` can restore them; `before`: the same names at an earlier time."""
        self._graph.keep_arrays(before._graph)

    def changed_in_place(self) -> dict[str, object]:
        """Return, by path, the counters and accumulators that have changed."""
        return self._graph.changed_in_place()

    def trained_with(self, given: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Return the trainable tensors by path, and the optimisers, without those of `given` models and optimisers."""
        return self._graph.trained_with(given)

    def in_progress(self) -> dict[str, object]:
        """Return, by path, the objects of this process that the loop may advance and that cannot be stored."""
        return dict(self._graph.unstorable)

    # -- names

    def _spaces(self) -> dict[str, Any]:
        """Return the running functions of the program, outermost first, by path; "" for module level."""
        found: dict[str, Any] = {}
        for frame in self._frames():
            code = frame.f_code
            found[f"{code.co_name}():{len(found)} "] = frame
        return {_MODULE_LEVEL: None, **found}

    def _places(self) -> dict[str, Any]:
        """Return the running functions of the program and its entered context managers by path."""
        return self._spaces() | self._managers.entered(self._graph.has)[0]

    def _frames(self) -> list[types.FrameType]:
        frame: types.FrameType | None = sys._getframe(1)
        found: list[types.FrameType] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(self._files) and not code.co_name.startswith("<"):
                found.append(frame)
            frame = frame.f_back
        return found[::-1]

    def _names(self, spaces: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {path: _usual(self._values_of(place)) for path, place in spaces.items()}

    def _values_of(self, place: Any) -> dict[str, Any]:
        """Return the values of the program if `place` is None, of a frame, or of an object."""
        if place is None:
            return self._script
        if isinstance(place, types.FrameType):
            return locals_of(place)
        former = former_values(place)
        return kinds.FIELDS.items(place) if former is None else former

    def mark(self) -> dict[str, user_state.Mark]:
        """Record plain values of the program, of its running functions, and of the objects that they name."""
        return {path: user_state.mark(self._values_of(frame)) for path, frame in self._spaces().items()}

    def back_to(self, marked: Mapping[str, user_state.Mark]) -> None:
        """Restore the values of a mark and their content."""
        for path, frame in self._spaces().items():
            if path in marked:
                names = self._script if frame is None else {}
                user_state.back_to(names, marked[path])
                if frame is not None:
                    self._bind(frame, kinds.Changes(names))

    def _dead(self) -> dict[str, frozenset[str]]:
        """Return the names that the next iteration of the innermost loop binds before it reads them."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(self._files):
            frame = frame.f_back
        if frame is None:
            return {}
        path = next((path for path, one in self._spaces().items() if one is frame), _MODULE_LEVEL)
        source = "".join(linecache.getlines(frame.f_code.co_filename))
        return {path: dead_names(source, frame.f_lineno)}

    def _bind(self, place: Any, changes: kinds.Changes) -> None:
        now = self._values_of(place)
        for name in [name for name in changes.values if is_recorder(now.get(name))]:
            now[name][:] = changes.values.pop(name)
        if place is None:
            kinds.put_items(self._script, changes)
            return
        if not isinstance(place, types.FrameType):
            kinds.FIELDS.put(place, changes)
            return
        names: Any = place.f_locals
        for name, value in changes.values.items():
            if not isinstance(value, kinds.Skipped):
                names[name] = value
        if _WRITES_THROUGH:
            return
        for name in changes.gone:
            names.pop(name, None)
        to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
        to_fast(ctypes.py_object(place), ctypes.c_int(1))


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """Return the variables of a function.

    Before Python 3.13 the frame would keep the copy, and with it a batch, until `f_locals` is read again.
    """
    names: Any = frame.f_locals
    found = dict(names)
    if not _WRITES_THROUGH and sys.gettrace() is None and _READERS.isdisjoint(frame.f_code.co_names):
        names.clear()
    return found


def _has_position(file: Any) -> bool:
    """Return whether the position in a file is known: it is not while a loop reads a file of text."""
    try:
        kinds.position_of(file)
    except OSError:
        return False
    return True


def _is_running(value: object) -> bool:
    """Return whether a value is a generator through which the loop takes its batches: its variables are stored."""
    return isinstance(value, types.GeneratorType) and value.gi_running


def _refers_to(value: Any, wholes: frozenset[int]) -> bool:
    """Return whether a value is one of these objects, a method of one, or a tuple that holds one."""
    if isinstance(value, tuple):
        return any(_refers_to(one, wholes) for one in value)
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        return id(value.__self__) in wholes
    return id(value) in wholes


def _library_hooks() -> dict[str, Any]:
    """Return the dictionaries in which torch keeps the hooks of all modules and of all optimisers."""
    modules = [(name, sys.modules.get(name)) for name in ("torch.nn.modules.module", "torch.optim.optimizer")]
    return {
        f"{name}.{key}": one
        for name, module in modules
        if module is not None
        for key, one in vars(module).items()
        if key.startswith("_global_") and isinstance(one, OrderedDict)
    }


def _usual(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not name.startswith(("__", "."))}
