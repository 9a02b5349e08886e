"""The state sent from one learner to another, with large tensors separated and sent directly from memory.

Serialising 200 MB with checksums and reading it again takes longer than sending it. The rest is pickled without the
archive of `torch.save`, which for a small model takes longer than everything else in it.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from jupyter_dlaas.learner.checkpoint.graph_pickler import Memory, reduce_memory

__all__ = ["allocated_for", "put_together", "take_apart", "to_bytes"]

_LEAST: Final = 1 << 18
"""The minimum size in bytes of a tensor that is sent by itself."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The placeholder of the `number`-th large tensor."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def to_bytes(state: dict[str, Any]) -> bytes:
    """Serialise a state for `checkpoint_files.from_bytes`. Tensors that share memory share it afterwards."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(state)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self._memories: dict[tuple[str, int], Memory] = {}

    def reducer_override(self, value: Any) -> Any:
        return reduce_memory(value, self._memories)


def take_apart(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return the state with placeholders, and the large tensors: on the CPU, contiguous, sharing memory if possible.

    Only dicts, lists and tuples are searched, which is what state_dicts consist of. `state` is not changed.
    """
    found: list[torch.Tensor] = []

    def gap(one: Any) -> Any:
        if type(one) not in (torch.Tensor, torch.nn.Parameter) or one.layout != torch.strided or _is_small(one):
            return one
        found.append(one.detach().cpu().contiguous())
        return Gap(len(found) - 1, tuple(one.shape), one.dtype)

    return _mapped(state, gap), found


def allocated_for(state: Any) -> list[torch.Tensor]:
    """Allocate tensors for the placeholders, in their order."""
    gaps: list[Gap] = []
    _mapped(state, lambda one: gaps.append(one) if isinstance(one, Gap) else one)
    return [torch.empty(one.shape, dtype=one.dtype, device="cpu") for one in sorted(gaps, key=lambda one: one.number)]


def put_together(state: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the state with tensors in place of the placeholders."""
    return _mapped(state, lambda one: tensors[one.number] if isinstance(one, Gap) else one)


def _is_small(one: torch.Tensor) -> bool:
    return one.numel() * one.element_size() < _LEAST


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        made = copy.copy(value)  # a state_dict has attributes, too
        for key, one in value.items():
            made[key] = _mapped(one, change)
        return made
    if type(value) is list:
        return [_mapped(one, change) for one in value]
    if type(value) is tuple:
        return tuple(_mapped(one, change) for one in value)
    return change(value)
