"""The steps that this learner trained. Called at every step, so most calls cost only one addition."""

from __future__ import annotations

from collections.abc import Iterator

from jupyter_dlaas.wire.step_range import Range

__all__ = ["Trained"]


class Trained:
    """Steps in training order. Iteration yields them as ranges, each within one epoch."""

    __slots__ = ("_closed", "_epoch", "_first", "end")

    def __init__(self) -> None:
        self._closed: list[Range] = []
        self._epoch = self._first = 0
        self.end = 0
        """The step after the last one. Incrementing it adds a step of the same epoch."""

    def __iter__(self) -> Iterator[Range]:
        yield from self._closed
        if self.end > self._first:
            yield self._open

    def __bool__(self) -> bool:
        return bool(self._closed) or self.end > self._first

    @property
    def _open(self) -> Range:
        return Range(epoch=self._epoch, first=self._first, end=self.end)

    def add(self, epoch: int, step: int) -> None:
        """Add a trained step."""
        if epoch != self._epoch or step != self.end:
            if self.end > self._first:
                self._closed.append(self._open)
            self._epoch, self._first = epoch, step
        self.end = step + 1

    def undo(self) -> None:
        """Remove the step that was added last. Raises IndexError if there is none."""
        if self.end == self._first:
            last = self._closed.pop()
            self._epoch, self._first, self.end = last.epoch, last.first, last.end
        self.end -= 1
