"""The step in flight: what of it is done, and what may still be done once others were lost in it.

In a plain loop it is the user's code that goes back, clips, and steps. When a learner is lost meanwhile, the gradients
are not everybody's: what the rest of that step would do is not done, and the step is made again. What was done before
the loss (the first of two optimisers, say) is not repeated then.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
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
        self._is_open = False
        self._done: dict[str, int] = {}
        """How often each object has stepped in the step in flight,"""
        self._seen: dict[str, int] = {}
        """and how often it was asked to since that was begun, maybe again."""

    # -- of a step

    def begin(self) -> None:
        """A step begins, maybe again."""
        self.has_failed = self.has_stepped = False
        self._is_open = True
        self._seen.clear()

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
        seen, done = self._seen.get(name, 0) + 1, self._done.get(name, 0)
        self._seen[name] = seen
        if seen <= done or self.has_failed:
            return False
        self._done[name] = done + 1
        return True

    # -- of objects

    def optimizer(self, name: str, one: Any) -> None:
        """Let this optimiser step only where it counts, with its learning rates multiplied by `factor`."""
        plain, gate = one.step, self

        @functools.wraps(plain)
        def step(self: Any, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
            loss = None
            if closure is not None:
                import torch

                with torch.enable_grad():
                    loss = closure()
            if gate.before_step is not None and not gate.has_failed:
                gate.before_step()
            gate.has_stepped = True
            if not gate._may(name):
                return loss
            factor = gate.factor() if gate.factor is not None else 1.0
            if factor == 1.0:
                plain(**options)
                return loss
            rates = [group["lr"] for group in self.param_groups]
            for group in self.param_groups:
                group["lr"] = group["lr"] * factor
            try:
                plain(**options)
            finally:
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate
            return loss

        one.step = types.MethodType(step, one)  # as LRScheduler does

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

        one.step, one.state_dict = types.MethodType(step, one), types.MethodType(state_dict, one)

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

        one.update = types.MethodType(update, one)
