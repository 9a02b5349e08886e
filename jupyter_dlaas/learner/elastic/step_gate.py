"""The gate of the step in flight: which optimisers and schedulers have stepped, and which may still step.

In a plain loop the user's code runs the backward pass, clips and steps. If a learner is lost meanwhile, the gradients
are not averaged over all learners. The rest of that step is then suppressed, and the step is repeated. What was done
before the loss (by the first of two optimisers, for example) is not done again.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["Gate"]

_MOST: Final = 1 << 10
"""An upper bound of the steps of optimisers, schedulers and scalers within one training step."""


class Gate:
    """The gate that lets optimisers, schedulers and scalers step only in a step that counts."""

    def __init__(self) -> None:
        self.has_failed = False
        """True if the gradients of the step in flight are not averaged over all learners."""
        self.has_stepped = False
        """True if an optimiser has stepped in the step in flight."""
        self.factor: Callable[[], float] | None = None
        """Returns the factor of learning rates for one step of an optimiser."""
        self.before_step: Callable[[], None] | None = None
        """Called before an optimiser steps; may raise, or set `has_failed`."""
        self.check: Callable[[Any], None] | None = None
        """Called with an optimiser before it steps, to average gradients that have not been averaged."""
        self.mean: Callable[[Any], Any] | None = None
        """Returns the mean of a loss over the gang; may set `has_failed`."""
        self.may_lose: Callable[[], bool] = lambda: False
        """Returns whether other learners may be lost in the step, so that it would be repeated."""
        self.on_failure: Callable[[], None] | None = None
        """Called in the main thread once a step has failed, before the program continues with the rest of it."""
        self.on_step: Callable[[], None] | None = None
        """Called before an optimiser steps."""
        self._is_noted = False
        self._gated: dict[int, Any] = {}
        self._replaced: list[tuple[Any, str, Any]] = []
        """Objects, names of replaced methods, and the former values in the objects' own dicts, or None."""
        self._is_open = False
        self._done: dict[str, int] = {}
        """The number of steps per object in the step in flight."""
        self._seen: dict[str, int] = {}
        """The number of requests to step per object since the step began, or began again."""

    # -- the step

    def begin(self) -> None:
        """Begin a step, possibly a repetition."""
        self.has_failed = self.has_stepped = self._is_noted = False
        self._is_open = True
        self._seen.clear()

    def fail(self) -> None:
        """Mark the step in flight as failed, after a lost learner or a divergence."""
        self.has_failed = True
        self._note_failure()

    def _note_failure(self) -> None:
        """Call `on_failure` once. GPU backward passes run in threads that do not see the program's variables."""
        if self._is_noted or not self.is_torn or self.on_failure is None:
            return
        if threading.current_thread() is threading.main_thread():
            self._is_noted = True
            self.on_failure()

    def end(self) -> bool:
        """End the step. Return whether it counts; otherwise it is to be repeated."""
        self._is_open = False
        if not self.has_failed:
            self._done.clear()
        return not self.has_failed

    def close(self) -> None:
        """End the step without repetition, whatever happened."""
        self._is_open = self.has_failed = False
        self._done.clear()

    @property
    def is_torn(self) -> bool:
        """True in the rest of a failed step, which will be repeated."""
        return self._is_open and self.has_failed

    @property
    def done(self) -> dict[str, int]:
        """The number of steps per object in a step that is to be repeated."""
        return dict(self._done)

    def take(self, done: Mapping[str, int]) -> None:
        """Continue from another learner's state of a step."""
        self._done = dict(done)

    def progress(self, step: int) -> int:
        """Return a number that is higher for a learner further ahead: in steps, then within the step."""
        return step * _MOST + sum(self._done.values())

    def _may(self, name: str) -> bool:
        if not self._is_open:
            return True
        self._note_failure()
        seen, done = self._seen.get(name, 0) + 1, self._done.get(name, 0)
        self._seen[name] = seen
        if seen <= done or self.has_failed:
            return False
        self._done[name] = done + 1
        return True

    # -- objects

    def optimizer(self, name: str, one: Any) -> None:
        """Let this optimiser step only in a step that counts, with its learning rates multiplied by `factor`.

        This includes optimisers that it holds (SAM's `base_optimizer`, Lookahead's `optimizer`), since some programs
        call other methods of the outer optimiser than `step`.
        """
        if id(one) in self._gated:
            return
        self._gated[id(one)] = one
        plain, gate = one.step, self
        is_simple = _takes_one_gradient(one)

        @functools.wraps(plain)
        def step(self: Any, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
            loss = None
            if closure is not None and not is_simple:
                return gate._step_with(name, self, plain, closure, options)
            if closure is not None:
                import torch

                with torch.enable_grad():
                    loss = closure()
            if gate.on_step is not None:
                gate.on_step()
            if gate.check is not None and not gate.has_failed:
                gate.check(self)
            if gate.before_step is not None and not gate.has_failed:
                gate.before_step()
            gate.has_stepped = True
            if not gate._may(name):
                return loss
            if gate.factor is None:
                found = plain(**options)
            else:
                with gate._rates(self):
                    found = plain(**options)
            return found if loss is None else loss

        self._replace(one, "step", step)
        self.held_by(name, one)

    def knows(self, optimizer: Any) -> bool:
        """Return whether this optimiser's steps are gated."""
        return id(optimizer) in self._gated

    def held_by(self, name: str, one: Any) -> None:
        """Gate the optimisers that an object holds as attributes."""
        import torch

        for attribute, value in sorted(vars(one).items()):
            if isinstance(value, torch.optim.Optimizer):
                self.optimizer(f"{name}.{attribute}", value)

    @contextmanager
    def _rates(self, optimizer: Any) -> Iterator[None]:
        factor = self.factor() if self.factor is not None else 1.0
        if factor == 1.0:
            yield
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _step_with(
        self, name: str, optimizer: Any, plain: Callable[..., Any], closure: Callable[[], Any], options: dict[str, Any]
    ) -> Any:
        """Run the step of an optimiser that may call its closure several times, at different weights.

        The closure returns the gang's mean loss, so that line searches agree in all learners. Changes are undone if a
        learner is lost meanwhile.
        """
        import torch

        gate = self
        last: list[Any] = []

        def mean_closure() -> Any:
            with torch.enable_grad():
                loss = closure()
            if gate.check is not None and not gate.has_failed:
                gate.check(optimizer)
            if gate.before_step is not None and not gate.has_failed:
                gate.before_step()
            if gate.mean is not None and not gate.has_failed:
                loss = gate.mean(loss)
            last[:] = [loss]
            if gate.has_failed:
                raise _Torn
            return loss

        gate.has_stepped = True
        if not gate._may(name):
            with torch.enable_grad():
                return closure()
        undo = _snapshot(optimizer) if gate.may_lose() else None
        try:
            with gate._rates(optimizer):
                return plain(mean_closure, **options)
        except _Torn:
            gate._done[name] -= 1
            if undo is not None:
                undo()
            return last[0]

    def scheduler(self, name: str, one: Any) -> None:
        """Let this scheduler step only in a step that counts."""
        plain, gate = one.step, self

        @functools.wraps(plain)
        def step(self: Any, *args: Any, **options: Any) -> Any:
            return plain(*args, **options) if gate._may(name) else None

        kept = one.state_dict

        @functools.wraps(kept)
        def state_dict(self: Any) -> dict[str, Any]:
            # A scheduler's state includes all of its attributes, so these two are removed.
            return {key: value for key, value in kept().items() if key not in ("step", "state_dict")}

        self._replace(one, "step", step)
        self._replace(one, "state_dict", state_dict)

    def scaler(self, name: str, one: Any) -> None:
        """Let this gradient scaler update its scale only in a step that counts; it still clears its per-step state."""
        plain, gate = one.update, self

        @functools.wraps(plain)
        def update(self: Any, *args: Any, **options: Any) -> None:
            may = gate._may(name)
            kept = None if may else self.state_dict()
            plain(*args, **options)
            if kept:
                self.load_state_dict(kept)

        self._replace(one, "update", update)

    def _replace(self, one: Any, method: str, function: Any) -> None:
        """Replace a method of one object, as LRScheduler does."""
        self._replaced.append((one, method, vars(one).get(method)))
        setattr(one, method, types.MethodType(function, one))

    def release(self) -> None:
        """Restore the original methods when the program has ended, so that its results do not refer to the gang."""
        for one, method, before in reversed(self._replaced):
            if before is None:
                vars(one).pop(method, None)
            else:
                setattr(one, method, before)
        self._replaced.clear()


class _Torn(Exception):
    """An internal exception that ends an optimiser's step in which learners were lost."""


def _takes_one_gradient(optimizer: Any) -> bool:
    """Return whether the optimiser's closure is optional and called once, first, as in most of torch's optimisers."""
    kind = type(optimizer)
    parameter = inspect.signature(kind.step).parameters.get("closure")
    is_needed = parameter is not None and parameter.default is parameter.empty
    return kind.__module__.partition(".")[0] == "torch" and not is_needed


def _snapshot(optimizer: Any) -> Callable[[], None]:
    """Copy an optimiser's parameters and state; return a function that restores them."""
    import torch

    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    kept = [one.detach().clone() for one in parameters]
    # The keys are the parameters themselves.
    state = {key: copy.deepcopy(value) for key, value in optimizer.state.items()}

    def put_back() -> None:
        with torch.no_grad():
            for one, value in zip(parameters, kept, strict=True):
                one.copy_(value)
        optimizer.state.clear()
        optimizer.state.update(state)

    return put_back
