"""The time of a simulated pool: given to it, never slept through."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "VirtualClock"]


class Clock(Protocol):
    """Clock that a simulated pool needs."""

    def now_s(self) -> float:
        """Seconds since 1970 (or since whenever the simulation likes)."""

    def call_at(self, time_s: float, fn: Callable[[], None]) -> None:
        """Call `fn` at that time. Those of the same time are called in the order in which they were asked for."""


class VirtualClock:
    """Clock that moves only on request: hours pass in milliseconds, and the same way each time."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def now_s(self) -> float:
        """Return the time that was reached."""
        return self._now_s

    def call_at(self, time_s: float, fn: Callable[[], None]) -> None:
        """Call `fn` when the clock passes that time; a time in the past means at the next advance."""
        self._asked += 1
        heapq.heappush(self._due, (max(time_s, self._now_s), self._asked, fn))

    @property
    def next_s(self) -> float | None:
        """Return the time of the next event; None if there is none."""
        return self._due[0][0] if self._due else None

    def advance(self, to_s: float) -> None:
        """Move to `to_s` and call all that is due on the way, each at its own time."""
        while self._due and self._due[0][0] <= to_s:
            self._now_s, _, fn = heapq.heappop(self._due)
            fn()
        self._now_s = max(self._now_s, to_s)

    def step(self) -> bool:
        """Move to the next time at which something is due, and do all of that time. False: nothing is due."""
        if not self._due:
            return False
        self.advance(self._due[0][0])
        return True
