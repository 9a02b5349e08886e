"""Results, as `-o model,history` returns them: one file per name, loaded only in the user's own kernel.

Names whose values share objects form one object graph: an optimiser stored separately from its model would have its own
weights afterwards and silently train nothing. The file of such a name holds the whole graph, and the files of its other
names are hard links to it.
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
from jupyter_dlaas.objects import code_versions, keras_objects, torch_optimizers
from jupyter_dlaas.transfer import class_definitions, shared_objects
from jupyter_dlaas.transfer.fitted_models import Parts, own_definitions
from jupyter_dlaas.transfer.library_reducers import reduce_state
from jupyter_dlaas.transfer.object_traversal import GRAD_SCALER, is_from, path_to, title, walk
from jupyter_dlaas.transfer.plain_values import is_plain
from jupyter_dlaas.transfer.shared_arrays import SharedMemory
from jupyter_dlaas.transfer.tensor_devices import ResultPlacement
from jupyter_dlaas.transfer.torch_hooks import Gradients, GradientsTooLarge, has_hooks
from jupyter_dlaas.wire.codec import DlaasError

__all__ = [
    "ResultPlacement",
    "changed_in",
    "dump",
    "has_gradients",
    "load",
    "load_graph",
    "names_in",
    "origins_in",
    "store",
    "versions_of",
]

STREAMS = "random_streams.json"
"""File beside the results with the random state at the program's end (`rng_state.written`)."""

VERSIONS = "own_modules.json"
"""File beside the results with the code of the user's modules in the job (`code_versions.table`)."""

FORMAT: Final = 2
"""Format of the files that this release writes: a header, then a pickle or torch.save's output, as `content` says.

If the header lists `names`, the content is a dict of values. Files of format 1 begin with one byte: P, T, or G; G is
followed by the length of the names in four bytes, the names as JSON, and P or T.
"""
_Reduce = Callable[[Any], Any]
"""Reduction of an object that `reduce_state` does not reduce alike, or NotImplemented."""
_PICKLE: Final = "pickle"
_TORCH: Final = "torch"
_FORMER: Final = {b"P": _PICKLE, b"T": _TORCH}
_FORMER_GRAPH: Final = b"G"

_GRADIENT_BYTES_MAX: Final = 64 << 20
"""Maximum size of the gradients in a file; larger ones are left out, as few notebooks read them after a training."""
_PARTS_MAX: Final = 2000
"""Maximum number of parts of a value whose classes are looked up."""
_LOADED_ON_CPU = frozenset({"cpu", "cuda", "mps"})
"""Devices whose tensors `map_location` of torch.load can move to the CPU."""


def store(
    folder: Path,
    names: Sequence[str],
    script: Mapping[str, Any],
    origins: shared_objects.Origins | None = None,
    changed: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Write the named values of a script; return the written names, and the reasons for the others.

    `origins`: the objects of these names at the beginning of the training cell. `changed`: the other names whose
    objects the cell has changed in place.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    errors = {name: "the job defines no such name" for name in names if name not in script}
    values = {name: _without_model(script[name]) for name in names if name in script}
    for group in shared_objects.groups(values):
        if len(group) > 1:
            try:
                data = _dump_group({name: values[name] for name in group}, origins, changed)
            except Exception as error:  # noqa: BLE001 - a class may raise anything
                print(f"[{', '.join(group)} are stored separately: {type(error).__name__}: {error}]", file=sys.stderr)
            else:
                _write_linked([folder / f"{name}.bin" for name in group], data)
                continue
        for name in group:
            try:
                data = _dump_group({name: values[name]}, origins, changed)
            except Exception as error:  # noqa: BLE001 - as above; the other values are still written
                errors[name] = _why_not(name, values[name], error, script)
                continue
            write_whole(folder / f"{name}.bin", data, sync=True)
    return [name for name in names if name in values and name not in errors], errors


def _why_not(name: str, value: object, error: Exception, script: Mapping[str, Any]) -> str:
    """Return the reason and the fix in one line: the log is read line by line."""
    if isinstance(error, pickle.PicklingError) and (why := _of_former_class(name, value, script)):
        return why
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    why = f"a {type(value).__name__} cannot be stored ({reason[:400]})"
    if is_from(value, *GRAD_SCALER):
        why += f"; call {name}.update() after its last step"
    elif hasattr(type(value), "state_dict"):
        part = "weights" if hasattr(type(value), "parameters") else "state"
        why += f"; its {part} can be: {name}_state = {name}.state_dict() in the cell, and -o {name}_state"
    elif hasattr(type(value), "get_weights"):
        why += f"; its weights can be: {name}_weights = {name}.get_weights() in the cell, and -o {name}_weights"
        parts = _names_of_parts(name, value, script, "get_weights")
        why += f"; so can its models: -o {','.join(parts)}" if parts else ""
    elif parts := _names_of_parts(name, value, script, "state_dict"):
        why += f"; what it trains can be: -o {','.join(parts)}"
    return why


def _names_of_parts(name: str, value: object, script: Mapping[str, Any], method: str) -> list[str]:
    """Return the other names of the objects in a value's fields whose class has this method."""
    held = {id(one) for one in getattr(value, "__dict__", {}).values() if hasattr(type(one), method)}
    return [other for other, one in script.items() if id(one) in held and other != name]


def _of_former_class(name: str, value: object, script: Mapping[str, Any]) -> str:
    """Return why an object cannot be stored whose class the program has defined again, or ""."""
    byvalue = importlib.import_module("jupyter_dlaas.transfer.code_by_value")
    former = next((one for _, one in walk({name: value}, _PARTS_MAX) if byvalue.is_former_class(type(one))), None)
    if former is None:
        return ""
    path, kind, file = path_to({name: value}, former, _PARTS_MAX), type(former).__name__, script.get("__file__")
    place = ""
    if isinstance(file, str):
        with suppress(OSError):  # the sentence does without the cell
            place = class_definitions.place_of(Path(file).read_text("utf-8"), kind)
    return (
        f"`{path}` is a `{kind}` from before {place or 'the program'} defined `{kind}` again; create it below that "
        f"definition, or run {path}.__class__ = {kind} at the beginning of the training cell"
    )


def _write_linked(paths: Sequence[Path], data: bytes) -> None:
    """Write the same bytes under several names, only once if the file system supports hard links."""
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


def _dump_group(values: dict[str, Any], origins: shared_objects.Origins | None, changed: Sequence[str]) -> bytes:
    """Return the file of one object graph: with its names, what its classes hold, and the origins of its parts."""
    fields: dict[str, Any] = {"changed": list(changed)} if changed else {}
    content = values
    try:
        if origins is not None:
            content = values | origins.changed_attributes(values)
            fields["origins"] = origins.of(content)
    except Exception as error:  # noqa: BLE001 - objects of any class may fail in any way
        names = ", ".join(values)
        print(f"[what refers to parts of {names} does not follow: {type(error).__name__}: {error}]", file=sys.stderr)
        content = values
    if len(content) == 1:
        return _with_header(*values.values(), **fields)
    return _with_header(content, names=list(values), **fields)


def dump(value: Any) -> bytes:
    """Return the bytes of one value for `load`; tensors load on the CPU, classes of train.py by their source name."""
    return _with_header(value)


def _with_header(value: Any, **fields: Any) -> bytes:
    try:
        content, body = _dump(value, _pickle_with_state)
    except Exception:  # noqa: BLE001 - its parts may raise anything, such as a function without an importable name
        try:
            content, body = _dump(value, _by_value)
        except Exception as error:  # noqa: BLE001 - as above
            content, body = _dump_with(value, _without_hooks, None)
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"[the hooks of weights and optimisers in a result are left out: {why[:200]}]", file=sys.stderr)
    return stored.to_header("result", FORMAT, **content, **fields) + body


def _dump(value: Any, pickling: Callable[[_Reduce], Any]) -> tuple[dict[str, Any], bytes]:
    """Return the header's fields on the content, and the content: without gradients if these are large."""
    try:
        return _dump_with(value, pickling, Gradients(_GRADIENT_BYTES_MAX))
    except GradientsTooLarge:
        return _dump_with(value, pickling, None)


def _dump_with(
    value: Any, pickling: Callable[[_Reduce], Any], gradients: Gradients | None
) -> tuple[dict[str, Any], bytes]:
    torch, memory, parts = sys.modules.get("torch"), SharedMemory(), Parts({"": value})
    is_torch = torch is not None and not is_plain(value)
    moved = _to_cpu(value, torch) if is_torch else value

    def reduce(obj: Any) -> Any:
        if (reduced := memory.reduce(obj)) is not None:
            return reduced
        if gradients is not None and (reduced := gradients.reduce(obj)) is not NotImplemented:
            return reduced
        return parts.reduce(obj)

    while True:
        file = io.BytesIO()
        if is_torch:
            torch.save(moved, file, pickle_module=pickling(reduce))  # type: ignore[union-attr]  # it is loaded
        else:
            pickling(reduce).Pickler(file, protocol=5).dump(moved)
        if memory.is_complete():
            fields: dict[str, Any] = {"content": _TORCH if is_torch else _PICKLE}
            if gradients is None or gradients.count:
                fields["has_gradients"] = gradients is not None
            return fields, file.getvalue()


def _pickle_with_state(reduce: _Reduce) -> ModuleType:
    """Return a `pickle` module that stores optimisers and metrics with all their state."""

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            reduced = reduce(obj)
            return reduced if reduced is not NotImplemented else reduce_state(obj)

    return stored.like_pickle(Pickler=Pickler)


def _without_hooks(reduce: _Reduce) -> ModuleType:
    """Return a `pickle` module that stores weights and optimisers without their hooks, as torch does."""
    return _by_value(reduce, with_hooks=False)


def _by_value(reduce: _Reduce, *, with_hooks: bool = True) -> ModuleType:
    """Return a `pickle` module that stores lambdas and closures (hooks, callbacks) as code."""
    byvalue = importlib.import_module("jupyter_dlaas.transfer.code_by_value")

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if not with_hooks and has_hooks(obj):
                return reduce(obj)
            if not with_hooks and torch_optimizers.is_optimizer(obj):
                return torch_optimizers.reduce_state(obj, with_hooks=False)
            if isinstance(obj, FunctionType) and not byvalue.is_found(obj):
                return byvalue.reduce(obj)
            reduced = reduce(obj)
            return reduced if reduced is not NotImplemented else reduce_state(obj)

    return stored.like_pickle(Pickler=Pickler)


def _without_model(value: Any) -> Any:
    """Return a Keras History without its model, which may not load again; the user needs its numbers."""
    kind = type(value)
    if kind.__name__ == "History" and kind.__module__.startswith("keras."):
        value = copy.copy(value)
        value._model = None
    return value


def _to_cpu(value: Any, torch: Any) -> Any:
    """Move tensors in the usual containers to the CPU if loading cannot do so, as for those of an XLA device.

    Values that need no change stay the same objects.
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
    placement: ResultPlacement | None = None,
) -> Any:
    """Return the value in a result file of one name. Unpickles, so use it only for the user's own jobs.

    `source` returns the job's program, for classes that are defined only there or were edited since: their objects use
    the job's class, and `on_edited` receives the names. A file of several names gives a dict. `versions` returns the
    job's versions of the user's modules; `on_edited` receives the classes and functions, as `module.name`, that differ
    in this process. `placement` records where tensors are. Raises ValueError for other data, and FormatTooNew.
    """
    content, body, _ = _parts(data)
    placement = placement or ResultPlacement()
    looked_up = _LookedUp()
    try:
        value = _load(content, body, placement, _recording_pickle(looked_up))
    except (AttributeError, TypeError, ValueError, KeyError):  # a missing class, which Keras reports differently
        if source is None:
            raise
    else:
        if "keras" in sys.modules:
            looked_up.add_classes_in(value)
        others = (
            code_versions.changed(versions(), looked_up.own) if looked_up.own and versions is not None else frozenset()
        )
        if others and on_edited is not None:
            on_edited(others)
        changed = (
            class_definitions.edited(source(), looked_up.main) if looked_up.main and source is not None else frozenset()
        )
        if not changed & looked_up.main:
            return value
    assert source is not None
    own = class_definitions.edited(source(), looked_up.main)
    if own & looked_up.main and on_edited is not None:
        on_edited(own & looked_up.main)
    return _load(content, body, placement, *_with_definitions(source(), own))


def load_graph(
    name: str,
    data: bytes,
    source: Callable[[], str] | None = None,
    on_edited: Callable[[frozenset[str]], object] | None = None,
    versions: Callable[[], Mapping[str, Any]] | None = None,
    placement: ResultPlacement | None = None,
) -> dict[str, Any]:
    """Return the values in the result file of `name` and of all names that share objects with it; unpickles."""
    if not names_in(data):
        return {name: load(data, source, on_edited, versions, placement)}
    values: dict[str, Any] = load(data, source, on_edited, versions, placement)
    if "torch" in sys.modules:
        importlib.import_module("jupyter_dlaas.transfer.pushed_objects").mend_schedulers(values.values())
    return values


def versions_of(client: Any, job: str) -> Mapping[str, Any]:
    """Return the job's versions of the user's modules, empty if it used none."""
    try:
        found: dict[str, Any] = json.loads(client.artifact(job, f"results/{VERSIONS}"))
    except (DlaasError, ValueError):
        return {}
    return found


def names_in(data: bytes) -> tuple[str, ...]:
    """Return the names whose values a result file holds as one graph; none for a file of one name. No unpickling."""
    return _parts(data)[2]


def origins_in(data: bytes) -> dict[str, dict[str, str]]:
    """Return, for each name in a result file, the former paths of its parts by their paths in the value.

    Empty for a job of an earlier release and for a program without cells.
    """
    found: dict[str, dict[str, str]] = _fields(data).get("origins", {})
    return found


def changed_in(data: bytes) -> tuple[str, ...]:
    """Return the names that the job did not return, and whose objects its training cell has changed in place."""
    return tuple(_fields(data).get("changed", ()))


def has_gradients(data: bytes) -> bool | None:
    """Return whether the weights in a result file have their gradients; None if none had one in the job.

    Those of large models are not returned.
    """
    found: bool | None = _fields(data).get("has_gradients")
    return found


def _fields(data: bytes) -> Mapping[str, Any]:
    header = stored.read_header(data, FORMAT, what="the result file")
    return header.fields if header is not None else {}


def _parts(data: bytes) -> tuple[str, memoryview, tuple[str, ...]]:
    """Return the content's kind, the content, and its names if these form one graph."""
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
        raise ValueError("not a result file of a job")
    return content, memoryview(data)[begin + 1 :], names


def _load(
    content: str,
    body: memoryview,
    placement: ResultPlacement,
    pickling: Any,
    defined: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    file = io.BytesIO(body)
    with _own_classes(defined):
        if content == _TORCH:
            import torch

            def read(map_location: Any) -> Any:
                file.seek(0)
                return torch.load(file, map_location=map_location, weights_only=False, pickle_module=pickling)

            return placement.load(read)
        return pickling.Unpickler(file).load()


@dataclass(slots=True)
class _LookedUp:
    """Classes and functions that a pickle looks up: of `__main__`, and of the user's modules."""

    main: set[str] = field(default_factory=set)
    own: set[tuple[str, str]] = field(default_factory=set)

    def add(self, module: str, name: str) -> None:
        if module == "__main__":
            self.main.add(name.partition(".")[0])
        elif code_versions.is_own_module(sys.modules.get(module)):
            self.own.add((module, name))

    def add_classes_in(self, value: Any) -> None:
        """Add the classes of a loaded value's parts: Keras finds those of its objects without pickle."""
        for _, part in walk({"": value}, _PARTS_MAX):
            self.add(*title(type(part)))
            for layer in keras_objects.layers_in(part) if keras_objects.is_layer(part) else ():
                self.add(*title(type(layer)))


def _recording_pickle(looked_up: _LookedUp) -> ModuleType:
    """Return a `pickle` module that records the user's classes and functions that it looks up."""

    class Unpickler(stored.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            if module == "__main__":
                looked_up.add(module, name)  # also if it has no such name
            found = super().find_class(module, name)  # imports the module
            looked_up.add(module, name)
            return found

    return stored.like_pickle(Unpickler=Unpickler)


def _with_definitions(source: str, own: frozenset[str]) -> tuple[ModuleType, Mapping[str, Any]]:
    """Return a `pickle` module that also finds classes of `__main__` in a program, and the program's classes for Keras.

    `own`: names that come from the program although `__main__` has them.
    """

    class Unpickler(stored.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            return (
                class_definitions.find(source, name, own) if module == "__main__" else super().find_class(module, name)
            )

    defined: dict[str, Any] = {}
    if "keras" in sys.modules:
        edited = {name: class_definitions.find(source, name, own) for name in own}
        defined = class_definitions.classes(source) | edited
    return stored.like_pickle(Unpickler=Unpickler), defined


def _own_classes(defined: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Return a context in which Keras, which looks up classes by name alone, knows those of the notebook."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "saving"):
        return nullcontext()
    return keras.saving.custom_object_scope({**own_definitions(), **defined})  # type: ignore[no-any-return]
