"""Training progress and speed in `progress.json`, written at most five times a second. The engine derives estimates."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import write_whole
from jupyter_dlaas.learner.control.throughput_report import Pacing
from jupyter_dlaas.wire.codec import clean, encode
from jupyter_dlaas.wire.protocol import Progress

__all__ = ["Meter"]

_EVERY_S: Final = 0.2
_SHARE: Final = 0.003
"""The maximum share of time for writing: on a busy disk, a file takes milliseconds."""
_SELDOM_S: Final = 2.0
_WINDOW_S: Final = 10.0


class Meter:
    """The progress meter: counts steps and writes progress. Without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.epochs: int | None = None
        self.steps_per_epoch = 0
        self.pacing: Pacing | None = None
        """The throughput report to the guardian."""
        self._written_s = 0.0
        self._every_s = _EVERY_S
        self._marks: list[tuple[float, int, int]] = []
        self._samples = 0
        self._shown: tuple[int, int, int | None, float | None] | None = None
        """For a program without `run`'s loops: epoch, step, total steps and fraction, as detected."""

    def show(self, epoch: int, epochs: int | None, step: int, steps: int | None, fraction: float | None) -> None:
        """Report progress that was detected elsewhere. `steps`: the total; `fraction`: the fraction itself."""
        self.epochs = epochs if epochs is not None else self.epochs
        if self._marks and step < self._marks[-1][1]:
            self._marks.clear()
        self._shown = (epoch, step, steps, fraction)
        self._tell(epoch, step)

    @property
    def has_shown(self) -> bool:
        """True if the last progress was detected elsewhere."""
        return self._shown is not None

    def tell_last(self) -> None:
        """Write the last detected progress, which may have come too soon after the one before to be written."""
        if self._shown is not None:
            self._tell(self._shown[0], self._shown[1], force=True)

    def become_main(self, path: Path) -> None:
        """Start to write progress, as the new main learner."""
        self._path = path

    def hand_over(self) -> None:
        """Stop writing progress: another learner writes it, and joining learners read the epoch from it."""
        self._path = None

    def step(self, epoch: int, step: int, samples: int) -> None:
        """Record that a step begins. Usually this only reads the clock."""
        if self._path is None:
            return
        if self.pacing is not None:
            steps = self.epochs * self.steps_per_epoch if self.epochs and self.steps_per_epoch else None
            self.pacing.step(samples, None if steps is None else max(steps - step, 0))
        self._samples += samples
        if time.monotonic() - self._written_s >= self._every_s:
            self.tell(epoch, step)

    def tell(self, epoch: int, step: int, *, force: bool = False) -> None:
        """Write the progress of `run`'s loops, if due."""
        self._shown = None
        self._tell(epoch, step, force=force)

    def _tell(self, epoch: int, step: int, *, force: bool = False) -> None:
        now = time.monotonic()
        if self._path is None or (not force and now - self._written_s < self._every_s):
            return
        self._written_s = now
        self._marks = [mark for mark in self._marks if now - mark[0] <= _WINDOW_S][-60:]
        self._marks.append((now, step, self._samples))
        first = self._marks[0]
        lasted_s = now - first[0]
        rate = (step - first[1]) / lasted_s if lasted_s > 0 and step > first[1] else None
        samples = (self._samples - first[2]) / lasted_s if lasted_s > 0 and self._samples > first[2] else None
        steps = self.epochs * self.steps_per_epoch if self.epochs and self.steps_per_epoch else None
        fraction = None
        if self._shown is not None:
            steps, fraction = self._shown[2:]
        if fraction is None:
            fraction = min(step / steps, 1.0) if steps else (epoch / self.epochs if self.epochs else None)
        progress = Progress(
            epoch=epoch,
            epochs=self.epochs,
            step=step,
            steps=steps,
            fraction=fraction,
            steps_per_s=rate,
            samples_per_s=samples,
            at_s=time.time(),
        )
        with suppress(OSError):  # a full disk must not end the training
            write_whole(self._path, json.dumps(clean(encode(progress))).encode())
        self._every_s = min(max(_EVERY_S, (time.monotonic() - now) / _SHARE), _SELDOM_S)
