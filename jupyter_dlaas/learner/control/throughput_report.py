"""Throughput of the gang, reported by rank 0 to its guardian: windows of steps, per gang size."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.wire.learner_messages import Throughput
from jupyter_dlaas.wire.protocol import Elastic
from jupyter_dlaas.wire.step_windows import DROPPED, Windows, middle

__all__ = ["Pacing"]

WATCHED_S: Final = 10.0
"""The longest window in seconds if the scheduler decides by it."""
REPORTED_S: Final = 60.0
"""The longest window in seconds otherwise."""
STRETCH_S: Final = 0.05
"""The minimum interval in seconds between polls of a loop that count; the times of shorter ones are mostly noise."""


class Pacing:
    """The collection of step times. It restarts whenever the gang changes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        spec = context.spec
        is_watched = spec.elastic is Elastic.AUTO
        self._windows = Windows(WATCHED_S if is_watched else REPORTED_S, is_quick=is_watched)
        self._is_on = spec.elastic is not Elastic.OFF and spec.learners_max > 1
        self._of: tuple[int, int] | None = None
        self._last_s: float | None = None
        self._seen = 0
        """In a polled loop, the number of steps begun at the last poll."""
        self._drop = self._steps = 0
        self._samples = 0.0

    def step(self, samples: int, left: int | None) -> None:
        """Begin a step of this many samples; a negative number undoes one. `left`: the number of remaining steps."""
        if self._is_on:
            self._take(time.monotonic(), 1, samples, left, is_taken_back=samples < 0)

    def look(self, step: int, samples: int, left: int | None) -> None:
        """Record that the job has begun `step` steps so far, each of `samples` samples over all learners.

        For loops of frameworks, whose steps are not observed between two polls.
        """
        if not self._is_on:
            return
        now_s, passed = time.monotonic(), step - self._seen
        if self._last_s is None or passed < 0:
            self._seen, self._last_s, passed = step, None, 0
        elif not passed or now_s - self._last_s < STRETCH_S:
            return
        self._seen = step
        self._take(now_s, passed, passed * samples, left)

    def _take(self, now_s: float, passed: int, samples: int, left: int | None, *, is_taken_back: bool = False) -> None:
        of = (self._context.generation, self._context.world_size)
        if of != self._of or is_taken_back:
            self._of, self._last_s, self._drop = of, None, DROPPED
            self._windows.again()
            self._steps, self._samples = 0, 0.0
        last_s, self._last_s = self._last_s, now_s
        if last_s is None:
            return
        if self._drop > 0:
            self._drop -= passed
            return
        self._steps += passed
        self._samples += samples
        if found := self._windows.step((now_s - last_s) / passed, passed):
            self._tell(found, self._samples / self._steps, left)
            self._steps, self._samples = 0, 0.0

    def _tell(self, times_s: Sequence[float], samples: float, left: int | None) -> None:
        step_s, spread = middle(times_s)
        steps = self._windows.steps
        self._context.control.send(
            Throughput(
                learners=self._context.world_size,
                steps=steps,
                rate=samples / step_s,
                spread=spread * math.sqrt(steps / len(times_s)),  # of single steps: means over many steps vary less
                left_s=None if left is None else left * step_s,
            )
        )
