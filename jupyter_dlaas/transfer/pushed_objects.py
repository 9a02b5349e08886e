"""Objects sent by value: written in the kernel as one graph, loaded in the job by `dlaas.pushed("model", "optimizer")`.

One graph, because an optimiser stored separately from its model refers to other weights afterwards, and silently trains
nothing. Works without torch. If the kernel has torch, tensors of any device go through the CPU and return to the job's
device of the same kind, or stay on the CPU if there is none.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.analysis.model import size_text
from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.transfer import code_by_value, tensor_devices
from jupyter_dlaas.transfer.fitted_models import Parts
from jupyter_dlaas.transfer.library_reducers import reduce_state
from jupyter_dlaas.transfer.object_traversal import GRAD_SCALER, is_a, is_from, path_to, process_bound_kind, title, walk
from jupyter_dlaas.transfer.shared_arrays import SharedMemory
from jupyter_dlaas.wire.codec import DlaasError

__all__ = [
    "BYTES_MAX",
    "NotPushed",
    "NotSendable",
    "Pushed",
    "TooLarge",
    "load_pushed",
    "mend_schedulers",
    "pickler_class",
    "write_pushed",
]

BYTES_MAX: Final = 2**30
PROTOCOL: Final = 5
FORMAT: Final = 2
"""Format of the files that this release writes; files of format 1 have no header."""
_ARCHIVE: Final = b"PK\3\4"
"""First bytes of files written by torch."""
_OBJECTS_MAX: Final = 200_000
"""Maximum number of objects to search for the one that cannot be sent."""
_GRADIENTS: Final = "gradients of tensors"
"""Key of the list of tensors with their gradients, beside the objects by name."""
_OPTIMIZERS: Final = "optimizers of models"
"""Key of the names of optimisers with the name of the model of each: Keras stores a model's optimiser with it, too."""
_INSTEAD: Final = "Create it in the training cell, or push the data it was created from."


class NotSendable(DlaasError):
    """Error of an object that exists only inside the kernel's process."""

    code = "cannot_travel"
    http_status = 422


class TooLarge(DlaasError):
    """Error of a push that exceeds the maximum size."""

    code = "push_too_big"
    http_status = 413


class NotPushed(DlaasError):
    """Error of a program that requests a name that was not pushed."""

    code = "not_pushed"
    http_status = 404


@dataclass(frozen=True, slots=True)
class Pushed:
    """Result of writing pushed objects."""

    path: Path
    names: tuple[str, ...]
    size_bytes: int
    main_names: tuple[str, ...]
    """Names of the notebook that loading needs: classes and functions, and names read by functions sent by value."""


def write_pushed(
    path: Path, objects: Mapping[str, object], *, bytes_max: int = BYTES_MAX, has_gradients: bool = False
) -> Pushed:
    """Write named objects as one graph, and check the file by loading it. The file appears whole or not at all.

    `has_gradients`: with the gradients of their tensors, as an interrupted training leaves them, which torch omits.
    Raises NotSendable, which names the object and the path to its part that cannot be sent, and TooLarge. The kernel's
    objects stay unchanged on their devices, and so does its random state.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600: private data
    try:
        with _preserved_random_state():
            with os.fdopen(handle, "wb") as file:
                memory = SharedMemory()
                needs = _dump(dict(objects), _Bounded(file, bytes_max), memory, has_gradients=has_gradients)
                if not memory.is_complete():
                    file.truncate(file.seek(0))
                    needs = _dump(dict(objects), _Bounded(file, bytes_max), memory, has_gradients=has_gradients)
                file.flush()
                os.fsync(file.fileno())
            _check(Path(temporary), objects)
        size_bytes = Path(temporary).stat().st_size
        Path(temporary).replace(path)
    except _TooMuch as error:
        raise TooLarge(
            f"--push {', '.join(objects)}: exceeds the maximum of {size_text(bytes_max)}. "
            "Save the value to a file and load it in the training cell."
        ) from error
    except OSError as error:
        raise NotSendable(
            f"--push {', '.join(objects)}: cannot be written to {path.parent}: {error.strerror}"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
    return Pushed(path, tuple(objects), size_bytes, tuple(sorted(needs - set(objects))))


def load_pushed(path: Path, names: Sequence[str]) -> Any:
    """Load objects by name from a file of `write_pushed`: one object for one name, else a tuple.

    Runs the constructors that the objects require, so use it only for the user's own files. Raises NotPushed for an
    unknown name, and FormatTooNew.
    """
    objects = _load(Path(path), tensor_devices.place)
    missing = [name for name in names if name not in objects]
    if missing:
        raise NotPushed(f"{missing[0]} was not sent with this job. Resubmit the job with --push {','.join(names)}.")
    return objects[names[0]] if len(names) == 1 else tuple(objects[name] for name in names)


# ------------------------------------------------------------------------------------------------------------- writing


class _TooMuch(Exception):
    pass


class _NotSendable(Exception):
    """Error of an object of a class that cannot be sent; `template` has fields for the object and the path to it."""

    def __init__(self, kind: type, template: str) -> None:
        super().__init__(template)
        self.kind, self.template = kind, template


class _Bounded(io.RawIOBase):
    """Stream that passes on written bytes up to a maximum."""

    def __init__(self, file: IO[bytes], bytes_max: int) -> None:
        self._file = file
        self._left = bytes_max
        self.is_full = False
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            self.is_full = True
            raise _TooMuch
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        return size


@dataclass(slots=True)
class _Notes:
    needs: set[str]
    last: object = None
    """Object that was being written when an error occurred."""
    gradients: list[tuple[Any, Any]] = field(default_factory=list)
    """Written tensors with their gradients."""


def _pickler(notes: _Notes, memory: SharedMemory | None = None, parts: Parts | None = None) -> type[pickle.Pickler]:
    """Return a pickler that records the notebook's names an object needs and sends objects without a name by value.

    `memory` receives the arrays and tensors; `parts` are Keras layers that belong to a model.
    """
    torch: Any = sys.modules.get("torch")

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            notes.last = obj
            if torch is not None and is_a(obj, torch.Tensor) and obj.is_leaf and obj.grad is not None:
                notes.gradients.append((obj, obj.grad))
            if is_a(obj, types.FunctionType):
                return self._function(obj)
            if is_a(obj, type):
                self._class(obj)
            elif type(obj) is types.ModuleType and sys.modules.get(obj.__name__) is obj and obj.__name__ != "__main__":
                return importlib.import_module, (obj.__name__,)
            elif is_from(obj, "torch.utils.data.dataloader", "DataLoader"):
                return _idle_loader(obj, self.proto)
            if parts is not None and (reduced := parts.reduce(obj)) is not NotImplemented:
                return reduced
            return (memory is not None and memory.reduce(obj)) or reduce_state(obj)

        proto = PROTOCOL

        def _function(self, obj: types.FunctionType) -> Any:
            if code_by_value.is_found(obj):
                if obj.__module__ == "__main__":
                    notes.needs.add(obj.__qualname__.partition(".")[0])
                return NotImplemented
            notes.needs |= code_by_value.reads(obj)
            return code_by_value.reduce(obj)

        def _class(self, obj: type) -> None:
            module, name = title(obj)
            if module != "__main__":
                if module in sys.modules and name in vars(sys.modules[module]) and not code_by_value.is_found(obj):
                    raise _NotSendable(
                        obj,
                        f"{{what}} is a `{name}` from before `{module}` was reloaded. "
                        f"Run {{path}}.__class__ = {module}.{name}, or run the cell that creates it again.",
                    )
                return
            if "<locals>" in name:
                inside = name.partition(".")[0]
                raise _NotSendable(
                    obj,
                    f"{{what}} is a `{obj.__name__}`, a class defined inside `{inside}`. Define it at the top level.",
                )
            if not code_by_value.is_found(obj):
                raise _NotSendable(
                    obj,
                    f"{{what}} is a `{name}` from before its defining cell ran again. "
                    f"Run {{path}}.__class__ = {name}, or run the cell that creates it again.",
                )
            notes.needs.add(name.partition(".")[0])

    return Pickler


def pickler_class() -> type[pickle.Pickler]:
    """Return a pickler that stores objects without a name by value, as `write_pushed` does, for other files."""
    return _pickler(_Notes(set()))


def _idle_loader(loader: Any, protocol: int) -> Any:
    """Return a copy of a DataLoader without worker processes, which it may keep between epochs."""
    function, arguments, state, *rest = loader.__reduce_ex__(protocol)
    return (function, arguments, {**state, "_iterator": None} if isinstance(state, dict) else state, *rest)


def _dump(objects: Mapping[str, object], target: _Bounded, memory: SharedMemory, *, has_gradients: bool) -> set[str]:
    notes = _Notes(set())
    parts = Parts(objects)
    if parts.apart is not None:
        one, other = (path_to(objects, model, _OBJECTS_MAX) for model in parts.apart)
        raise NotSendable(
            f"--push {', '.join(objects)}: `{one}` and `{other}` share layers, and Keras stores each model by itself: "
            "in the job, training one would not change the other. Push one, and create the other from its layers in "
            "the training cell."
        )
    pickler = _pickler(notes, memory, parts)
    owners = keras_objects.owners(objects)
    written = {**objects, **({_OPTIMIZERS: owners} if owners else {})}
    try:
        target.write(stored.to_header("pushed objects", FORMAT))
        if (torch := sys.modules.get("torch")) is not None:
            # last: the list is complete when it is written
            written |= {_GRADIENTS: notes.gradients} if has_gradients else {}
            torch.save(written, target, pickle_module=stored.like_pickle(Pickler=pickler), pickle_protocol=PROTOCOL)
        else:
            pickler(target, protocol=PROTOCOL).dump(written)
    except Exception as error:
        if target.is_full:
            raise _TooMuch from error
        if target.error is not None:
            raise target.error from error
        raise _cannot(objects, notes.last, error) from error
    return notes.needs


def _cannot(objects: Mapping[str, object], last: object, error: Exception) -> NotSendable:
    """Return the error with the object's path, the reason and the fix."""
    if isinstance(error, _NotSendable):
        last = next((one for _, one in walk(objects, _OBJECTS_MAX) if type(one) is error.kind), last)
    path = path_to(objects, last, _OBJECTS_MAX)
    named = re.match(r"\w+", path or "")
    name = named[0] if named is not None else ", ".join(objects)
    kind = title(type(last))[1]
    what = f"`{path}`" if path is not None else f"something in it ({kind})"
    if isinstance(error, _NotSendable):
        template = error.template.format(what=what, path=path if path and "(" not in path else "it")
    elif (why := process_bound_kind(last)) is not None:
        template = f"{what} is {why} and cannot be sent to a job. {_INSTEAD}"
    elif is_from(last, *GRAD_SCALER):
        call = f"{path or 'its'}.update()"
        template = f"{what} has made a step without its update. Call {call} in a cell, then send it."
    else:
        template = f"{what} ({kind}) cannot be sent to a job: {_error_text(error)}. {_INSTEAD}"
    return NotSendable(f"--push {name}: {template}")


def _error_text(error: Exception) -> str:
    return (
        str(error.args[0] if isinstance(error, KeyError) and error.args else error).rstrip(".") or type(error).__name__
    )


# ------------------------------------------------------------------------------------------------------------- loading


def _load(path: Path, placed: Callable[[Any, str], Any]) -> dict[str, object]:
    with path.open("rb") as file:
        stored.read_header(file, FORMAT, what=f"the file of pushed objects {path}")
        begin = file.tell()
        # zipfile.is_zipfile looks at the end of the file, where a Keras model may be
        is_archive = file.read(len(_ARCHIVE)) == _ARCHIVE
        file.seek(begin)
        if is_archive:
            torch = importlib.import_module("torch")
            pickling = stored.like_pickle(Unpickler=_Unpickler)
            objects = torch.load(file, map_location=placed, weights_only=False, pickle_module=pickling)
            for tensor, gradient in objects.pop(_GRADIENTS, ()):
                tensor.grad = gradient
            mend_schedulers(objects.values())
        else:
            objects = stored.Unpickler(file).load()
    assert isinstance(objects, dict), "written by write_pushed"
    for name, owner in objects.pop(_OPTIMIZERS, {}).items():
        found = getattr(objects[owner], "optimizer", None)  # Keras stores that of a compiled model only
        if type(found) is type(objects[name]):
            objects[name] = found
    return objects


class _Unpickler(stored.Unpickler):
    """Unpickler that replaces devices that the job does not have."""

    def find_class(self, module: str, name: str) -> Any:
        return _device if (module, name) == ("torch", "device") else super().find_class(module, name)


def _device(*arguments: Any) -> Any:
    torch = importlib.import_module("torch")
    wanted = torch.device(*arguments)
    return (
        torch.device(tensor_devices.local_device(wanted.type, wanted.index))
        if wanted.type in ("cuda", "mps")
        else wanted
    )


def _on_cpu(storage: Any, _location: str) -> Any:
    """Implement `map_location` of torch.load for the check, which uses no memory of the kernel's GPU."""
    return storage


def mend_schedulers(objects: Iterable[object]) -> None:
    """Restore the marker on optimisers by which schedulers count their steps; without it a scheduler would warn."""
    base = importlib.import_module("torch.optim.lr_scheduler").LRScheduler
    one: Any
    for _, one in walk({str(number): value for number, value in enumerate(objects)}, _OBJECTS_MAX):
        if is_a(one, base) and hasattr(one, "optimizer") and not hasattr(one.optimizer.step, "_wrapped_by_lr_sched"):
            one.optimizer.step = _recording_pickle(one.optimizer)


def _recording_pickle(optimizer: Any) -> Any:
    step = optimizer.step

    @functools.wraps(step)
    def noting(*arguments: Any, **options: Any) -> Any:
        optimizer._opt_called = True
        return step(*arguments, **options)

    noting._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # the marker that torch checks
    return noting


def _check(path: Path, objects: Mapping[str, object]) -> None:
    try:
        loaded = _load(path, _on_cpu)
    except Exception as error:  # a user's __setstate__ may raise anything; the refusal quotes it
        raise NotSendable(
            f"--push {', '.join(objects)}: it was written but cannot be loaded again: {type(error).__name__}: {error}. "
            f"{_INSTEAD}"
        ) from error
    for name, value in objects.items():
        there, here = title(type(loaded[name])), title(type(value))  # torch makes a class for each traced module
        if there != here:
            raise NotSendable(
                f"--push {name}: `{name}` is a {here[1]} here and would be a {there[1]} in the job. "
                "Push the data it was created from."
            )


@contextmanager
def _preserved_random_state() -> Iterator[None]:
    """Preserve the random state: constructors and `__setstate__` may draw numbers."""
    streams = importlib.import_module("jupyter_dlaas.transfer.rng_state")
    found = streams.snapshot()
    try:
        yield
    finally:
        streams.put_back(found)
