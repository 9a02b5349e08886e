"""The step in flight: what of it is done, and what may still be done once others were lost in it.

In a plain loop it is the user's code that goes back, clips, and steps. When a learner is lost meanwhile, the gradients
are not everybody's: what the rest of that step would do is not done, and the step is made again. What was done before
the loss (the first of two optimisers, say) is not repeated then.
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
"""More steps of optimisers, schedulers and scalers than one step of training has."""


class Gate:
    """Lets optimisers, schedulers and scalers step only where their step counts."""

    def __init__(self) -> None:
        self.has_failed = False
        """The gradients of the step in flight are not everybody's."""
        self.has_stepped = False
        """An optimiser stepped in it."""
        self.factor: Callable[[], float] | None = None
        """What learning rates are multiplied by, for one step of an optimiser."""
        self.before_step: Callable[[], None] | None = None
        """Called before an optimiser steps; may raise, or set `has_failed`."""
        self.check: Callable[[Any], None] | None = None
        """Called with an optimiser before it steps: are its gradients everybody's?"""
        self.mean: Callable[[Any], Any] | None = None
        """The mean of a loss over the gang; may set `has_failed`."""
        self.may_lose: Callable[[], bool] = lambda: False
        """Return whether other learners may be lost in the step, so that it is repeated."""
        self.on_failure: Callable[[], None] | None = None
        """Called in the main thread once a step has failed, before the program goes on with the rest of it."""
        self.on_step: Callable[[], None] | None = None
        """Called before an optimiser steps."""
        self._is_noted = False
        self._gated: dict[int, Any] = {}
        self._replaced: list[tuple[Any, str, Any]] = []
        """Objects, names of their methods, and what stood in the object's own dict before, else None."""
        self._is_open = False
        self._done: dict[str, int] = {}
        """How often each object has stepped in the step in flight,"""
        self._seen: dict[str, int] = {}
        """and how often it was asked to since that was begun, maybe again."""

    # -- of a step

    def begin(self) -> None:
        """A step begins, maybe again."""
        self.has_failed = self.has_stepped = self._is_noted = False
        self._is_open = True
        self._seen.clear()

    def fail(self) -> None:
        """Others are lost, or came to another place of the program: the step in flight does not count."""
        self.has_failed = True
        self._note_failure()

    def _note_failure(self) -> None:
        """Call `on_failure` once. A backward pass on a GPU runs in threads that do not see the program's variables."""
        if self._is_noted or not self.is_torn or self.on_failure is None:
            return
        if threading.current_thread() is threading.main_thread():
            self._is_noted = True
            self.on_failure()

    def end(self) -> bool:
        """It ends. True if it counts; else it is to be made again."""
        self._is_open = False
        if not self.has_failed:
            self._done.clear()
        return not self.has_failed

    def close(self) -> None:
        """It ends, and is not to be made again, whatever happened."""
        self._is_open = self.has_failed = False
        self._done.clear()

    @property
    def is_torn(self) -> bool:
        """In the rest of a step that will be made again."""
        return self._is_open and self.has_failed

    @property
    def done(self) -> dict[str, int]:
        """How often each object stepped in a step that is to be made again."""
        return dict(self._done)

    def take(self, done: Mapping[str, int]) -> None:
        """Go on from another learner's state of a step."""
        self._done = dict(done)

    def progress(self, step: int) -> int:
        """A number that is higher for the learner that is further."""
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

    # -- of objects

    def optimizer(self, name: str, one: Any) -> None:
        """Let this optimiser step only where it counts, with its learning rates multiplied by `factor`.

        Also each optimiser that it holds (SAM's `base_optimizer`, Lookahead's `optimizer`): some programs call methods
        of the outer one that are no `step`.
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
        """Whether this optimiser's steps are gated."""
        return id(optimizer) in self._gated

    def held_by(self, name: str, one: Any) -> None:
        """Gate the optimisers that an object holds."""
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
        """A step of an optimiser that calls its closure as often as it likes, maybe at other weights.

        The closure gives it the gang's mean loss, by which all learners search alike. What was changed is taken back
        when others are lost in the midst of it.
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
        """Let this scheduler step only where it counts."""
        plain, gate = one.step, self

        @functools.wraps(plain)
        def step(self: Any, *args: Any, **options: Any) -> Any:
            return plain(*args, **options) if gate._may(name) else None

        kept = one.state_dict

        @functools.wraps(kept)
        def state_dict(self: Any) -> dict[str, Any]:
            # A scheduler's state is all of its attributes, these two would be among them.
            return {key: value for key, value in kept().items() if key not in ("step", "state_dict")}

        self._replace(one, "step", step)
        self._replace(one, "state_dict", state_dict)

    def scaler(self, name: str, one: Any) -> None:
        """Let this gradient scaler change its scale only where that counts; what it noted for a step it forgets."""
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
        """Give objects their own methods back: the program is over, and its results are to hold nothing of the gang."""
        for one, method, before in reversed(self._replaced):
            if before is None:
                vars(one).pop(method, None)
            else:
                setattr(one, method, before)
        self._replaced.clear()


class _Torn(Exception):
    """Ends a step in which others were lost."""


def _takes_one_gradient(optimizer: Any) -> bool:
    """Whether it calls a closure once, before anything else, as most of torch's optimisers do; and needs none."""
    kind = type(optimizer)
    parameter = inspect.signature(kind.step).parameters.get("closure")
    is_needed = parameter is not None and parameter.default is parameter.empty
    return kind.__module__.partition(".")[0] == "torch" and not is_needed


def _snapshot(optimizer: Any) -> Callable[[], None]:
    """Keep an optimiser's parameters and state. Returns what puts them back."""
    import torch

    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    kept = [one.detach().clone() for one in parameters]
    # Keys are parameters, and stay these.
    state = {key: copy.deepcopy(value) for key, value in optimizer.state.items()}

    def put_back() -> None:
        with torch.no_grad():
            for one, value in zip(parameters, kept, strict=True):
                one.copy_(value)
        optimizer.state.clear()
        optimizer.state.update(state)

    return put_back
