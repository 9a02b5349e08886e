"""The training position from open progress bars: detects which bar counts epochs and which counts steps. Pure."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyter_dlaas.learner.log_capture.log_position import Place, Spot
from jupyter_dlaas.learner.log_capture.vocabulary import PHASES, may_matter, words_of

if TYPE_CHECKING:
    from jupyter_dlaas.learner.log_capture.line_parser import Found

__all__ = ["Bar", "Bars"]

_EPOCHS_MOST = 1000
"""The maximum range of a single bar that counts epochs; a longer one counts steps."""


@dataclass(slots=True, eq=False)
class Bar:
    """An open bar. `done` of `total` iterations are complete."""

    total: int | None
    counts_numbers: bool = False
    """True if it iterates over a range."""
    label: str = ""
    done: int = 0
    has_inner: bool = False
    step: int = 0
    """For the bar that counts epochs, the number of steps done over all epochs."""
    each: int = 0
    """For the bar that counts epochs, the length of its longest inner bar."""


@dataclass(slots=True)
class Bars:
    """All bars of a program, as they open, move and close. `place`: the position from printed lines."""

    place: Place = field(default_factory=Place)
    open: list[Bar] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)
    """For bars without an outer bar: total -> how often a bar with this total was opened."""

    def add(self, bar: Bar) -> None:
        if self.open:
            outer = self.open[0]
            outer.has_inner = True
            outer.each = max(outer.each, bar.total or 0)
        elif bar.total:
            self.opened[bar.total] = self.opened.get(bar.total, 0) + 1
        self.open.append(bar)

    def remove(self, bar: Bar) -> None:
        if bar in self.open:
            self.open.remove(bar)

    def spot(self) -> Spot | None:
        """Return the training position; None if the open bars do not determine it."""
        if not self.open:
            return None
        outer = self.open[0]
        if outer.has_inner and outer.total:
            return self._nested(outer)
        if outer.counts_numbers and outer.total and outer.total <= _EPOCHS_MOST and self._counts_epochs(outer):
            fraction = outer.done / outer.total
            return Spot(step=outer.done, done=outer.done, epochs=outer.total, steps=outer.total, fraction=fraction)
        return self._alone(outer)

    def _counts_epochs(self, bar: Bar) -> bool:
        """Return whether the printed lines between the bar's steps show the same epochs, or none."""
        index = self.place.index
        return index is None or abs(index - bar.done) <= 1

    def _nested(self, outer: Bar) -> Spot:
        assert outer.total is not None
        inner = self.open[1] if len(self.open) > 1 else None
        begin = outer.done * outer.each
        if inner is not None and inner.total == outer.each:
            outer.step = max(outer.step, begin + inner.done)
        outer.step = max(outer.step, begin)
        steps = outer.total * outer.each
        fraction = min(outer.step / steps, 1.0) if steps else outer.done / outer.total
        return Spot(step=outer.step, done=outer.done, epochs=outer.total, steps=steps or None, fraction=fraction)

    def _alone(self, bar: Bar) -> Spot | None:
        """Return the position from a single bar, which counts either one epoch or all of the training."""
        if bar.total is None:
            return Spot(step=bar.done)
        if not self._is_main(bar):
            return None
        self._read_label(bar)
        index, epochs = self.place.index, self.place.epochs
        if index is None:
            index = self.opened.get(bar.total, 1) - 1
        done = min(bar.done, bar.total)
        step = index * bar.total + done
        if epochs:
            steps = epochs * bar.total
            return Spot(step=step, done=index + (done == bar.total), epochs=epochs, steps=steps, fraction=step / steps)
        return Spot(step=step, done=index)

    def _is_main(self, bar: Bar) -> bool:
        """Return False for the shorter of two bars per epoch, which counts validation."""
        phase = _phase(bar.label)
        if phase is not None:
            return phase == "train"
        assert bar.total is not None
        mine = self.opened.get(bar.total, 1)
        return not any(times >= mine for total, times in self.opened.items() if total > bar.total)

    def _read_label(self, bar: Bar) -> None:
        found = _found_in(bar.label)
        if found is not None and found.epoch is not None:
            self.place.take(found)


@functools.lru_cache(100)
def _found_in(label: str) -> Found | None:
    """Parse a label. Cached, since a bar may be read ten thousand times."""
    if not may_matter(label):
        return None
    from jupyter_dlaas.learner.log_capture.line_parser import Recogniser  # its patterns take milliseconds to compile

    return Recogniser().read(label)


@functools.lru_cache(100)
def _phase(label: str) -> str | None:
    return next((PHASES[word] for word in words_of(label) if word in PHASES), None)
