"""Step times of this learner: its own computation, its wait for the others, and the whole step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from jupyter_dlaas.wire.learner_messages import StepTimes

__all__ = ["Work"]

_NEW: Final = 0.1
"""The weight of the last step in the moving mean."""
_SEND_EVERY_S: Final = 1.0


class Work:
    """Moving means of step times, in seconds.

    Measures the time until this learner's gradients are computed, the wait until they are averaged, and the whole step.
    """

    def __init__(self, send: Callable[[StepTimes], None], skew: float | None) -> None:
        """Start without data. `send` sends a message to the guardian.

        `skew`: the largest tensor's share of all gradient bytes.
        """
        self._send = send
        self._skew = skew
        self._began_s: float | None = None
        self._done_s: float | None = None
        self._waited_s = 0.0
        self._mean_s = self._wait_s = self._step_s = 0.0
        self._steps = 0
        self._sent_s = 0.0

    def reset(self) -> None:
        """Restart the means after a membership change, since shares of a batch differ."""
        self._began_s = self._done_s = None
        self._steps = 0

    def begin(self) -> None:
        """Begin a step, before its data is read."""
        now_s = time.monotonic()
        if self._began_s is not None and self._done_s is not None:
            self._steps += 1
            counts = max(_NEW, 1 / self._steps)
            self._mean_s += counts * (self._done_s - self._began_s - self._mean_s)
            self._wait_s += counts * (self._waited_s - self._wait_s)
            self._step_s += counts * (now_s - self._began_s - self._step_s)
            if now_s - self._sent_s >= _SEND_EVERY_S:
                self._sent_s = now_s
                self._send(
                    StepTimes(
                        compute_s=self._mean_s,
                        wait_s=self._wait_s,
                        step_s=self._step_s,
                        steps=self._steps,
                        skew=self._skew,
                    )
                )
        self._began_s, self._done_s, self._waited_s = now_s, None, 0.0

    def done(self) -> None:
        """Record that gradients are computed; if the model has several parts, the last call counts."""
        self._done_s = time.monotonic()

    def summed(self) -> None:
        """Record that gradients are averaged."""
        if self._done_s is not None:
            self._waited_s += time.monotonic() - self._done_s
