"""Context managers that are entered: their ends restore values that no variable of a running function holds.

`with lr(0.5):` around the batches keeps the former rate in a suspended generator, or in an object to which only the
interpreter refers. A program that resumes enters it again and takes the rate of the checkpoint for the former one.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from jupyter_dlaas.objects.object_values import (
    is_atom,
    is_infrastructure,
    is_of_the_program,
    own_modules,
    program_mentions,
)

__all__ = [
    "AMBIGUOUS",
    "KEPT_BY_STACK",
    "PREFIX",
    "ContextManagers",
    "callbacks_of",
    "former_values",
    "is_entered",
    "is_of_random_streams",
    "is_recorder",
]

AMBIGUOUS: Final = (
    "it is entered more than once at the same time: keep the values that its end restores in variables of the loop"
)
KEPT_BY_STACK: Final = (
    "the end of its with statement calls it with values from before the halt or the move: restore them from variables "
    "of the loop in `finally:` instead"
)
PREFIX: Final = "with "
"""Beginning of the paths of context managers."""
_HIDES_METHODS: Final = sys.version_info >= (3, 14)
"""True if the interpreter binds `__exit__` to the object only when it calls it."""
_WORDS: Final = ("contextmanager", "__exit__", "fork_rng", "mock", "closing")
_FORMER: Final = {"_patch": ("temp_original", "is_local"), "_patch_dict": ("_original",)}
"""Fields of the classes of unittest.mock that hold what the end of a patch restores, first one that only an active
patch has."""
_CLOSING: Final = (contextlib.closing, contextlib.aclosing)
"""Classes whose end calls a method of an object that only they hold."""
_STACKS: Final = (contextlib.ExitStack, contextlib.AsyncExitStack)
_KEEPS: Final = ("__closure__", "__defaults__", "__kwdefaults__")
_RANDOM: Final = ("torch.random", "fork_rng")
"""Module and name of the library function that keeps the state of random streams, which are not settings."""


def former_values(place: object) -> dict[str, Any] | None:
    """Return what the end of a patch of unittest.mock restores; None for other objects."""
    kind = type(place)
    fields = _FORMER.get(kind.__name__, ()) if kind.__module__ == "unittest.mock" else ()
    return {name: vars(place)[name] for name in fields if name in vars(place)} if fields else None


def is_entered(value: object) -> bool:
    """Return whether a value is an ExitStack or a `contextmanager` that the interpreter ends, not a copy of it."""
    if isinstance(value, contextlib._GeneratorContextManager):
        generator: Any = value.gen
        return bool(getattr(generator, "gi_suspended", False))
    return isinstance(value, _STACKS) and bool(_with_end([value]))


def is_recorder(value: object) -> bool:
    """Return whether `warnings` adds to a list, as in `warnings.catch_warnings(record=True)`."""
    adds = getattr(warnings, "_showwarnmsg_impl", None)
    return isinstance(value, list) and getattr(adds, "__self__", None) is value


def callbacks_of(name: str, value: object, is_known: Callable[[object], bool]) -> Iterator[str]:
    """Yield the callbacks of an ExitStack that keep values: `stack.callback(setattr, model, "gain", old)`.

    `is_known`: returns whether an object existed before the loop; it keeps its identity.
    """
    if isinstance(value, _STACKS):
        for _, function in list(vars(value)["_exit_callbacks"]):
            called = getattr(function, "__wrapped__", None)
            given = inspect.getclosurevars(function).nonlocals if called is not None else {}
            kept = (given.get("args"), given.get("kwds"), *(getattr(called, part, None) for part in _KEEPS))
            owner = getattr(called, "__self__", None)
            is_new = hasattr(owner, "__dict__") and not (is_infrastructure(owner) or is_atom(owner) or is_known(owner))
            if any(kept) or is_new:
                yield f"{name}.callback({getattr(called, '__qualname__', type(called).__name__)})"


class ContextManagers:
    """The program's context managers, by paths that are equal when it runs again."""

    def __init__(
        self,
        script: Mapping[str, Any],
        files: tuple[str, ...],
        spaces: Iterable[Mapping[str, Any]],
        values_of: Callable[[Any], Mapping[str, Any]],
    ) -> None:
        """`spaces`: the names at the head of the loop. `values_of`: returns the values of a frame or an object."""
        self._script = script
        self._files = files
        self._values_of = values_of
        self._has_any = any(map(program_mentions, _WORDS))
        self._labels: dict[int, str] = {}
        for names in spaces if self._has_any else ():
            for name in sorted(names):
                if not is_atom(names[name]):
                    self._labels.setdefault(id(names[name]), name)

    def entered(self, is_known: Callable[[object], bool] = lambda _: False) -> tuple[dict[str, Any], list[str]]:
        """Return the frames of suspended generators and the objects with `__exit__` by path, and ambiguous paths.

        `is_known`: returns whether an object's content is kept anyway.
        """
        found: dict[str, list[Any]] = {}
        for name, place in self._search() if self._has_any else ():
            if id(place) not in self._labels and not is_known(place):
                values = self._values_of(place).values()
                of = sorted(self._labels[id(one)] for one in values if id(one) in self._labels)
                found.setdefault(f"{PREFIX}{name}({', '.join(of)}) ", []).append(place)
        single = {path: places[0] for path, places in found.items() if len(places) == 1}
        return single, [path.strip() for path in found if path not in single]

    def _search(self) -> Iterator[tuple[str, Any]]:
        classes = self._classes()
        mock: Any = sys.modules.get("unittest.mock")
        patches = [getattr(mock, name) for name in _FORMER if hasattr(mock, name)]
        found = gc.get_referrers(contextlib._GeneratorContextManager, *_CLOSING, *classes, *patches)
        closing = [one for one in found if type(one) in _CLOSING and is_of_the_program(type(vars(one)["thing"]))]
        yield from ((type(one).__name__, one) for one in _with_end(closing))
        yield from ((type(one).__qualname__, one) for one in _with_end([one for one in found if type(one) in classes]))
        started = list(getattr(getattr(mock, "_patch", None), "_active_patches", ()))  # `patch.start()`
        active = [
            one for one in found if type(one) in patches and vars(one).get(_FORMER[type(one).__name__][0]) is not None
        ]
        for one in {id(one): one for one in [*_with_end(active), *started]}.values():
            yield f"{type(one).__name__} of {getattr(one, 'attribute', 'a dictionary')}", one
        for one in found:
            if isinstance(one, contextlib._GeneratorContextManager):
                generator: Any = one.gen
                if getattr(generator, "gi_suspended", False):  # false before it is entered
                    frame, code = generator.gi_frame, generator.gi_code
                    if code.co_filename.startswith(self._files) or is_of_random_streams(frame):
                        yield code.co_qualname, frame

    def folders(self) -> list[Any]:
        """Return the temporary folders that exist, also those to which only a `with` statement refers."""
        tempfile: Any = sys.modules.get("tempfile")
        if tempfile is None or not program_mentions("TemporaryDirectory"):
            return []
        kind = tempfile.TemporaryDirectory
        return [one for one in gc.get_referrers(kind) if type(one) is kind and one._finalizer.alive]

    def _classes(self) -> set[Any]:
        spaces = [self._script, *(vars(sys.modules[name]) for name in own_modules())]
        kinds = {one for names in spaces for one in list(names.values()) if isinstance(one, type)}
        return {one for one in kinds if hasattr(one, "__exit__") and is_of_the_program(one)}


def _with_end(objects: list[Any]) -> list[Any]:
    """Return the objects whose `__exit__` is to be called; all of them where the interpreter keeps no such method."""
    if not objects or _HIDES_METHODS:
        return objects
    methods = [one for one in gc.get_referrers(*objects) if isinstance(one, types.MethodType)]
    ends = {id(one.__self__) for one in methods if one.__func__ is getattr(type(one.__self__), "__exit__", None)}
    return [one for one in objects if id(one) in ends]


def is_of_random_streams(place: object) -> bool:
    """Return whether a frame is that of a context manager that restores random streams."""
    if not isinstance(place, types.FrameType):
        return False
    return (place.f_globals.get("__name__"), place.f_code.co_name) == _RANDOM
