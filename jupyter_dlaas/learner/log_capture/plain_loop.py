"""Observation of a plain PyTorch loop: counts its steps and records the loss of its backward passes.

The source of lowest precedence, for loops that report no loss by printing, a progress bar or a writer.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.environment.cuda_graphs import is_captured
from jupyter_dlaas.learner.log_capture.recorder import Source, record_metrics, record_progress, recorder
from jupyter_dlaas.learner.training_run import independence_check

__all__ = ["Loop", "watch"]

_TELL_S: Final = 0.2
_HOLD_S: Final = 2.0
"""The time in seconds in which a loop can report metrics itself before its losses are recorded."""
_READS: Final = 200
_EVERY_S: Final = 0.25
"""The interval in seconds between reads of the loss after the first _READS, since reading waits for a GPU."""
_OTHERS_MOST: Final = 8
_BACKWARDS: Final = 64
"""The number of backward passes without an optimiser after which each counts as a step."""


class _Loss(NamedTuple):
    """A loss as it was read, until it is recorded: the step is known once an optimiser has made one."""

    name: str
    value: float
    steps: int
    backwards: int
    epoch: int
    at_s: float
    """The time in seconds of the system clock."""


class Loop:
    """The observed loop of rank 0."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._steps = self._backwards = self._others = self._reads = 0
        self._leader = self._other = 0
        self._reported_s = self._read_s = self._looked_s = float("-inf")
        self._held: list[_Loss] | None = []
        self._since_s: float | None = None
        self._began_s: float | None = None
        self._names: dict[tuple[CodeType, int], str] = {}
        self.on_silent: list[Callable[[], None]] = []
        """Called to remove the hook on backward passes, once no loss will be recorded any more."""
        self.on_vain: list[Callable[[], None]] = []
        """Called to remove the hook that counts steps, once nothing uses the count: it costs a few cold calls per
        step.
        """

    @property
    def steps(self) -> int:
        """The number of optimiser steps so far."""
        return self._steps

    def stepped(self, optimizer: object) -> None:
        """Count a step of an optimiser. With several, one leads: the two of a GAN make one step together."""
        who, new = id(optimizer), 1
        if who != self._leader:
            self._others = self._others + 1 if who == self._other else 1
            self._other = who
            if self._leader and self._others <= _OTHERS_MOST:
                return
            self._leader, new = who, self._others  # the next training: its steps so far count
        self._others = 0
        self._steps += new
        self._tell()

    def went_back(self, loss: Any, frame: FrameType) -> None:
        """Record the loss of a `loss.backward()` called in `frame`."""
        self._backwards += 1
        if not self._steps and self._backwards >= _BACKWARDS:
            self._tell()
        now = self._clock()
        if now - self._looked_s >= _TELL_S:
            self._looked_s = now
            self._leave()
        if self._reads >= _READS and now - self._read_s < _EVERY_S:
            return
        one = recorder()
        if loss.numel() != 1 or one is None or is_captured(loss):
            return
        self._reads += 1
        self._read_s = now
        name, value = self._name(loss, frame), loss.detach().item()
        self._draw(_Loss(name, value, self._steps, self._backwards, one.epoch, self._wall_clock()), now)

    def end(self) -> dict[str, object]:
        """Report the final state, with the losses held back if no other source has reported any."""
        self._tell(is_last=True)
        self._release()
        return {}

    def _step(self) -> int:
        return self._steps or self._backwards

    def _tell(self, *, is_last: bool = False) -> None:
        now = self._clock()
        if self._step() and (is_last or now - self._reported_s >= _TELL_S):
            self._reported_s = now
            record_progress(source=Source.LOOP, step=self._step())
            self._began_s = now if self._began_s is None else self._began_s
            one = recorder()
            if (is_last or now - self._began_s >= _HOLD_S) and one is not None and not one.was_led:
                independence_check.look_at_steps()

    def _leave(self) -> None:
        """Remove hooks that are no longer needed. Not called from an optimiser's hook, while hooks are iterated."""
        one = recorder()
        if one is None or not one.is_loop_silent:
            return
        for leave in self.on_silent + (self.on_vain if one.was_led else []):
            leave()
        self.on_silent.clear()
        if one.was_led:
            self.on_vain.clear()

    def _draw(self, loss: _Loss, now: float) -> None:
        if self._since_s is None:
            self._since_s = now
        if self._held is None:
            self._record(loss)
            return
        self._held.append(loss)
        if now - self._since_s >= _HOLD_S:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for loss in held:
            self._record(loss)

    def _record(self, loss: _Loss) -> None:
        """Record a loss at the step that it belongs to, which the optimiser makes after the backward pass."""
        step = loss.steps + 1 if self._steps else loss.backwards
        record_metrics({loss.name: loss.value}, source=Source.LOOP, step=step, epoch=loss.epoch, at_s=loss.at_s)

    def _name(self, loss: object, frame: FrameType) -> str:
        """Return the variable's name of the loss; "loss" for an expression or an uninformative name."""
        place = (frame.f_code, frame.f_lineno)
        if place not in self._names:
            found = [name for name, value in frame.f_locals.items() if value is loss and len(name) > 2]
            self._names[place] = found[0] if found and not found[0].startswith("_") else "loss"
        return self._names[place]


def watch(context: Context, loop: Loop) -> None:
    """Observe PyTorch once it is loaded."""
    import_hooks.after("torch.optim.optimizer", lambda module: _optimizers(module, loop))
    import_hooks.after("torch._tensor", lambda module: _backward(module.Tensor, loop))
    context.at_end.append(loop.end)


def _optimizers(module: Any, loop: Loop) -> None:
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        loop.on_vain.append(register(lambda optimizer, *_: loop.stepped(optimizer)).remove)


def _backward(tensor: Any, loop: Loop) -> None:
    back = tensor.backward

    @functools.wraps(back)
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = back(self, *args, **kwargs)
        loop.went_back(self, sys._getframe(1))
        return done

    def put_back() -> None:
        if tensor.backward is backward:  # otherwise another hook wraps this one
            tensor.backward = back

    tensor.backward = backward
    loop.on_silent.append(put_back)
