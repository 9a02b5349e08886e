"""Results, as `-o model,history` brings them back: a file per name, read again in the user's own kernel only.

Names whose values share objects are one object graph: an optimiser that is stored apart from its model comes back with
weights of its own, and then trains nothing, in silence. The file of such a name holds the whole graph, and the files of
its other names are hard links to it.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.jobdir.atomic_files import sync_folder, write_whole
from jupyter_dlaas.objects import code_versions, keras_objects
from jupyter_dlaas.transfer import class_definitions, shared_objects
from jupyter_dlaas.transfer.object_traversal import GRAD_SCALER, is_from
from jupyter_dlaas.transfer.plain_values import is_plain
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["dump", "load", "load_graph", "names_in", "store", "versions_of"]

STREAMS = "random_streams.json"
"""Beside the results: where the random streams were when the program had ended (`streams.written`)."""

VERSIONS = "own_modules.json"
"""Beside the results: which code the job had of the user's modules (`code_versions.table`)."""

FORMAT: Final = 2
"""Format of the files that this release writes: a header, then a pickle or what torch.save writes, as `content` tells.

Where the header lists `names`, they are a dict of values. Files of format 1 begin with one byte: P, T, or G, which is
followed by the length of the names in four bytes, the names as JSON, and P or T.
"""
_PICKLE: Final = "pickle"
_TORCH: Final = "torch"
_FORMER: Final = {b"P": _PICKLE, b"T": _TORCH}
_FORMER_GRAPH: Final = b"G"

_LOADED_ON_CPU = frozenset({"cpu", "cuda", "mps"})
"""Devices whose tensors `map_location` of torch.load brings to the CPU."""


def store(folder: Path, names: Sequence[str], script: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Write the named values of a script; returns the names that were written, and why the others were not."""
    folder.mkdir(mode=0o700, exist_ok=True)
    errors = {name: "the job bound no such name" for name in names if name not in script}
    values = {name: _without_model(script[name]) for name in names if name in script}
    for group in shared_objects.groups(values):
        if len(group) > 1:
            try:
                data = _dump_graph({name: values[name] for name in group})
            except Exception as error:  # noqa: BLE001 - a value of any class may refuse in any way
                print(f"[{', '.join(group)} are stored apart: {type(error).__name__}: {error}]", file=sys.stderr)
            else:
                _write_linked([folder / f"{name}.bin" for name in group], data)
                continue
        for name in group:
            try:
                data = dump(values[name])
            except Exception as error:  # noqa: BLE001 - as above; the others still go
                errors[name] = _why_not(name, values[name], error, script)
                continue
            write_whole(folder / f"{name}.bin", data, sync=True)
    return [name for name in names if name in values and name not in errors], errors


def _why_not(name: str, value: object, error: Exception, script: Mapping[str, Any]) -> str:
    """Name the reason and what to type, in one line: the log is read line by line."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    why = f"a {type(value).__name__} cannot be stored ({reason[:400]})"
    if is_from(value, *GRAD_SCALER):
        why += f"; call {name}.update() after its last step"
    elif hasattr(type(value), "state_dict"):
        part = "weights" if hasattr(type(value), "parameters") else "state"
        why += f"; its {part} can: {name}_state = {name}.state_dict() in the cell, and -o {name}_state"
    elif hasattr(type(value), "get_weights"):
        why += f"; its weights can: {name}_weights = {name}.get_weights() in the cell, and -o {name}_weights"
        held = {id(one) for one in getattr(value, "__dict__", {}).values() if hasattr(type(one), "get_weights")}
        parts = [other for other, one in script.items() if id(one) in held and other != name]
        why += f"; its models as well: -o {','.join(parts)}" if parts else ""
    return why


def _write_linked(paths: Sequence[Path], data: bytes) -> None:
    """Write the same bytes under several names; once, where the file system has hard links."""
    first, *others = paths
    write_whole(first, data, sync=True)
    for path in others:
        try:
            with suppress(FileNotFoundError):
                path.unlink()
            os.link(first, path)
        except OSError:
            write_whole(path, data, sync=True)
    sync_folder(first.parent)


def _dump_graph(values: dict[str, Any]) -> bytes:
    return _with_header(values, names=list(values))


def dump(value: Any) -> bytes:
    """One value as bytes for `load`; tensors are on the CPU afterwards, classes of train.py go by their source name."""
    return _with_header(value)


def _with_header(value: Any, **fields: Any) -> bytes:
    try:
        content, body = _dump(value, _with_states() if "keras" in sys.modules else pickle)
    except Exception:  # noqa: BLE001 - whatever a value's parts raise: perhaps a function that no name leads to
        content, body = _dump(value, _by_value())
    return stored.to_header("result", FORMAT, content=content, **fields) + body


def _dump(value: Any, pickling: Any) -> tuple[str, bytes]:
    torch, file = sys.modules.get("torch"), io.BytesIO()
    if torch is None or is_plain(value):
        pickling.Pickler(file, protocol=5).dump(value)
        return _PICKLE, file.getvalue()
    torch.save(_to_cpu(value, torch), file, pickle_module=pickling)
    return _TORCH, file.getvalue()


def _with_states() -> ModuleType:
    """`pickle`, writing optimisers and metrics of Keras with their state."""

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            return keras_objects.reduce_state(obj)

    return stored.like_pickle(Pickler=Pickler)


def _by_value() -> ModuleType:
    """`pickle`, writing lambdas and closures (hooks of a model, callbacks) as their code."""
    byvalue = importlib.import_module("jupyter_dlaas.transfer.code_by_value")

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            is_lost = isinstance(obj, FunctionType) and not byvalue.is_found(obj)
            return byvalue.reduce(obj) if is_lost else keras_objects.reduce_state(obj)

    return stored.like_pickle(Pickler=Pickler)


def _without_model(value: Any) -> Any:
    """A Keras History holds its whole model, which may not load again; asked for are its numbers."""
    kind = type(value)
    if kind.__name__ == "History" and kind.__module__.startswith("keras."):
        value = copy.copy(value)
        value._model = None
    return value


def _to_cpu(value: Any, torch: Any) -> Any:
    """Bring tensors in the usual containers to the CPU that loading would not bring there, as those of an XLA device.

    What needs no change stays the same object.
    """
    if isinstance(value, torch.Tensor):
        return value if value.device.type in _LOADED_ON_CPU else value.detach().cpu()
    if type(value) is dict:
        made: Any = {key: _to_cpu(one, torch) for key, one in value.items()}
        return value if all(made[key] is one for key, one in value.items()) else made
    if type(value) in (list, tuple):
        made = type(value)(_to_cpu(one, torch) for one in value)
        return value if all(new is old for new, old in zip(made, value, strict=True)) else made
    return value


def load(
    data: bytes,
    source: Callable[[], str] | None = None,
    on_edited: Callable[[frozenset[str]], object] | None = None,
    versions: Callable[[], Mapping[str, Any]] | None = None,
) -> Any:
    """The value in a result file of one name. Unpickles: only for files of one's own jobs, in one's own kernel.

    `source` gives the job's program, for classes that are defined only there, and for classes that were edited since:
    their objects are of the job's class, and `on_edited` is told the names. Of a file of several names: a dict.
    `versions` gives what the job had of own modules; `on_edited` is told those classes and functions, as
    `module.name`, that this process has otherwise. Raises ValueError for other data, and FormatTooNew.
    """
    content, body, _ = _parts(data)
    asked = _Asked()
    try:
        value = _load(content, body, _noting(asked))
    except (AttributeError, TypeError, ValueError, KeyError):  # a class that is not here; Keras says it in other ways
        if source is None:
            raise
    else:
        others = code_versions.changed(versions(), asked.own) if asked.own and versions is not None else frozenset()
        if others and on_edited is not None:
            on_edited(others)
        changed = class_definitions.edited(source(), asked.main) if asked.main and source is not None else frozenset()
        if not changed & asked.main:
            return value
    assert source is not None
    own = class_definitions.edited(source(), asked.main)
    if own & asked.main and on_edited is not None:
        on_edited(own & asked.main)
    return _load(content, body, *_with_definitions(source(), own))


def load_graph(
    name: str,
    data: bytes,
    source: Callable[[], str] | None = None,
    on_edited: Callable[[frozenset[str]], object] | None = None,
    versions: Callable[[], Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The values in the result file of `name`, with all names that share objects with it. Unpickles, as `load` does."""
    if not names_in(data):
        return {name: load(data, source, on_edited, versions)}
    values: dict[str, Any] = load(data, source, on_edited, versions)
    if "torch" in sys.modules:
        importlib.import_module("jupyter_dlaas.transfer.pushed_objects").mend_schedulers(values.values())
    return values


def versions_of(client: Any, job: str) -> Mapping[str, Any]:
    """What a job had of own modules; nothing for a job that had none."""
    try:
        found: dict[str, Any] = json.loads(client.artifact(job, f"results/{VERSIONS}"))
    except (DlaasError, ValueError):
        return {}
    return found


def names_in(data: bytes) -> tuple[str, ...]:
    """The names whose values a result file holds as one graph; none for the file of one name. Unpickles nothing."""
    return _parts(data)[2]


def _parts(data: bytes) -> tuple[str, memoryview, tuple[str, ...]]:
    """Return what the content of a file is, the content, and its names, if these are one graph."""
    header = stored.read_header(data, FORMAT, what="the result file")
    if header is not None:
        return header.fields["content"], memoryview(data)[header.content_at :], tuple(header.fields.get("names", ()))
    names: tuple[str, ...] = ()
    begin = 0
    if data[:1] == _FORMER_GRAPH:
        begin = 5 + int.from_bytes(data[1:5])
        names = tuple(json.loads(data[5:begin])["names"])
    content = _FORMER.get(data[begin : begin + 1])
    if content is None:
        raise ValueError("this is no result file of a job")
    return content, memoryview(data)[begin + 1 :], names


def _load(content: str, body: memoryview, pickling: Any, defined: Mapping[str, Any] = MappingProxyType({})) -> Any:
    file = io.BytesIO(body)
    with _own_classes(defined):
        if content == _TORCH:
            import torch

            return torch.load(file, map_location="cpu", weights_only=False, pickle_module=pickling)
        return pickling.Unpickler(file).load()


@dataclass(slots=True)
class _Asked:
    """The classes and functions that a pickle looks up: of `__main__`, and of own modules with their module."""

    main: set[str] = field(default_factory=set)
    own: set[tuple[str, str]] = field(default_factory=set)


def _noting(asked: _Asked) -> ModuleType:
    """`pickle`, noting which classes and functions of the user's it looks up."""

    class Unpickler(stored.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            if module == "__main__":
                asked.main.add(name.partition(".")[0])
            found = super().find_class(module, name)
            if module != "__main__" and code_versions.is_own_module(sys.modules.get(module)):
                asked.own.add((module, name))
            return found

    return stored.like_pickle(Unpickler=Unpickler)


def _with_definitions(source: str, own: frozenset[str]) -> tuple[ModuleType, Mapping[str, Any]]:
    """`pickle`, finding the classes of `__main__` in a program too; and all of the program's classes, for Keras.

    `own`: names that are taken from the program although `__main__` has them.
    """

    class Unpickler(stored.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            return (
                class_definitions.find(source, name, own) if module == "__main__" else super().find_class(module, name)
            )

    return stored.like_pickle(Unpickler=Unpickler), class_definitions.classes(source) if "keras" in sys.modules else {}


def _own_classes(defined: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Keras looks the classes of a model up by name alone: those of the notebook are shown to it."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "saving"):
        return nullcontext()
    own = {name: one for name, one in vars(sys.modules["__main__"]).items() if isinstance(one, type | FunctionType)}
    return keras.saving.custom_object_scope({**defined, **own})  # type: ignore[no-any-return]
