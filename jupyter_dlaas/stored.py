"""Names and headers of stored files, so that files of any release load after modules have moved.

A pickle names the functions and classes that rebuild its objects. Checkpoints, results and pushed objects name only
public functions of this module, which never moves. Files of earlier releases name private modules, and `FORMER` maps
these names to the objects' present places. When a module moves, change only the right-hand sides of `LOADERS` and
`FORMER`.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import IO, Any, Final

from jupyter_dlaas.wire.codec import DlaasError

__all__ = [
    "FORMER",
    "LOADERS",
    "FormatTooNew",
    "Header",
    "Unpickler",
    "array_of",
    "cell",
    "changes",
    "code",
    "exact_batch",
    "fill_cell",
    "fill_function",
    "fill_hooks",
    "fill_shared_state",
    "fitted_model",
    "function",
    "keras_object",
    "keras_part",
    "like_pickle",
    "memory",
    "method",
    "new_object",
    "parametrized_class",
    "parametrized_module",
    "read_header",
    "shared_state_object",
    "skipped",
    "to_header",
    "too_new",
    "typed_memory",
]

LOADERS: Final[Mapping[str, tuple[str, str]]] = {
    "array_of": ("jupyter_dlaas.transfer.shared_arrays", "array_of"),
    "cell": ("jupyter_dlaas.transfer.code_by_value", "make_cell"),
    "changes": ("jupyter_dlaas.objects.object_items", "Changes"),
    "code": ("jupyter_dlaas.transfer.code_by_value", "load_code"),
    "exact_batch": ("jupyter_dlaas.learner.exact.exact_step", "Parts"),
    "fill_cell": ("jupyter_dlaas.transfer.code_by_value", "fill_cell"),
    "fill_function": ("jupyter_dlaas.transfer.code_by_value", "fill"),
    "fill_hooks": ("jupyter_dlaas.transfer.torch_hooks", "fill"),
    "fill_shared_state": ("jupyter_dlaas.objects.shared_state_objects", "fill"),
    "fitted_model": ("jupyter_dlaas.transfer.fitted_models", "load"),
    "function": ("jupyter_dlaas.transfer.code_by_value", "make"),
    "keras_object": ("jupyter_dlaas.objects.keras_objects", "recreate"),
    "keras_part": ("jupyter_dlaas.transfer.fitted_models", "part"),
    "memory": ("jupyter_dlaas.learner.checkpoint.graph_pickler", "make_memory"),
    "method": ("types", "MethodType"),
    "new_object": ("jupyter_dlaas.objects.object_kinds", "new_object"),
    "parametrized_class": ("jupyter_dlaas.objects.torch_parametrizations", "rebuild_class"),
    "parametrized_module": ("jupyter_dlaas.objects.torch_parametrizations", "rebuild"),
    "shared_state_object": ("jupyter_dlaas.objects.shared_state_objects", "rebuild"),
    "skipped": ("jupyter_dlaas.objects.object_items", "Skipped"),
    "typed_memory": ("jupyter_dlaas.learner.checkpoint.graph_pickler", "make_typed_memory"),
}
"""Implementation of each public function of this module: (module, attribute)."""
FORMER: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("jupyter_dlaas.learner.exact", "Parts"): LOADERS["exact_batch"],
    ("jupyter_dlaas.learner.keras_objects", "made_again"): LOADERS["keras_object"],
    ("jupyter_dlaas.learner.object_graph", "_Storage"): ("jupyter_dlaas.learner.checkpoint.graph_pickler", "Memory"),
    ("jupyter_dlaas.learner.object_graph", "_typed"): LOADERS["typed_memory"],
    ("jupyter_dlaas.learner.object_kinds", "Changes"): LOADERS["changes"],
    ("jupyter_dlaas.learner.object_kinds", "Skipped"): LOADERS["skipped"],
    ("jupyter_dlaas.learner.position", "Position"): ("jupyter_dlaas.learner.data.position", "Position"),
    ("jupyter_dlaas.notebook.byvalue", "_fill"): LOADERS["fill_function"],
    ("jupyter_dlaas.notebook.byvalue", "_make"): LOADERS["function"],
}
"""Names in files written by 0.1.0a1, mapped to the present objects. The left-hand sides never change."""


class FormatTooNew(DlaasError):
    """File that a newer release wrote."""

    code = "format_too_new"


# -- names in pickles


class Unpickler(pickle.Unpickler):
    """Unpickler that also resolves the names of earlier releases."""

    def find_class(self, module: str, name: str, /) -> Any:
        return super().find_class(*FORMER.get((module, name), (module, name)))


def like_pickle(**changed: Any) -> ModuleType:
    """Return a module like `pickle` with other classes in it, in the form that `torch.save` and `torch.load` accept."""
    found = ModuleType("pickle")
    usual = {name: value for name, value in vars(pickle).items() if not name.startswith("__")}
    found.__dict__.update(usual | {"Unpickler": Unpickler} | changed)
    return found


def function(*arguments: Any) -> Any:
    """Create a function that is stored by value, without its closure and defaults."""
    return _load("function", arguments)


def code(*arguments: Any) -> Any:
    """Load the code of a function."""
    return _load("code", arguments)


def fill_function(*arguments: Any) -> Any:
    """Set the closure and defaults of a function that is stored by value."""
    return _load("fill_function", arguments)


def cell(*arguments: Any) -> Any:
    """Create an empty variable of a closure."""
    return _load("cell", arguments)


def fill_cell(*arguments: Any) -> Any:
    """Bind a variable of a closure."""
    return _load("fill_cell", arguments)


def keras_object(*arguments: Any) -> Any:
    """Create an optimiser or a metric of Keras."""
    return _load("keras_object", arguments)


def fitted_model(*arguments: Any) -> Any:
    """Create a fitted model of Keras."""
    return _load("fitted_model", arguments)


def keras_part(*arguments: Any) -> Any:
    """Find a layer in a loaded Keras model."""
    return _load("keras_part", arguments)


def array_of(*arguments: Any) -> Any:
    """Create an array over the memory of a tensor."""
    return _load("array_of", arguments)


def changes(*arguments: Any) -> Any:
    """Create the record of an object's changed items."""
    return _load("changes", arguments)


def skipped(*arguments: Any) -> Any:
    """Create the placeholder for an item that could not be stored."""
    return _load("skipped", arguments)


def memory(*arguments: Any) -> Any:
    """Create the memory that tensors share."""
    return _load("memory", arguments)


def method(*arguments: Any) -> Any:
    """Bind a function to an object."""
    return _load("method", arguments)


def new_object(*arguments: Any) -> Any:
    """Create an object without calling its `__init__`."""
    return _load("new_object", arguments)


def parametrized_class(*arguments: Any) -> Any:
    """Create the class of torch modules with parametrized tensors."""
    return _load("parametrized_class", arguments)


def parametrized_module(*arguments: Any) -> Any:
    """Create a torch module with parametrized tensors, without its state."""
    return _load("parametrized_module", arguments)


def shared_state_object(*arguments: Any) -> Any:
    """Create an object that shares its `__dict__` with all objects of its class."""
    return _load("shared_state_object", arguments)


def fill_hooks(*arguments: Any) -> Any:
    """Set the hooks of a tensor."""
    return _load("fill_hooks", arguments)


def fill_shared_state(*arguments: Any) -> Any:
    """Set the state that all objects of a class share, unless it is set."""
    return _load("fill_shared_state", arguments)


def typed_memory(*arguments: Any) -> Any:
    """Create torch's view of memory for one dtype."""
    return _load("typed_memory", arguments)


def exact_batch(*arguments: Any) -> Any:
    """Create a batch of exact mode."""
    return _load("exact_batch", arguments)


def _load(name: str, arguments: tuple[Any, ...]) -> Any:
    module, attribute = LOADERS[name]
    return getattr(importlib.import_module(module), attribute)(*arguments)


# -- headers of files

_KIND: Final = "jupyter_dlaas"
_BEGIN: Final = b'{"jupyter_dlaas": '
_HEADER_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """Header line of a stored file, and the offset of its content."""

    format: int
    content_at: int
    fields: Mapping[str, Any] = field(default_factory=dict)


def to_header(kind: str, number: int, **fields: Any) -> bytes:
    """Return the header line of a file with its kind and format."""
    return json.dumps({_KIND: kind, "format": number, **fields}).encode() + b"\n"


def read_header(file: IO[bytes] | bytes, known: int, *, what: str) -> Header | None:
    """Read the header line of a file. Return None for a file of an earlier release, which has none.

    `what` names the file in error messages. Raise FormatTooNew, or ValueError for a damaged line.
    """
    source = io.BytesIO(file) if isinstance(file, bytes) else file
    begin = source.tell()
    line = source.readline(_HEADER_BYTES_MAX)
    if not line.startswith(_BEGIN):
        source.seek(begin)
        return None
    fields: dict[str, Any] = json.loads(line)
    number = fields.get("format")
    if not isinstance(number, int):
        raise ValueError(f"{what} has no format")
    if number > known:
        raise FormatTooNew(too_new(what, number, known))
    return Header(number, begin + len(line), fields)


def too_new(what: str, number: int, known: int) -> str:
    """Return the error message for a file that a newer release wrote, with the remedy."""
    return (
        f"{what} has format {number}, and this jupyter_dlaas reads formats up to {known}: a newer release wrote it. "
        "Update with `pip install --upgrade jupyter_dlaas`"
    )
