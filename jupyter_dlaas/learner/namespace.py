"""Namespace of a training program over halts, preemptions, moves and restarts: what its loop has bound and changed.

The names of the program and of the functions that are running, and all objects that they lead to, are one graph:
copies of a model, schedules, counters, early stopping, metrics and buffers keep their values and their references.
"""

from __future__ import annotations

import ctypes
import functools
import linecache
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.learner import object_kinds as kinds
from jupyter_dlaas.learner.liveness import dead_names
from jupyter_dlaas.learner.object_graph import ObjectGraph, Stored

__all__ = ["Namespace"]

_MODULE_LEVEL: Final = ""
_WRITES_THROUGH: Final = sys.version_info >= (3, 13)
"""A frame's `f_locals` are its variables themselves (PEP 667)."""


class Namespace:
    """Names of a program at the head of its loop, to compare with later."""

    def __init__(self, script: dict[str, Any], files: Sequence[Path], given: Iterable[Any], rank: int = 0) -> None:
        """`files`: the program, and the folder of the user's modules; `given`: objects that are kept by other means."""
        self._script = script
        self._files = tuple(map(str, files))
        self.rank = rank
        self._base = self._names()
        roots = {path + name: value for path, names in self._base.items() for name, value in names.items()}
        self._graph = ObjectGraph(roots, given=given)

    def store(self, extra: Any) -> Stored:
        """Store what has changed; `extra` goes along, with the same identities."""
        now, dead = self._names(), self._dead()
        return self._graph.store(functools.partial(self._changed, now, dead), (extra, self._graph.generators()))

    def _changed(
        self, now: Mapping[str, dict[str, Any]], dead: Mapping[str, frozenset[str]], wholes: frozenset[int]
    ) -> dict[str, kinds.Changes]:
        found: dict[str, kinds.Changes] = {}
        for path, names in now.items():
            base = self._base.get(path, {})
            changes = kinds.changed_items(base, names)
            changes.values |= {name: one for name, one in names.items() if id(one) in wholes}
            for name in dead.get(path, ()):
                changes.values.pop(name, None)
            found[path] = changes
        return found

    def load(self, data: bytes) -> Any:
        """Read what `store` made, without changing anything. Raises what objects raise that cannot be made again."""
        return self._graph.load(data)

    def put_back(self, loaded: Any, *, reverts: bool, seed: int) -> Any:
        """Put back what was loaded; returns `extra`. `reverts`: undo first what was changed here meanwhile.

        `seed`: for generators that each learner has seeded for itself.
        """
        changes, names, (extra, generators) = loaded
        here = self._spaces()
        if reverts:
            self._graph.revert()
            for path, names_now in self._names().items():
                base = self._base.get(path, {})
                back = kinds.changed_items(names_now, {name: one for name, one in base.items() if name in names_now})
                self._bind(here[path], kinds.Changes(back.values))
        self._graph.put(changes)
        if self.rank:
            self._graph.reseed(generators, seed)
        for path, one in names.items():
            if path in here:
                self._bind(here[path], one)
        return extra

    def in_progress(self) -> dict[str, object]:
        """Return, by path, the objects of this process that the loop may advance and that nothing can keep."""
        return dict(self._graph.unstorable)

    # -- names

    def _spaces(self) -> dict[str, types.FrameType | None]:
        """The functions of the program that are running, outermost first, by their paths; "" for the program's own."""
        found: dict[str, types.FrameType | None] = {}
        for frame in self._frames():
            code = frame.f_code
            found[f"{code.co_name}():{len(found)} "] = frame
        return {_MODULE_LEVEL: None, **found}

    def _frames(self) -> list[types.FrameType]:
        frame: types.FrameType | None = sys._getframe(1)
        found: list[types.FrameType] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(self._files) and not code.co_name.startswith("<"):
                found.append(frame)
            frame = frame.f_back
        return found[::-1]

    def _names(self) -> dict[str, dict[str, Any]]:
        return {
            path: _usual(self._script if frame is None else dict(frame.f_locals))
            for path, frame in self._spaces().items()
        }

    def _dead(self) -> dict[str, frozenset[str]]:
        """Names that the next iteration of the innermost loop binds before it reads them."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(self._files):
            frame = frame.f_back
        if frame is None:
            return {}
        path = next((path for path, one in self._spaces().items() if one is frame), _MODULE_LEVEL)
        source = "".join(linecache.getlines(frame.f_code.co_filename))
        return {path: dead_names(source, frame.f_lineno)}

    def _bind(self, frame: types.FrameType | None, changes: kinds.Changes) -> None:
        if frame is None:
            kinds.put_items(self._script, changes)
            return
        names: Any = frame.f_locals
        for name, value in changes.values.items():
            if not isinstance(value, kinds.Skipped):
                names[name] = value
        if _WRITES_THROUGH:
            return
        for name in changes.gone:
            names.pop(name, None)
        to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
        to_fast(ctypes.py_object(frame), ctypes.c_int(1))


def _usual(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not name.startswith(("__", "."))}
