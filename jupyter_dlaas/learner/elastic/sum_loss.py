"""Losses that are sums over samples: their gradients are summed over the learners, not averaged.

`run.prepare(model, opt, loss="sum")` declares such a loss. If it is not declared, the autograd graphs of the first
losses are inspected for a final sum or mean.

Imported by `preparation` only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from jupyter_dlaas.learner.elastic.data_parallel import Gang

__all__ = ["Kind", "add_up", "kind_of", "look"]

_LOOKS: Final = 3
_NODES_MAX: Final = 200
_SUM: Final = 2
"""The number of `reduction="sum"` in torch."""
_THROUGH: Final = ("Add", "Sub", "Neg", "Mul", "Div", "ToCopy", "View", "Squeeze", "Reshape", "Clone")
"""Operations that keep a sum a sum."""
_LAYERS: Final = re.compile(r"mm|mv|conv|embedding|dot|attention|rnn|linear", re.IGNORECASE)
_untyped: Final[Any] = torch.autograd


class Kind(StrEnum):
    """The way in which a loss combines the samples of a batch."""

    SUM = "sum"
    MEAN = "mean"
    MIXED = "mixed"
    """A sum plus a mean: neither the sum nor the average over learners equals the result of one learner."""
    UNKNOWN = "unknown"


def kind_of(loss: torch.Tensor, samples: int, total: int) -> Kind:
    """Return how a loss combines samples, from its autograd graph.

    `samples`: this learner's number; a sum divided by it or a multiple of it is a mean. `total`: that of all learners;
    a sum divided by it is still a sum.
    """
    sums, is_mean, waiting = [], False, [loss.grad_fn]
    for _ in range(_NODES_MAX):
        if not waiting:
            break
        node = waiting.pop()
        if node is None:
            continue
        name = node.name()
        reduction = getattr(node, "_saved_reduction", None)
        if reduction == _SUM or name == "SumBackward0":
            sums.append(node)
        elif reduction is not None or name.startswith("Mean") or _divides(node, name, samples, total):
            is_mean = True
        elif name.startswith(_THROUGH):
            waiting += [one for one, _ in node.next_functions]
    if not sums:
        return Kind.MEAN if is_mean else Kind.UNKNOWN
    if not is_mean:
        return Kind.SUM
    return Kind.MIXED if any(map(_depends_on_samples, sums)) else Kind.MEAN


def _divides(node: Any, name: str, samples: int, total: int) -> bool:
    if not name.startswith(("Div", "Mul")):
        return False
    for attribute in ("_saved_other", "_saved_self"):
        value = getattr(node, attribute, None)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.requires_grad and samples > 1:
            number = float(value)
            number = number if name.startswith("Div") or not number else 1 / number
            parts = number / samples
            if parts >= 1 and abs(parts - round(parts)) < 1e-4 and abs(number - total) > 1e-3 * (total != samples):
                return True
    return False


def _depends_on_samples(node: Any) -> bool:
    """Return whether a model's layers are behind this sum; otherwise it is a regulariser over weights."""
    seen, waiting = {node}, [node]
    while waiting and len(seen) < _NODES_MAX:
        node = waiting.pop()
        if _LAYERS.search(node.name()):
            return True
        fresh = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= fresh
        waiting += fresh
    return bool(waiting)


def look(samples: Callable[[], tuple[int, int] | None], found: Callable[[Kind], None]) -> None:
    """Inspect the first losses that go backward, and call `found` once for one that is a sum or mixed.

    `samples`: returns the samples of this learner and of all learners in the current step; None outside a step.
    """
    plain, looks = torch.autograd.backward, [0]

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        loss = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        counts = samples() if looks[0] < _LOOKS else None
        if counts is not None and counts[0] and isinstance(loss, torch.Tensor) and loss.numel() == 1:
            looks[0] += 1
            kind = kind_of(loss, *counts)
            if kind in (Kind.SUM, Kind.MIXED):
                looks[0] = _LOOKS
                found(kind)
            if looks[0] == _LOOKS and torch.autograd.backward is backward:
                _untyped.backward = plain
        plain(tensors, *args, **kwargs)

    _untyped.backward = backward


def add_up(gang: Gang) -> None:
    """Sum gradients over learners from now on: divide each by the weight that averaging multiplies it by."""
    plain = torch.autograd.backward

    @functools.wraps(plain)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        if not gang.is_alone and gang.weight:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            given = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) or grad_tensors is None else grad_tensors
            given = list(given) if len(given) == len(roots) else [None] * len(roots)
            grad_tensors = [
                (torch.ones_like(root) if one is None else one) / gang.weight
                for root, one in zip(roots, given, strict=True)
            ]
            tensors = roots
        plain(tensors, grad_tensors, *args, **kwargs)

    _untyped.backward = backward
