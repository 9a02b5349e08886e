"""PyTorch modules with parametrized tensors (`weight_norm`, `spectral_norm`, `orthogonal`): their class and pickling.

torch gives each such module a class of its own, made at run time, which refuses to be pickled.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from jupyter_dlaas import stored

__all__ = ["class_of", "rebuild", "rebuild_class", "reduce_state"]


def class_of(value: Any) -> type:
    """Return the class of an object; of a parametrized module, the class that it had before."""
    parametrize = _parametrize_of(value)
    found: type = type(value) if parametrize is None else parametrize.type_before_parametrizations(value)
    return found


def reduce_state(value: Any) -> Any:
    """Return the reduction of a parametrized module with all its state, or of its class; else NotImplemented.

    A class with its own `__reduce__` is left alone, and so is one with other state than a dictionary.
    """
    if isinstance(value, type):
        return _reduce_class(value)
    if _parametrize_of(value) is None:
        return NotImplemented
    kind: Any = class_of(value)
    usual = {"__reduce__": object.__reduce__, "__reduce_ex__": object.__reduce_ex__}
    if any(getattr(kind, name) is not method for name, method in usual.items()):
        return NotImplemented
    state = kind.__getstate__(value) if hasattr(kind, "__getstate__") else vars(value)
    if not isinstance(state, dict):
        return NotImplemented
    return stored.parametrized_module, (kind, tuple(value.parametrizations)), state


def _reduce_class(kind: type) -> Any:
    if kind.__module__ != "torch.nn.utils.parametrize" or not kind.__name__.startswith("Parametrized"):
        return NotImplemented
    names = tuple(name for name, one in vars(kind).items() if isinstance(one, property))
    return stored.parametrized_class, (kind.__base__, names)


def rebuild_class(kind: Any, names: tuple[str, ...]) -> type:
    """Create the class of modules of this class whose tensors of these names are parametrized."""
    return type(rebuild(kind, names))


def rebuild(kind: Any, names: tuple[str, ...]) -> Any:
    """Create a module of this class whose tensors of these names are parametrized. Its state is loaded afterwards."""
    torch: Any = importlib.import_module("torch")
    parametrize: Any = importlib.import_module("torch.nn.utils.parametrize")
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    for name in names:
        module._parameters[name] = torch.nn.Parameter(torch.empty(0, device="cpu"))
        parametrize.register_parametrization(module, name, torch.nn.Identity(), unsafe=True)
    return module


def _parametrize_of(value: Any) -> Any:
    """Return torch's module of parametrizations if the value is a parametrized module, else None."""
    torch: Any = sys.modules.get("torch")
    parametrize: Any = sys.modules.get("torch.nn.utils.parametrize")
    if parametrize is None or not isinstance(value, torch.nn.Module) or not parametrize.is_parametrized(value):
        return None
    return parametrize
