"""Where training is, from lines that each tell a part of it: "Epoch 3/10" here, "step 40/100" there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_dlaas.learner.log_capture.line_parser import Found

__all__ = ["Place", "Spot"]


@dataclass(frozen=True, slots=True)
class Spot:
    """`step` counts over the whole training; `done`: epochs that are over."""

    step: int | None = None
    done: int | None = None
    epochs: int | None = None
    steps: int | None = None
    fraction: float | None = None


class Place:
    """Remembers what the lines before said."""

    def __init__(self, epochs: int | None = None) -> None:
        """`epochs`: how many there will be, where that is known already."""
        self._epochs = epochs
        self._label: int | None = None
        self._first = 1
        self._each: int | None = None
        """Steps of an epoch, as the lines say."""
        self._before = 0
        """Steps of the epochs before, where no line says how many an epoch has."""
        self._within = 0

    @property
    def index(self) -> int | None:
        """Which epoch it is, from 0 on."""
        return None if self._label is None else max(self._label - self._first, 0)

    @property
    def epochs(self) -> int | None:
        return self._epochs

    @property
    def counts_epochs_alone(self) -> bool:
        """True while no line said anything of steps: then epochs are the steps."""
        return self._label is not None and not self._each and not self._within

    def take(self, found: Found) -> Spot:
        """The place that a line tells of, given those before it."""
        if found.epoch is not None and found.epoch != self._label:
            if found.epoch == 0:
                self._first = 0
            self._before = 0 if self._label is None or found.epoch < self._label else self._before + self._within
            self._label, self._within = found.epoch, 0
        if found.epochs is not None:
            is_last = self._first == 0 and found.epoch == found.epochs  # "Epoch 0/24" to "Epoch 24/24" are 25
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
        begun = 0.0  # how much of this epoch is over
        if found.step is not None:
            begun = min(found.step / self._each, 1.0) if self._each else 0.0
        elif found.values:
            begun = 1.0  # results are told at the end
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
