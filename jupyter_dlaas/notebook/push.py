"""Objects sent by value: written in the kernel as one graph, loaded in the job by `dlaas.pushed("model", "optimizer")`.

One graph, because an optimiser written apart from its model comes back pointing at other weights, and then trains
nothing, in silence. Works without torch; where the kernel has torch, tensors of any device come back on the CPU.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
import tempfile
import types
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from jupyter_dlaas.notebook.records import size_text
from jupyter_dlaas.wire import DlaasError

__all__ = ["BYTES_MAX", "CannotTravel", "NotPushed", "Pushed", "TooLarge", "load_pushed", "write_pushed"]

BYTES_MAX: Final = 2**30
PROTOCOL: Final = 5


class CannotTravel(DlaasError):
    """An object that exists only inside the kernel's process."""

    code = "cannot_travel"
    http_status = 422


class TooLarge(DlaasError):
    """More than one job may be sent."""

    code = "push_too_big"
    http_status = 413


class NotPushed(DlaasError):
    """train.py asks for a name that the job was not given."""

    code = "not_pushed"
    http_status = 404


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was written."""

    path: Path
    names: tuple[str, ...]
    size_bytes: int
    main_names: tuple[str, ...]  # the notebook's classes and functions that loading needs


def write_pushed(path: Path, objects: Mapping[str, object], *, bytes_max: int = BYTES_MAX) -> Pushed:
    """Write named objects as one graph, and check it by loading it back. The file appears whole or not at all.

    Raises CannotTravel (naming the object) and TooLarge. The kernel's objects stay as they are, on their devices.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600: it is the user's data
    try:
        with os.fdopen(handle, "wb") as file:
            target = _Bounded(file, bytes_max)
            main_names = _dump(dict(objects), target)
            file.flush()
            os.fsync(file.fileno())
        _check(Path(temporary), objects)
        size_bytes = Path(temporary).stat().st_size
        Path(temporary).replace(path)
    except _TooMuch as error:
        names = ", ".join(objects)
        raise TooLarge(
            f"--push {names}: more than {size_text(bytes_max)}, which is the most that can be sent. "
            "Save it to a file and load it in the training cell."
        ) from error
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
    return Pushed(path, tuple(objects), size_bytes, main_names)


def load_pushed(path: Path, names: Sequence[str]) -> Any:
    """The objects with these names, from a file that `write_pushed` made: one object for one name, else a tuple.

    Runs the constructors that the objects ask for: only for files of the user's own, in a process of the user's own.
    Raises NotPushed for a name that is not there.
    """
    objects = _load(Path(path))
    missing = [name for name in names if name not in objects]
    if missing:
        raise NotPushed(f"{missing[0]} was not sent with this job. Submit it again with --push {','.join(names)}.")
    return objects[names[0]] if len(names) == 1 else tuple(objects[name] for name in names)


class _TooMuch(Exception):
    pass


class _Bounded(io.RawIOBase):
    """Passes writing on, up to a number of bytes."""

    def __init__(self, file: IO[bytes], bytes_max: int) -> None:
        self._file = file
        self._left = bytes_max

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise _TooMuch
        self._file.write(data)
        return size


def _pickler() -> tuple[type[pickle.Pickler], set[str]]:
    """A pickler that notes which definitions of the notebook an object needs."""
    noted: set[str] = set()

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__":
                noted.add(obj.__qualname__.partition(".")[0])
            return NotImplemented

    return Pickler, noted


def _dump(objects: dict[str, object], target: _Bounded) -> tuple[str, ...]:
    pickler, noted = _pickler()
    try:
        if (torch := sys.modules.get("torch")) is not None:
            torch.save(objects, target, pickle_module=_as_module(pickler), pickle_protocol=PROTOCOL)
        else:
            pickler(target, protocol=PROTOCOL).dump(objects)
    except _TooMuch:
        raise
    except (
        pickle.PicklingError,
        TypeError,
        AttributeError,
        RuntimeError,
        NotImplementedError,
        RecursionError,
    ) as error:
        if target._left < 0:  # torch's archive writer wraps what the file raised
            raise _TooMuch from error
        raise _cannot(objects, error) from error
    return tuple(sorted(noted - {"<lambda>"}))


def _as_module(pickler: type[pickle.Pickler]) -> types.ModuleType:
    module = types.ModuleType("pickle")
    module.__dict__.update({name: value for name, value in vars(pickle).items() if not name.startswith("__")})
    module.Pickler = pickler  # type: ignore[attr-defined]
    return module


def _cannot(objects: Mapping[str, object], error: Exception) -> CannotTravel:
    """Which of the names it is: the first that cannot be written alone."""
    for name, value in objects.items():
        try:
            _dump_alone(value)
        except (
            pickle.PicklingError,
            TypeError,
            AttributeError,
            RuntimeError,
            NotImplementedError,
            RecursionError,
        ) as own:
            kind = type(value).__name__
            return CannotTravel(
                f"--push {name}: `{name}` ({kind}) cannot leave this process: {own}. "
                "Make it in the training cell, or push what it was made from."
            )
    return CannotTravel(f"--push {', '.join(objects)}: {error}")


def _dump_alone(value: object) -> None:
    with tempfile.TemporaryFile() as file:
        if (torch := sys.modules.get("torch")) is not None:
            torch.save(value, file, pickle_protocol=PROTOCOL)
        else:
            pickle.dump(value, file, protocol=PROTOCOL)


def _load(path: Path) -> dict[str, object]:
    if zipfile.is_zipfile(path):
        torch = importlib.import_module("torch")
        objects = torch.load(path, map_location="cpu", weights_only=False)
    else:
        with path.open("rb") as file:
            objects = pickle.load(file)  # noqa: S301 - the user's own objects, in the user's own process
    assert isinstance(objects, dict), "written by write_pushed"
    return objects


def _check(path: Path, objects: Mapping[str, object]) -> None:
    try:
        loaded = _load(path)
    except Exception as error:  # whatever a user's __setstate__ raises, the push is refused with its words
        names = ", ".join(objects)
        raise CannotTravel(
            f"--push {names}: it was written, but does not load again: {type(error).__name__}: {error}. "
            "Make it in the training cell, or push what it was made from."
        ) from error
    for name, value in objects.items():
        if type(loaded[name]) is not type(value):
            raise CannotTravel(
                f"--push {name}: `{name}` is a {type(value).__name__} here and would be a "
                f"{type(loaded[name]).__name__} in the job. Push what it was made from."
            )
