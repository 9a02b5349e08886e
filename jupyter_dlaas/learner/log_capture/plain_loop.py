"""What a plain PyTorch loop does without saying so: its steps are counted, the loss that it goes back from is drawn.

The lowest of all sources, for loops that print nothing and have neither a bar nor a writer.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.log_capture.recorder import Source, record_metrics, record_progress, recorder
from jupyter_dlaas.learner.training_run import independence_check

__all__ = ["Loop", "watch"]

_TELL_S: Final = 0.2
_HOLD_S: Final = 2.0
"""So long loops may take to say something themselves before their losses are drawn."""
_READS: Final = 200
_EVERY_S: Final = 0.25
"""After that many, losses are read four times a second: reading waits for a GPU."""
_OTHERS_MOST: Final = 8
_BACKWARDS: Final = 64
"""After that many without an optimiser, going back is itself a step."""


class Loop:
    """Takes what PyTorch does, in rank 0 of a job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = self._backwards = self._others = self._reads = 0
        self._leader = self._other = 0
        self._told_s = self._read_s = self._looked_s = float("-inf")
        self._held: list[tuple[str, Any, int]] | None = []
        self._since_s: float | None = None
        self._began_s: float | None = None
        self._names: dict[tuple[CodeType, int], str] = {}
        self.on_silent: list[Callable[[], None]] = []
        """What ends the looking at losses, once nothing of it will be drawn any more."""
        self.on_vain: list[Callable[[], None]] = []
        """What ends the counting of steps, once nobody needs them: each costs a few calls with cold caches."""

    def stepped(self, optimizer: object) -> None:
        """An optimiser took a step. One of several leads: a GAN's two are one step together."""
        who, new = id(optimizer), 1
        if who != self._leader:
            self._others = self._others + 1 if who == self._other else 1
            self._other = who
            if self._leader and self._others <= _OTHERS_MOST:
                return
            self._leader, new = who, self._others  # the next training: what it did so far counts
        self._others = 0
        self._steps += new
        self._tell()

    def went_back(self, loss: Any, frame: FrameType) -> None:
        """`loss.backward()` was called in `frame`."""
        self._backwards += 1
        if not self._steps and self._backwards >= _BACKWARDS:
            self._tell()
        now = self._clock()
        if now - self._looked_s >= _TELL_S:
            self._looked_s = now
            self._leave()
        if self._reads >= _READS and now - self._read_s < _EVERY_S:
            return
        if loss.numel() != 1 or recorder() is None:
            return
        self._reads += 1
        self._read_s = now
        self._draw(self._name(loss, frame), loss.detach().item(), now)

    def end(self) -> dict[str, object]:
        """The training is over: what was held back is drawn, if nobody else spoke."""
        self._tell(is_last=True)
        self._release()
        return {}

    def _step(self) -> int:
        return self._steps or self._backwards

    def _tell(self, *, is_last: bool = False) -> None:
        now = self._clock()
        if self._step() and (is_last or now - self._told_s >= _TELL_S):
            self._told_s = now
            record_progress(source=Source.LOOP, step=self._step())
            self._began_s = now if self._began_s is None else self._began_s
            one = recorder()
            if (is_last or now - self._began_s >= _HOLD_S) and one is not None and not one.was_led:
                independence_check.look_at_steps()

    def _leave(self) -> None:
        """Look no longer, where others have the say for good. Not for an optimiser's hook: hooks are gone over then."""
        one = recorder()
        if one is None or not one.is_loop_silent:
            return
        for leave in self.on_silent + (self.on_vain if one.was_led else []):
            leave()
        self.on_silent.clear()
        if one.was_led:
            self.on_vain.clear()

    def _draw(self, name: str, value: float, now: float) -> None:
        if self._since_s is None:
            self._since_s = now
        if self._held is None:
            record_metrics({name: value}, source=Source.LOOP, step=self._step())
            return
        self._held.append((name, value, self._step()))
        if now - self._since_s >= _HOLD_S:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for name, value, step in held:
            record_metrics({name: value}, source=Source.LOOP, step=step)

    def _name(self, loss: object, frame: FrameType) -> str:
        """The variable that goes back; `loss` for an expression and for a name that tells nothing."""
        place = (frame.f_code, frame.f_lineno)
        if place not in self._names:
            found = [name for name, value in frame.f_locals.items() if value is loss and len(name) > 2]
            self._names[place] = found[0] if found and not found[0].startswith("_") else "loss"
        return self._names[place]


def watch(context: Context) -> None:
    """Watch PyTorch once it is loaded."""
    loop = Loop()
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
        if tensor.backward is backward:  # else somebody else has put theirs around it
            tensor.backward = back

    tensor.backward = backward
    loop.on_silent.append(put_back)
