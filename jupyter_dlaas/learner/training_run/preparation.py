"""The part of `run.prepare` for a gang: average gradients, and gate the steps of optimisers and schedulers.

Imported only in a gang or in exact mode, if the program uses torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import LRScheduler

from jupyter_dlaas.learner.checkpoint import parameter_state
from jupyter_dlaas.learner.elastic import sum_loss
from jupyter_dlaas.learner.reporting.notes import LOSS, NOT_PREPARED, report
from jupyter_dlaas.learner.training_run import divergence, independence_check, training_loop

if TYPE_CHECKING:
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["prepare"]


def prepare(run: RunState, named: Sequence[tuple[str, Any]], scheduler: Any, scaler: Any, ddp: dict[str, Any]) -> None:
    """Register these objects with the gang and the step gate of the run."""
    gang, gate = run.gang, run.gate
    for name, one in named:
        if isinstance(one, torch.nn.Module):
            if run.exact is None:
                gang.wrap(one, dict(ddp))
        elif isinstance(one, torch.optim.Optimizer):
            gate.optimizer(name, one)
            if gang is not None and run.exact is None:
                _follow_groups(run, one)
        elif one is scheduler or isinstance(one, LRScheduler):
            gate.scheduler(name, one)
        elif one is scaler or isinstance(one, torch.amp.GradScaler):
            gate.scaler(name, one)
        else:
            gate.held_by(name, one)
    if gang is not None and run.exact is None:
        _cover(run)
        if gate.check is None:
            if run.loss_is_sum:
                sum_loss.add_up(gang)
            elif not run.rank:
                sum_loss.look(lambda: _samples(run), lambda kind: _report_sum(run, kind))
            gate.check, gate.mean, gate.may_lose = gang.check_gradients, _Mean(run), lambda: training_loop.may_lose(run)
            _Others(run).watch()
            if run.context is not None:
                run.context.at_end.append(lambda: divergence.at_end(run))


def _cover(run: RunState) -> None:
    run.gang.cover([one for found in parameter_state.loose(run.objects).values() for one in found])


def _follow_groups(run: RunState, optimizer: Any) -> None:
    """Average the parameters that are added to this optimiser later, too."""
    plain = optimizer.add_param_group

    def add_param_group(group: dict[str, Any]) -> None:
        plain(group)
        _cover(run)

    optimizer.add_param_group = add_param_group


def _samples(run: RunState) -> tuple[int, int] | None:
    """Return the samples of this learner and of all learners in this step; None if it has none or all of them."""
    gang = run.gang
    if gang.is_alone or not run.is_looping or not 0.0 < gang.weight < 1.0:
        return None
    return run.share, round(run.share / gang.weight)


def _report_sum(run: RunState, kind: sum_loss.Kind) -> None:
    size = run.world_size
    if kind is sum_loss.Kind.SUM:
        said = (
            f"The loss is a sum over samples, but the gradients of {size} learners are averaged: steps are {size} "
            'times smaller than with one learner. Use run.prepare(…, loss="sum"), or divide the loss by the number of '
            "samples."
        )
    else:
        said = (
            "The loss adds a sum over samples to a mean. Averaged over learners, the sum counts less than with one "
            'learner. Divide it by the number of samples, or make all terms sums and use run.prepare(…, loss="sum").'
        )
    report(LOSS, said)


class _Mean:
    """The mean over the gang of a closure's loss, so that a line search takes the same path in all learners."""

    def __init__(self, run: RunState) -> None:
        self._run = run

    def __call__(self, loss: Any) -> Any:
        gang = self._run.gang
        is_tensor = isinstance(loss, torch.Tensor)
        if gang.is_alone or not (isinstance(loss, int | float) or (is_tensor and loss.numel() == 1)):
            return loss
        share = gang.weight if self._run.loss_is_sum and gang.weight else 1.0
        value = float(loss.detach() if is_tensor else loss)
        mean = gang.mean([value / share], gang.weight)[0]
        self._run.gate.has_failed |= gang.is_stranded
        return loss.detach().new_full(loss.shape, mean) if is_tensor else mean


class _Others:
    """A check for optimisers that were not prepared: created during training, or left out of `run.prepare`."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._is_reported = False

    def watch(self) -> None:
        register = getattr(torch_optimizer, "register_optimizer_step_pre_hook", None)
        if register is not None:
            register(lambda optimizer, *_: self._steps(optimizer))

    def _steps(self, optimizer: torch.optim.Optimizer) -> None:
        gate, gang = self._run.gate, self._run.gang
        if gang.is_alone or gate.knows(optimizer):
            return
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        if not self._is_reported and not gang.shares(trained):
            self._is_reported = True
            self._report(type(optimizer).__name__)
        if not gate.has_failed:
            gang.check_gradients(optimizer)
        if gate.is_torn:
            for one in trained:
                one.grad = None  # an optimiser skips parameters without a gradient

    def _report(self, kind: str) -> None:
        context = self._run.context
        if context is None or self._run.rank or independence_check.has_roles(context):
            return
        report(
            NOT_PREPARED,
            f"{kind} trains parameters that were not passed to run.prepare: each learner trains its own, and only rank "
            "0's are kept. Pass their model and optimiser to run.prepare, too.",
        )
