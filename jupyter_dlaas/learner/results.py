"""What `-o model,history` brings back: one file per name, read again in the user's own kernel only."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from jupyter_dlaas.learner import definitions
from jupyter_dlaas.learner.values import is_plain
from jupyter_dlaas.runtime.files import write_whole

__all__ = ["dump", "load", "store"]

# What follows the first byte: a pickle, or what torch.save writes. The byte saves guessing and loading torch in vain.
_PICKLE = b"P"
_TORCH = b"T"


def store(folder: Path, names: Sequence[str], script: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Write the named values of a script; returns the names that were written, and why the others were not."""
    folder.mkdir(mode=0o700, exist_ok=True)
    stored: list[str] = []
    errors: dict[str, str] = {}
    for name in names:
        if name not in script:
            errors[name] = "the job bound no such name"
            continue
        try:
            data = dump(script[name])
        except Exception as error:  # noqa: BLE001 - a value of any class may refuse in any way; the others still go
            kind = type(script[name]).__name__
            errors[name] = f"a {kind} cannot be stored ({type(error).__name__}: {error})"[:500]
            if hasattr(type(script[name]), "state_dict"):
                errors[name] += (
                    f"; its weights can: {name}_state = {name}.state_dict() in the cell, and -o {name}_state"
                )
            continue
        write_whole(folder / f"{name}.bin", data, sync=True)
        stored.append(name)
    return stored, errors


def dump(value: Any) -> bytes:
    """One value as bytes for `load`; tensors are on the CPU afterwards, classes of train.py go by their source name."""
    value = _without_model(value)
    try:
        return _dump(value, pickle)
    except Exception:  # noqa: BLE001 - whatever a value's parts raise: perhaps a function that no name leads to
        return _dump(value, _by_value())


def _dump(value: Any, pickling: Any) -> bytes:
    torch, file = sys.modules.get("torch"), io.BytesIO()
    if torch is None or is_plain(value):
        pickling.Pickler(file, protocol=5).dump(value)
        return _PICKLE + file.getvalue()
    torch.save(_to_cpu(value, torch), file, pickle_module=pickling)
    return _TORCH + file.getvalue()


def _by_value() -> ModuleType:
    """`pickle`, writing lambdas and closures (hooks of a model, callbacks) as their code."""
    byvalue = importlib.import_module("jupyter_dlaas.notebook.byvalue")

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            is_lost = isinstance(obj, FunctionType) and not byvalue.is_found(obj)
            return byvalue.reduce(obj) if is_lost else NotImplemented

    return _like_pickle(Pickler=Pickler)


def _like_pickle(**parts: type) -> ModuleType:
    found = ModuleType("pickle")
    found.__dict__.update({k: v for k, v in vars(pickle).items() if not k.startswith("__")} | parts)
    return found


def _without_model(value: Any) -> Any:
    """A Keras History holds its whole model, which may not load again; asked for are its numbers."""
    kind = type(value)
    if kind.__name__ == "History" and kind.__module__.startswith("keras."):
        value = copy.copy(value)
        value._model = None
    return value


def _to_cpu(value: Any, torch: Any) -> Any:
    """Tensors in the usual containers come to the CPU here; those inside other objects when they are loaded."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu() if value.device.type != "cpu" else value
    if type(value) is dict:
        return {key: _to_cpu(one, torch) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_to_cpu(one, torch) for one in value)
    return value


def load(data: bytes, source: Callable[[], str] | None = None) -> Any:
    """The value in a result file. Unpickles: only for files of one's own jobs, in one's own kernel.

    `source` gives the job's program, for classes that are defined only there.
    """
    try:
        return _load(data, pickle)
    except (AttributeError, TypeError, ValueError, KeyError):  # a class that is not here; Keras says it in other ways
        if source is None or data[:1] not in (_PICKLE, _TORCH):
            raise
        return _load(data, *_with_definitions(source()))


def _load(data: bytes, pickling: Any, defined: Mapping[str, Any] = MappingProxyType({})) -> Any:
    kind, body = data[:1], io.BytesIO(data[1:])
    with _own_classes(defined):
        if kind == _TORCH:
            import torch

            return torch.load(body, map_location="cpu", weights_only=False, pickle_module=pickling)
        if kind == _PICKLE:
            return pickling.Unpickler(body).load()
    raise ValueError("this is no result file of a job")


def _with_definitions(source: str) -> tuple[ModuleType, Mapping[str, Any]]:
    """`pickle`, finding the classes of `__main__` in a program too; and all of the program's classes, for Keras."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            return definitions.find(source, name) if module == "__main__" else super().find_class(module, name)

    return _like_pickle(Unpickler=Unpickler), definitions.classes(source) if "keras" in sys.modules else {}


def _own_classes(defined: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Keras looks the classes of a model up by name alone: those of the notebook are shown to it."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "saving"):
        return nullcontext()
    own = {name: one for name, one in vars(sys.modules["__main__"]).items() if isinstance(one, type | FunctionType)}
    return keras.saving.custom_object_scope({**defined, **own})  # type: ignore[no-any-return]
