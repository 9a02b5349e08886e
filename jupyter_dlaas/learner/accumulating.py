"""Gradients that are added up over several steps: kept for the case that one of these steps is made again.

Loaded by `running` only in a gang whose program uses torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Accumulated"]


class Accumulated:
    """The gradients at the last boundary, as far as the next steps build on them."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._is_open = False
        """No optimiser has stepped since: the gradients are not complete yet."""
        self._kept: list[torch.Tensor | None] = []

    def keep(self, *, is_open: bool, may_lose: bool) -> None:
        """At a boundary. `may_lose`: there are others in the gang who may be lost."""
        self._is_open = is_open
        self._kept = []
        if may_lose:
            self._kept = [
                (p.grad.clone() if is_open else p.grad) if p.grad is not None else None for p in self._parameters
            ]

    def undo(self) -> None:
        """Take back what a step that does not count has added."""
        for parameter, kept in zip(self._parameters, self._kept, strict=False):
            if kept is None:
                parameter.grad = None
            elif self._is_open:
                parameter.grad = kept.clone()
            elif parameter.grad is not None:
                # Either zeros, or what the user's code is about to clear, as it did before the other steps.
                parameter.grad.zero_()

    def snapshot(self) -> list[Any] | None:
        """For a checkpoint, and for who joins; None where nothing is under way."""
        if not self._is_open or all(p.grad is None for p in self._parameters):
            return None
        return [None if p.grad is None else p.grad.detach() for p in self._parameters]

    def put_back(self, found: Sequence[Any] | None) -> None:
        """Go on from a snapshot."""
        self._is_open = found is not None
        for number, parameter in enumerate(self._parameters):
            parameter.grad = None if found is None or found[number] is None else found[number].to(parameter.device)
