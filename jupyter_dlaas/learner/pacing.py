"""How fast the gang trains, as rank 0 tells its guardian: windows of steps, per size."""

from __future__ import annotations

import math
import time
from typing import Final

from jupyter_dlaas.learner.context import Context
from jupyter_dlaas.pace import middle
from jupyter_dlaas.protocol import Elastic

__all__ = ["Pacing"]

STEPS: Final = 20
WINDOW_S: Final = 1.0
DROPPED: Final = 2
"""Steps after a change that tell nothing yet."""
FIRST: Final = 4
"""So many windows of a size are short; then each is twice as long as the one before."""
WATCHED_S: Final = 10.0
"""The longest where somebody decides by them."""
TOLD_S: Final = 60.0
STRETCH_S: Final = 0.05
"""Shorter stretches of a loop that is only looked at now and then are joined: their times would tell of chance."""
STRETCHES: Final = 4
"""So many belong to a window, so that one that wrote a checkpoint can be told from the others."""
_KEPT: Final = 2000


class Pacing:
    """Collects step times. A size begins anew whenever the gang changes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        spec = context.spec
        self._most_s = WATCHED_S if spec.elastic is Elastic.AUTO else TOLD_S
        self._is_on = spec.elastic is not Elastic.OFF and spec.learners_max > 1
        self._of: tuple[int, int] | None = None
        self._last_s: float | None = None
        self._seen = 0
        """Of a loop that is looked at: how many steps were begun then."""
        self._begin(time.monotonic())

    def _begin(self, now_s: float) -> None:
        self._times_s: list[float] = []
        """One for each step, or for a stretch of steps their mean."""
        self._steps = 0
        self._samples = 0.0
        self._began_s = now_s

    def step(self, samples: int, left: int | None) -> None:
        """A step of so many samples begins; below 0 one is taken back. `left`: steps that are still to do."""
        if self._is_on:
            self._take(time.monotonic(), 1, samples, left, is_taken_back=samples < 0)

    def look(self, step: int, samples: int, left: int | None) -> None:
        """So many steps of the job were begun by now, each of so many samples of all learners together.

        For loops of others, whose steps pass unseen between two looks.
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
            self._of, self._drop, self._windows, self._window_s = of, DROPPED, 0, WINDOW_S
            self._last_s = None
            self._begin(now_s)
        last_s, self._last_s = self._last_s, now_s
        if last_s is None:
            return
        if self._drop > 0:
            self._drop -= passed
            self._begin(now_s)
            return
        self._times_s.append((now_s - last_s) / passed)
        self._steps += passed
        self._samples += samples
        if self._steps < STEPS or len(self._times_s) < STRETCHES:
            return
        if now_s - self._began_s >= self._window_s or len(self._times_s) >= _KEPT:
            self._tell(left)
            self._windows += 1
            if self._windows >= FIRST:
                self._window_s = min(2 * self._window_s, self._most_s)
            self._begin(now_s)

    def _tell(self, left: int | None) -> None:
        step_s, spread = middle(self._times_s)
        steps = self._steps
        self._context.control.tell(
            t="pace",
            learners=self._context.world_size,
            steps=steps,
            rate=self._samples / steps / step_s,
            spread=spread * math.sqrt(steps / len(self._times_s)),  # of single steps: means of many spread less
            left_s=None if left is None else left * step_s,
        )
