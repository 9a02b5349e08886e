"""How long this learner's own part of a step takes, and its wait for the others: who is slow, what talking costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Work"]

_NEW: Final = 0.1
"""What the last step counts in the moving mean."""
_TOLD_S: Final = 1.0


class Work:
    """Moving means of a step's time, in parts.

    From its beginning until this learner's gradients are there; from then until they are everybody's; the whole.
    """

    def __init__(self, tell: Callable[..., None], skew: float | None) -> None:
        """`tell` takes a message for the guardian. `skew`: of all bytes that are exchanged, the largest tensor's."""
        self._tell = tell
        self._skew = skew
        self._began_s: float | None = None
        self._done_s: float | None = None
        self._waited_s = 0.0
        self._mean_s = self._wait_s = self._step_s = 0.0
        self._steps = 0
        self._told_s = 0.0

    def reset(self) -> None:
        """Another gang: other shares of a batch."""
        self._began_s = self._done_s = None
        self._steps = 0

    def begin(self) -> None:
        """A step begins, its data are still to be read."""
        now_s = time.monotonic()
        if self._began_s is not None and self._done_s is not None:
            self._steps += 1
            counts = max(_NEW, 1 / self._steps)
            self._mean_s += counts * (self._done_s - self._began_s - self._mean_s)
            self._wait_s += counts * (self._waited_s - self._wait_s)
            self._step_s += counts * (now_s - self._began_s - self._step_s)
            if now_s - self._told_s >= _TOLD_S:
                self._told_s = now_s
                self._tell(
                    t="work",
                    s=self._mean_s,
                    wait_s=self._wait_s,
                    step_s=self._step_s,
                    steps=self._steps,
                    skew=self._skew,
                )
        self._began_s, self._done_s, self._waited_s = now_s, None, 0.0

    def done(self) -> None:
        """Gradients are there, for now: of several parts of the model the last counts."""
        self._done_s = time.monotonic()

    def summed(self) -> None:
        """They are everybody's."""
        if self._done_s is not None:
            self._waited_s += time.monotonic() - self._done_s
