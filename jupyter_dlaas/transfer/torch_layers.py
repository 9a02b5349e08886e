"""Layers of torch modules whose forward pass in training mode changes a state, found without calling the module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from jupyter_dlaas.transfer.object_traversal import is_a, title

__all__ = ["has_cudnn_dropout", "has_running_statistics"]

CUDNN_DEVICES: Final = frozenset({"cuda"})
_PARTS_MAX: Final = 2000  # modules inside a module to search


def has_running_statistics(value: object) -> bool:
    """Return whether a torch module holds layers whose forward pass in training mode updates statistics."""
    return any(
        is_a(own.get("_buffers"), dict) and own["_buffers"].get("running_mean") is not None for own in _parts(value)
    )


def has_cudnn_dropout(value: object) -> bool:
    """Return whether a torch module holds recurrent layers on a GPU with dropout between them."""
    return any(
        own.get("num_layers", 1) > 1
        and own.get("dropout", 0) > 0
        and is_a(own.get("_parameters"), dict)
        and any(one is not None and one.device.type in CUDNN_DEVICES for one in own["_parameters"].values())
        for own in _parts(value, "torch.nn.modules.rnn")
    )


def _parts(value: object, of: str = "") -> Iterator[dict[str, Any]]:
    """Yield the fields of a torch module and of the modules inside; `of`: only of classes from this module."""
    torch: Any = sys.modules.get("torch")
    module: Any = getattr(getattr(torch, "nn", None), "Module", None)
    if module is None or not is_a(value, module):
        return
    found = [value]  # read without calls: the user's classes may define attribute access
    for part in islice(found, _PARTS_MAX):
        own = object.__getattribute__(part, "__dict__")
        if not of or any(title(kind)[0] == of for kind in type(part).__mro__):
            yield own
        parts = own.get("_modules")
        if is_a(parts, dict):
            found.extend(one for one in dict.values(parts) if is_a(one, module))
