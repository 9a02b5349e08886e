"""Averaging at the end of a backward pass, for gradients that DistributedDataParallel does not average.

DDP averages during a backward pass. It requires a model that is called as a whole once per pass, with the same
trainable parameters in every pass. A program may unfreeze, add or replace parameters, call a part of a model or one of
its methods, go backward twice, or leave parameters out. From the first such pass on, that model's gradients are
averaged at the end of each pass. Averaging is idempotent, so this is also correct after a pass that DDP averaged.

Imported by `data_parallel` only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules import module as nn_module

from jupyter_dlaas.learner.elastic.collective_tag import Kind
from jupyter_dlaas.learner.elastic.shm_allreduce import Diverged

if TYPE_CHECKING:
    from jupyter_dlaas.learner.elastic.data_parallel import Gang

__all__ = ["Averager", "PassEnd", "count_registrations", "registrations"]

_engine: Final[Any] = torch.autograd.Variable._execution_engine
_task: Final[Any] = torch._C._current_graph_task_id
_registrations: Final[list[int]] = [0]


def registrations() -> int:
    """Return the number of parameters and modules registered since `count_registrations`.

    If it has changed, any model may have changed.
    """
    return _registrations[0]


def count_registrations() -> None:
    """Start to count registrations. This only costs time when a module gets a parameter or a submodule."""
    if not _registrations[1:]:
        _registrations.append(1)
        untyped: Any = nn_module
        untyped.register_module_parameter_registration_hook(_count)
        untyped.register_module_module_registration_hook(_count)


def _count(*_: object) -> None:
    _registrations[0] += 1


class PassEnd:
    """A callback at the end of each backward pass that reaches a watched parameter."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._handles: list[Any] = []
        self._in_pass = -1

    def watch(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Watch these parameters only."""
        for one in self._handles:
            one.remove()
        self._handles = [
            one.register_post_accumulate_grad_hook(self._reached) for one in parameters if one.requires_grad
        ]

    def _reached(self, _: torch.Tensor) -> None:
        number = _task()
        if number != self._in_pass:
            self._in_pass = number
            _engine.queue_callback(self._ended)


class Averager:
    """The averaging of some parameters' gradients at the end of each backward pass that reaches one of them.

    All learners must run the same number of backward passes; which parameters a pass reaches may differ. A gradient
    that no learner has stays None.
    """

    def __init__(self, gang: Gang, parameters: Sequence[torch.nn.Parameter] = ()) -> None:
        self._gang = gang
        self._end = PassEnd(self.average)
        self.parameters: list[torch.nn.Parameter] = []
        self.take(parameters)

    def take(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Average the gradients of these parameters from now on."""
        self.parameters = list(parameters)
        self._end.watch(self.parameters)

    def average(self) -> None:
        """Average now, unless this learner is alone."""
        if not self._gang.is_alone and self.parameters:
            average(self._gang, self.parameters)


@torch.no_grad()
def average(gang: Gang, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Average gradients over the gang, weighted by samples.

    A collective call, with the same parameters in all learners.
    """
    has = torch.tensor([one.grad is not None for one in parameters], dtype=torch.float32, device="cpu")
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    for one in parameters:
        kinds.setdefault((one.dtype, one.device), []).append(one)
    vectors = [_flat(members) for members in kinds.values()]
    try:
        if gang.is_stranded:
            raise RuntimeError
        if gang.diverged is not None:
            raise gang.diverged
        gang.begin(Kind.LATE_GRADIENTS)
        begun = [gang.all_reduce(has, Kind.LATE_GRADIENTS)]
        for vector in vectors:
            gang.weigh(vector)
            begun.append(gang.all_reduce(vector, Kind.LATE_GRADIENTS))
        gang.compute()
        for one_begun in begun:
            one_begun.wait()
        if gang.work is not None:
            gang.work.summed()
    except Diverged as error:
        gang.part(error)
        return
    except RuntimeError:
        if not gang.may_change:
            raise
        gang.lost()
        return
    is_there = dict(zip(map(id, parameters), has.tolist(), strict=True))
    for members, vector in zip(kinds.values(), vectors, strict=True):
        ends = [*itertools.accumulate(one.numel() for one in members)]
        for one, end in zip(members, ends, strict=True):
            if not is_there[id(one)]:
                continue
            found = vector[end - one.numel() : end].view_as(one)
            if one.grad is None or one.grad.is_sparse:
                one.grad = found.clone()
            else:
                one.grad.copy_(found)


def _flat(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    parts = []
    for one in parameters:
        gradient = one.grad if one.grad is not None else torch.zeros_like(one)
        parts.append((gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1))
    return torch.cat(parts)
