"""Snapshots of what a step accumulates outside optimisers, for repeated steps, checkpoints and joining learners.

These are gradients that later steps add to, and the running statistics of BatchNorm. Imported only in a program that
uses torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn.modules.batchnorm import _NormBase as _Norm
from torch.utils.hooks import unserializable_hook

from jupyter_dlaas.learner.checkpoint import parameter_state
from jupyter_dlaas.learner.elastic.gradient_averaging import registrations

__all__ = ["Accumulated", "ShardedGradients", "UnpreparedGradients"]

_CLEARED_MIN: Final = 3
"""The number of observations after which a program is expected to clear its gradients as before."""


class _Group:
    """The parameters of one optimiser, whose gradients the program clears together.

    Between two steps a gradient is needed unless its optimiser has used it and the next step begins by clearing it.
    What the next step will do is known from former steps only, so a gradient is kept in case of doubt.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], step: Callable[[], int]) -> None:
        self.is_used = False
        """True if the optimiser has stepped since the last step with a backward pass began."""
        self._cleared = 0
        """Number of times that the gradient was cleared after its use; below zero once it was not."""
        self._step = step
        self._last = -1
        trained = [one for one in parameters if one.requires_grad and one.is_leaf]
        if trained:
            self._watch(trained[0])

    def _watch(self, parameter: torch.Tensor) -> None:
        @unserializable_hook  # type: ignore[untyped-decorator]
        def before(_: torch.Tensor) -> None:
            if self._step() == self._last:
                return
            self._last = self._step()
            if self.is_used:
                is_cleared = parameter.grad is None and self._cleared >= 0
                self._cleared = self._cleared + 1 if is_cleared else -1
            self.is_used = False

        parameter.register_hook(before)

    @property
    def is_needed(self) -> bool:
        """True if the next step may add to these gradients."""
        return not (self.is_used and self._cleared >= _CLEARED_MIN)


class Accumulated:
    """Gradients and statistics at the last boundary, as far as the next steps add to them."""

    def __init__(self, objects: Sequence[tuple[str, Any]], step: Callable[[], int]) -> None:
        """`objects`: models and optimisers by name; more may be added. `step`: the number of the current step."""
        self._objects, self._step = objects, step
        self._groups: dict[int, _Group] = {}
        """By the id of an optimiser; 0: parameters of no optimiser."""
        self._list()
        self._counted: list[torch.Tensor] = []
        self._kept: list[torch.Tensor | bool] = []
        """Per parameter, whether it had a gradient; the gradient itself if the next step may add to it."""

    def _list(self) -> None:
        self._listed = registrations(), len(self._objects)
        models = [one for _, one in self._objects if isinstance(one, torch.nn.Module)]
        loose = parameter_state.loose(self._objects)
        self._parameters = [part for one in models for part in one.parameters()]
        self._parameters += [part for parts in loose.values() for part in parts]
        norms = (one for model in models for one in model.modules() if isinstance(one, _Norm))
        self._statistics = [one for norm in norms for one in norm.buffers(recurse=False)]
        owner: dict[int, int] = {}
        for _, one in self._objects:
            if isinstance(one, torch.optim.Optimizer):
                trained = [part for group in one.param_groups for part in group["params"]]
                owner = {id(part): id(one) for part in trained} | owner
                if id(one) not in self._groups:
                    self._groups[id(one)] = found = _Group(trained, self._step)
                    one.register_step_post_hook(_uses(found))
        self._groups.setdefault(0, _Group([], self._step))
        self._group_of = [self._groups[owner.get(id(part), 0)] for part in self._parameters]

    def keep(self, *, may_lose: bool) -> None:
        """Take a snapshot at a boundary, if a learner may be lost in the next step (`may_lose`)."""
        if self._listed != (registrations(), len(self._objects)):
            self._list()
        self._kept, self._counted = [], []
        if may_lose:
            self._counted = [one.clone() for one in self._statistics]
            # Gradients that the user's code is about to clear are not copied: the next ones reuse their memory.
            self._kept = [
                p.grad is not None and (not group.is_needed or p.grad.clone())
                for p, group in zip(self._parameters, self._group_of, strict=True)
            ]

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
                parameter.grad.zero_()  # the user's code is about to clear it as in the other steps

    def snapshot(self) -> list[Any] | None:
        """Return the gradients that the next steps may add to; None if there are none."""
        self._list()
        found = [
            p.grad.detach() if p.grad is not None and group.is_needed else None
            for p, group in zip(self._parameters, self._group_of, strict=True)
        ]
        return found if any(one is not None for one in found) else None

    def put_back(self, found: Sequence[Any] | None) -> None:
        """Continue from a snapshot."""
        self._list()
        for number, parameter in enumerate(self._parameters):
            kept = found[number] if found is not None and number < len(found) else None
            parameter.grad = None if kept is None else kept.to(parameter.device).clone()


_WHOLE: Final = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that hold a whole parameter, unlike those of sharded models."""


class UnpreparedGradients:
    """Gradients of parameters that the program trains without `run.prepare`, as far as the next steps add to them."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], optimizers: Iterable[Any], step: Callable[[], int]
    ) -> None:
        """`parameters`: by path, none of them prepared. `step`: the number of the current step.

        Those of a sharded model are left out: they and their gradients are parts, in tensors of their own kinds.
        """
        self._parameters = {path: one for path, one in parameters.items() if type(one) in _WHOLE}
        self._group_of: dict[int, _Group] = {}
        names = {id(one) for one in self._parameters.values()}
        for optimizer in optimizers:
            trained = [part for group in optimizer.param_groups for part in group["params"] if id(part) in names]
            if trained:
                group = _Group(trained, step)
                self._group_of = {id(part): group for part in trained} | self._group_of
                optimizer.register_step_post_hook(_uses(group))

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return the gradients that the next steps may add to, by path."""
        found = {path: one.grad for path, one in self._parameters.items() if self._is_needed(one)}
        return {path: gradient.detach() for path, gradient in found.items() if gradient is not None}

    def _is_needed(self, parameter: torch.Tensor) -> bool:
        group = self._group_of.get(id(parameter))
        return group is None or group.is_needed

    def put_back(self, found: Mapping[str, torch.Tensor]) -> None:
        """Continue from a snapshot."""
        for path, parameter in self._parameters.items():
            kept = found.get(path)
            parameter.grad = None if kept is None else kept.to(parameter.device).clone()


class ShardedGradients:
    """Watch over the gradients of sharded parameters, which checkpoints do not keep."""

    def __init__(self, parameters: Iterable[torch.Tensor], optimizers: Iterable[Any]) -> None:
        self._parameters = [*parameters]
        self._has_stepped = True
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._note_step)

    def _note_step(self, *_: object) -> None:
        self._has_stepped = True

    def are_pending(self) -> bool:
        """Return whether there are gradients that no optimiser has used since the last call."""
        are_pending = not self._has_stepped and any(one.grad is not None for one in self._parameters)
        self._has_stepped = False
        return are_pending


def _uses(group: _Group) -> Callable[..., None]:
    def used(*_: object) -> None:
        group.is_used = True

    return used
