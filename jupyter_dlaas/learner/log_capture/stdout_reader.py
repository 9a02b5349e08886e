"""A reader of a program's output for metrics and progress, with bounded overhead."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.log_capture import plain_loop, tensorboard, tqdm_bars
from jupyter_dlaas.learner.log_capture.log_position import Place, Spot
from jupyter_dlaas.learner.log_capture.metric_regex import find, listen
from jupyter_dlaas.learner.log_capture.recorder import Source, is_led, record_metrics, record_progress
from jupyter_dlaas.learner.log_capture.vocabulary import may_matter

if TYPE_CHECKING:
    from jupyter_dlaas.learner.log_capture.line_parser import Recogniser
    from jupyter_dlaas.learner.log_capture.loop_sampler import Sampler

__all__ = ["Budget", "Reader", "watch"]

_SHARE: Final = 0.005
_BURST_S: Final = 0.25


class Budget:
    """The processor time for reading: a share of the elapsed time, with an initial burst.

    On a busy machine the process may be interrupted while it reads, which does not count.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, used: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._used = clock, used
        self._left_s = _BURST_S
        self._last_s = clock()

    def begin(self) -> float | None:
        """Return the processor time used so far; None if the budget is used up."""
        now = self._clock()
        self._left_s = min(_BURST_S, self._left_s + (now - self._last_s) * _SHARE)
        self._last_s = now
        return self._used() if self._left_s > 0 else None

    def end(self, begun: float) -> None:
        self._left_s -= self._used() - begun


class Reader:
    """The reader of a program's lines."""

    def __init__(
        self,
        patterns: Sequence[str],
        place: Place,
        *,
        recognises: bool,
        counted_steps: Callable[[], int] = lambda: 0,
        budget: Budget | None = None,
    ) -> None:
        """Create a reader. `patterns`: the user's own (`--metric`). Raises re.error for a bad one.

        `counted_steps` returns the number of steps that were seen in another way; lines that state none have these.
        """
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._recognises = recognises
        self._recogniser: Recogniser | None = None
        self._place = place
        self._counted_steps = counted_steps
        self._budget = budget or Budget()
        self._skipped: str | None = None

    def line(self, text: str) -> None:
        asked = find(self._patterns, text) if self._patterns else {}
        if asked:
            record_metrics(asked, source=Source.ASKED)
        if not self._recognises or is_led(Source.LOG):
            return
        begun = self._budget.begin()
        if begun is None:
            self._skipped = text
            return
        self._skipped = None
        self._recognise(text)
        self._budget.end(begun)

    def end(self) -> None:
        """Read the last line if there was no budget for it before."""
        if self._skipped is not None:
            self._recognise(self._skipped)

    def _recognise(self, text: str) -> None:
        if self._recogniser is None:
            if not may_matter(text):
                return
            from jupyter_dlaas.learner.log_capture.line_parser import (
                Recogniser,  # its patterns take milliseconds to compile
            )

            self._recogniser = Recogniser()
        found = self._recogniser.read(text)
        if found is None:
            return
        spot = self._place.take(found)
        states_epochs_alone = self._place.counts_epochs_alone
        counted = self._counted_steps() if states_epochs_alone else 0
        if spot != Spot():
            step, steps = (spot.done, spot.epochs) if states_epochs_alone else (spot.step, spot.steps)
            if counted:
                step, steps = counted, None
            record_progress(
                source=Source.LOG, epoch=spot.done, epochs=spot.epochs, step=step, steps=steps, fraction=spot.fraction
            )
        if found.values:
            record_metrics(found.values, source=Source.LOG, step=counted or spot.step, epoch=found.epoch)


def watch(context: Context) -> None:
    """Read the output, bars and plots of this learner from now on. Raises re.error for a bad pattern."""
    spec = context.spec
    place = Place(spec.epochs)
    tqdm_bars.install(place if spec.autolog else None)
    if spec.autolog:
        tensorboard.install()
    if context.rank or not (spec.metric_patterns or spec.autolog):
        return
    loop = plain_loop.Loop()
    reader = Reader(spec.metric_patterns, place, recognises=spec.autolog, counted_steps=lambda: loop.steps)
    listen(reader.line)

    def end() -> dict[str, object]:
        reader.end()
        return {}

    context.at_end.append(end)
    if spec.autolog:
        plain_loop.watch(context, loop)
        _look_at_loops(context)


def _look_at_loops(context: Context) -> None:
    """Sample the program's own loops. The sampler's modules are loaded once the program has begun."""
    samplers: list[Sampler] = []

    def look() -> None:
        if not samplers:
            from jupyter_dlaas.learner.log_capture.loop_sampler import Sampler

            samplers.append(Sampler(context))
        samplers[0].look()

    def end() -> dict[str, object]:
        for one in samplers:
            one.end()
        return {}

    context.control.on_idle = look
    context.at_end.append(end)
