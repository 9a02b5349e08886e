"""The training position from lines that each state a part of it: "Epoch 3/10", "step 40/100". Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_dlaas.learner.log_capture.line_parser import Found

__all__ = ["Place", "Spot"]


@dataclass(frozen=True, slots=True)
class Spot:
    """A training position. `step` counts over the whole training; `done`: the number of completed epochs."""

    step: int | None = None
    done: int | None = None
    epochs: int | None = None
    steps: int | None = None
    fraction: float | None = None


class Place:
    """The position from all lines so far."""

    def __init__(self, epochs: int | None = None) -> None:
        """Start without a position. `epochs`: their number, if known."""
        self._epochs = epochs
        self._label: int | None = None
        self._first = 1
        self._each: int | None = None
        """Steps per epoch, if a line states them."""
        self._before = 0
        """Steps of the epochs before, if no line states the steps per epoch."""
        self._within = 0

    @property
    def index(self) -> int | None:
        """The current epoch, from 0."""
        return None if self._label is None else max(self._label - self._first, 0)

    @property
    def epochs(self) -> int | None:
        return self._epochs

    @property
    def counts_epochs_alone(self) -> bool:
        """True until a line states a step; epochs count as steps until then."""
        return self._label is not None and not self._each and not self._within

    def take(self, found: Found) -> Spot:
        """Return the position after a line."""
        if found.epoch is not None and found.epoch != self._label:
            if found.epoch == 0:
                self._first = 0
            self._before = 0 if self._label is None or found.epoch < self._label else self._before + self._within
            self._label, self._within = found.epoch, 0
        if found.epochs is not None:
            is_last = self._first == 0 and found.epoch == found.epochs  # "Epoch 0/24" to "Epoch 24/24" are 25 epochs
            self._epochs = found.epochs + is_last
        if found.step is not None:
            self._within, self._each = found.step, found.steps
        if self._label is None:
            return self._without_epochs(found)
        return self._in_epoch(found, self._label - self._first)

    def _without_epochs(self, found: Found) -> Spot:
        if found.step is None:
            return Spot()
        fraction = min(found.step / found.steps, 1.0) if found.steps else None
        return Spot(step=found.step, steps=found.steps, fraction=fraction)

    def _in_epoch(self, found: Found, index: int) -> Spot:
        begun = 0.0  # the completed part of this epoch
        if found.step is not None:
            begun = min(found.step / self._each, 1.0) if self._each else 0.0
        elif found.values:
            begun = 1.0  # results are printed at the end of an epoch
        index = max(index, 0)
        if self._each:
            step: int | None = index * self._each + (
                self._within if found.step is not None else round(begun * self._each)
            )
        elif self._within:
            step = self._before + self._within
        else:
            step = self._label if found.values else None
        fraction = min((index + begun) / self._epochs, 1.0) if self._epochs else None
        steps = self._each * self._epochs if self._each and self._epochs else None
        return Spot(step=step, done=index + (begun >= 1.0), epochs=self._epochs, steps=steps, fraction=fraction)
