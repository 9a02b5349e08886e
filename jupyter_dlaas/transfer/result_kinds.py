"""Kinds of values in results: what has a state that can be loaded, and what is a value that a field takes over."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import pathlib
import re
import sys
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

from jupyter_dlaas.objects import code_versions, keras_objects
from jupyter_dlaas.objects.object_kinds import FIELDS, has_plain_fields
from jupyter_dlaas.objects.object_values import is_infrastructure
from jupyter_dlaas.objects.random_generators import generator_of
from jupyter_dlaas.transfer import code_by_value
from jupyter_dlaas.transfer.plain_values import is_plain
from jupyter_dlaas.transfer.torch_hooks import is_same_function

__all__ = [
    "ATOMS",
    "DEPTH_MAX",
    "FILLED",
    "device_of",
    "has_state",
    "is_estimator",
    "is_keras",
    "is_keras_part",
    "is_named_function",
    "is_own_function",
    "is_own_object",
    "is_scheduler",
    "is_table",
    "is_taken_over",
    "is_tensor",
    "is_torch",
    "is_trainable",
    "is_users",
    "moved",
    "own_fields",
]

FILLED: Final = (list, dict, set, deque, bytearray, defaultdict, OrderedDict, Counter)
DEPTH_MAX: Final = 8
"""Depth to which other objects are searched for models."""
ATOMS: Final = (
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    decimal.Decimal,
    enum.Enum,
    fractions.Fraction,
    pathlib.PurePath,
    range,
    re.Pattern,
    slice,
    type,
    uuid.UUID,
    BuiltinFunctionType,
)
"""Kinds of values that never change."""


def is_taken_over(new: Any, old: Any, known: Collection[int], *, is_made: bool = False) -> bool:
    """Return whether a field takes over the job's value.

    A function with the same code stays, and an object of a library (a loader, a tokenizer) in the place of one of the
    same class: others may refer to it. `known`: identities of the job's objects that have a counterpart here.
    `is_made`: the training cell is known to have created the value, so that it replaces that of the notebook.
    """
    if id(new) in known:
        return True
    is_stateless = type(new) is FunctionType and not new.__closure__
    if is_infrastructure(new) or (is_stateless and is_same_function(old, new)):
        return False
    return _is_value(new, known) or ((is_made or type(old) is not type(new)) and not is_keras_part(new))


def _is_value(value: Any, known: Collection[int], depth: int = 0, *, in_library: bool = False) -> bool:
    """Return whether a value consists of values, containers, functions, objects of user classes, and new models.

    `in_library`: the value is a part of an object of a library, in which functions are none (loaders, transforms).
    """
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    atoms = (*ATOMS, numpy.ndarray, numpy.generic) if numpy is not None else ATOMS
    if torch is not None:
        atoms = (*atoms, torch.Tensor, torch.dtype, torch.device, torch.Size)
    if is_plain(value) or isinstance(value, atoms) or generator_of(value) is not None or is_table(value):
        return True
    if id(value) in known:
        return True
    if depth == DEPTH_MAX or is_infrastructure(value):
        return False
    parts: Any
    if type(value) in (*FILLED, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
    elif has_state(value) or is_scheduler(value):
        return not is_keras_part(value)  # a new one: one in the place of another has a counterpart
    elif type(value) is FunctionType:
        return not in_library and (is_named_function(value) or is_own_function(value))
    elif isinstance(value, MethodType | partial):
        parts = (value.__self__,) if isinstance(value, MethodType) else (value.func, *value.args, value.keywords)
        if in_library:
            return False
    elif is_own_object(value):
        in_library = not is_users(type(value))
        parts = FIELDS.items(value).values()
    else:
        return False
    return all(_is_value(part, known, depth + 1, in_library=in_library) for part in parts)


def own_fields(module: Any) -> dict[str, Any]:
    """State that a torch module keeps beside its parameters, buffers, submodules and hooks."""
    internal = _internal_fields()
    return {key: one for key, one in vars(module).items() if key not in internal}


@cache
def _internal_fields() -> frozenset[str]:
    return frozenset(vars(sys.modules["torch"].nn.Module())) - {"training"}


def device_of(value: Any, depth: int = 0) -> Any:
    """Return the device of the first tensor in an existing field, or None."""
    if is_tensor(value):
        return value.device
    if depth == DEPTH_MAX or not isinstance(value, list | tuple | dict):
        return None
    parts = value.values() if isinstance(value, dict) else value
    return next((device for part in parts if (device := device_of(part, depth + 1)) is not None), None)


def moved(value: Any, device: Any) -> Any:
    """Move the tensors of a field to the device used here; results arrive on the CPU."""
    if device is None or device.type == "cpu":
        return value
    if is_tensor(value):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)(moved(one, device) for one in value)
    return {key: moved(one, device) for key, one in value.items()} if type(value) is dict else value


def is_own_object(value: object) -> bool:
    """Return whether an object keeps everything in its own fields, so that it can take over those of another one."""
    kind: Any = type(value)
    is_own = has_plain_fields(kind) and not isinstance(value, type) and not is_infrastructure(value)
    return is_estimator(value) or (is_own and not has_state(value) and not is_keras_part(value))


def is_estimator(value: object) -> bool:
    """Return whether a value is an estimator of scikit-learn."""
    base = getattr(sys.modules.get("sklearn.base"), "BaseEstimator", None)
    return base is not None and isinstance(value, base)


def is_named_function(value: object) -> bool:
    """Return whether a value is a function that is stored by its name: it is the notebook's own, not a loaded one."""
    return type(value) is FunctionType and code_by_value.is_found(value)


def is_own_function(function: FunctionType) -> bool:
    """Return whether a function is the user's and was stored by value. Closures of libraries hold unpaired parts."""
    return is_users(function) and not code_by_value.is_found(function)


def is_users(definition: type | FunctionType) -> bool:
    """Return whether a class or function is defined in the notebook or in a module of the user."""
    name = definition.__module__
    return name == "__main__" or code_versions.is_own_module(sys.modules.get(name))


def is_table(value: Any) -> bool:
    """Return whether a value is a table or a column of pandas."""
    pandas: Any = sys.modules.get("pandas")
    kinds = [getattr(pandas, name, None) for name in ("DataFrame", "Series")]
    return type(value) in kinds and hasattr(value, "_update_inplace")


def is_torch(value: Any, part: str, name: str) -> bool:
    module = sys.modules.get(f"torch.{part}")
    kind = getattr(module, name, None)
    return kind is not None and isinstance(value, kind)


def is_tensor(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_trainable(value: Any) -> bool:
    return is_tensor(value) and bool(value.is_leaf and value.requires_grad)


def is_scheduler(value: Any) -> bool:
    module: Any = sys.modules.get("torch.optim.lr_scheduler")
    kinds = (module.LRScheduler, module.ReduceLROnPlateau) if module is not None else ()
    return isinstance(value, kinds) and hasattr(value, "optimizer")


def is_keras(value: Any) -> bool:
    return keras_objects.is_model(value)


def has_state(value: Any) -> bool:
    """Return whether a value is a model or an optimiser."""
    if is_torch(value, "nn", "Module") or is_torch(value, "optim", "Optimizer"):
        return True
    return is_keras(value) or (keras_objects.is_stateful(value) and hasattr(value, "apply_gradients"))


def is_keras_part(value: object) -> bool:
    """Return whether a value is a part of Keras, such as a layer, a metric or a callback, or of a derived class."""
    is_library = type(value).__module__.partition(".")[0] in ("keras", "tensorflow")
    return is_library or keras_objects.is_stateful(value) or keras_objects.is_layer(value)
