"""Detection, in a PyTorch training's first steps, of an optimiser that moves no returned or prepared model.

An optimiser created for another model than the trained one changes nothing, and PyTorch raises no error.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.environment.cuda_graphs import is_captured
from jupyter_dlaas.learner.reporting.notes import OPTIMIZER, report

if TYPE_CHECKING:
    from jupyter_dlaas.learner.training_run.run import Run

__all__ = ["FirstSteps", "watch"]

_STEPS: Final = 10
"""The number of steps of each optimiser that are checked; several optimisers may take turns."""
_OPTIMISERS_MAX: Final = 8
_OBJECTS_MAX: Final = 20_000


class FirstSteps:
    """A comparison of the parameters that optimisers move with those of the relevant models.

    It ends once a relevant model is moved. It reports only models that do not change at all, since a moving average of
    weights changes without an optimiser.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._is_over = False
        self._moved: dict[int, Any] = {}  # by id; the reference prevents reuse of an id
        self._optimisers: dict[int, Any] = {}
        self._steps: dict[int, int] = {}
        self._first: dict[int, float] | None = None

    def stepped(self, optimiser: Any) -> None:
        """Record a step. After the first step that moves a relevant model, this only checks a flag."""
        if self._is_over:
            return
        number = self._steps.get(id(optimiser), 0) + 1
        if number > _STEPS:
            return
        if number == 1 and len(self._steps) == _OPTIMISERS_MAX:
            self._end()
            return
        self._steps[id(optimiser)], self._optimisers[id(optimiser)] = number, optimiser
        params = [one for group in optimiser.param_groups for one in group["params"]]
        if any(is_captured(one) for one in params[:1]):
            return
        self._moved.update((id(one), one) for one in params if one.grad is not None)
        models = [one for one in self._roots() if isinstance(one, sys.modules["torch.nn"].Module)]
        if any(id(one) in self._moved for model in models for one in model.parameters()):
            self._end()
            return
        weights = self._weights()
        if not weights.keys().isdisjoint(self._moved):
            self._end()
            return
        if self._first is None:  # computed only after a suspicious first step
            self._first = {number: _gist(one) for number, one in weights.items()}
        if number == _STEPS and not self._moved:  # otherwise a function may return its model only at the end
            self._report(weights)

    def end(self) -> dict[str, object]:
        """Compare once more at the end of the program, when all names are bound."""
        if self._steps and not self._is_over:
            weights = self._weights()
            if weights.keys().isdisjoint(self._moved):
                self._report(weights)
        self._end()
        return {}

    def _end(self) -> None:
        self._is_over = True
        for held in (self._moved, self._optimisers, self._steps):
            held.clear()

    def _report(self, weights: dict[int, Any]) -> None:
        first = self._first or {}
        if not weights or any(first.get(number) != _gist(one) for number, one in weights.items()):
            return
        names = ", ".join(self._context.spec.outputs) or "the prepared model"
        report(
            OPTIMIZER,
            f"The optimiser updates no weight of {names}: it was created for another model than the trained one. "
            "Create the optimiser after the model, or send both from the notebook: --push model,opt.",
        )
        self._end()

    def _roots(self) -> list[Any]:
        """Return the values that the job returns or has prepared, except optimisers."""
        running: Any = sys.modules.get("jupyter_dlaas.learner.training_run.run")
        run: Run | None = running.existing_run() if running is not None else None
        roots = [one for _, one in run.internals.objects] if run is not None else []
        roots += [self._context.script.get(name) for name in self._context.spec.outputs]
        optimiser: Any = sys.modules["torch.optim.optimizer"].Optimizer
        return [one for one in roots if not isinstance(one, optimiser)]

    def _weights(self) -> dict[int, Any]:
        """Return the parameters, by id, of these values, also of models that they hold in other objects."""
        walk: Any = importlib.import_module("jupyter_dlaas.transfer.object_traversal").walk
        parameter: Any = sys.modules["torch.nn.parameter"].Parameter
        named = {str(number): one for number, one in enumerate(self._roots())}
        return {id(one): one for _, one in walk(named, _OBJECTS_MAX) if isinstance(one, parameter)}


def _gist(weight: Any) -> float:
    """Return a number that changes when the weight changes: the sum of its absolute values."""
    return float(weight.detach().abs().sum())


def watch(context: Context) -> None:
    """Watch the optimisers of rank 0 once PyTorch is loaded."""
    if context.rank == 0:
        check = FirstSteps(context)
        context.at_end.append(check.end)
        import_hooks.after("torch.optim.optimizer", lambda module: _register(module, check))


def _register(module: Any, check: FirstSteps) -> None:
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(lambda optimizer, *_: check.stepped(optimizer))
