"""Pickling of objects whose own pickling omits state or refuses: for results, pushed objects and checkpoints.

Every pickler of these files uses the same reductions. A file that stores an object otherwise than the search for shared
objects reads it would separate an optimiser from its model.
"""

from __future__ import annotations

import types
from typing import Any, Final

from jupyter_dlaas.objects import keras_objects, shared_state_objects, torch_optimizers, torch_parametrizations
from jupyter_dlaas.transfer import code_by_value, fitted_models, torch_hooks

__all__ = ["reduce_state"]

_KINDS: Final = (
    torch_optimizers,
    torch_parametrizations,
    keras_objects,
    fitted_models,
    shared_state_objects,
    torch_hooks,
)


def reduce_state(value: Any) -> Any:
    """Return the reduction of an object with all its state; NotImplemented if its own pickling keeps everything."""
    if type(value) is types.CellType:
        return code_by_value.reduce_cell(value)
    for kind in _KINDS:
        reduced = kind.reduce_state(value)
        if reduced is not NotImplemented:
            return reduced
    return NotImplemented
