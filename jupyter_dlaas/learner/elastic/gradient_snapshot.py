"""Snapshots of what a step accumulates outside optimisers, in case the step is repeated.

These are gradients that are accumulated over several steps, and the running statistics of BatchNorm. Imported only in a
gang whose program uses torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase as _Norm

from jupyter_dlaas.learner.elastic.gradient_averaging import registrations

__all__ = ["Accumulated"]


class Accumulated:
    """Gradients and statistics at the last boundary, as far as the next steps add to them."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._models = list(models)
        self._list()
        self._counted: list[torch.Tensor] = []
        self.is_open = False
        """True while no optimiser has stepped since: the gradients are still being accumulated."""
        self._kept: list[torch.Tensor | bool] = []
        """Per parameter, whether it had a gradient; while gradients are accumulated, the gradient itself."""

    def _list(self) -> None:
        self._registrations = registrations()
        self._parameters = [one for model in self._models for one in model.parameters()]
        norms = (one for model in self._models for one in model.modules() if isinstance(one, _Norm))
        self._statistics = [one for norm in norms for one in norm.buffers(recurse=False)]

    def keep(self, *, may_lose: bool) -> None:
        """Take a snapshot at a boundary, if a learner may be lost in the next step (`may_lose`)."""
        if self._registrations != registrations():
            self._list()
        is_open = self.is_open
        self._kept, self._counted = [], []
        if may_lose:
            self._counted = [one.clone() for one in self._statistics]
            # Gradients that the user's code is about to clear are not copied: the next ones reuse their memory.
            self._kept = [p.grad is not None and (not is_open or p.grad.clone()) for p in self._parameters]

    def undo(self) -> None:
        """Undo what a failed step has added."""
        with torch.no_grad():
            for one, counted in zip(self._statistics, self._counted, strict=False):
                one.copy_(counted)
        for parameter, kept in zip(self._parameters, self._kept, strict=False):
            if kept is False:
                parameter.grad = None
            elif isinstance(kept, torch.Tensor):
                parameter.grad = kept.clone()
            elif parameter.grad is not None:
                # The gradient was either zero, or the user's code is about to clear it as in the other steps.
                parameter.grad.zero_()

    def snapshot(self) -> list[Any] | None:
        """Return accumulated gradients, for checkpoints and joining learners; None if there are none."""
        if not self.is_open or all(p.grad is None for p in self._parameters):
            return None
        return [None if p.grad is None else p.grad.detach() for p in self._parameters]

    def put_back(self, found: Sequence[Any] | None) -> None:
        """Continue from a snapshot."""
        self.is_open = found is not None
        for number, parameter in enumerate(self._parameters):
            parameter.grad = None if found is None or found[number] is None else found[number].to(parameter.device)
