"""Metrics and progress without code changes: the entry point for tqdm, printed lines, writers and framework callbacks.

Precedence: `run.log`, then `--metric` patterns, framework callbacks, a SummaryWriter, numbers recognised in the log,
and last the observed plain loop. A metric recorded from one source is not recorded again from a lower one.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import Any, Final

from jupyter_dlaas.learner.control.context import Context, current
from jupyter_dlaas.learner.environment.program_identifiers import words_in
from jupyter_dlaas.learner.log_capture.log_position import Spot
from jupyter_dlaas.learner.reporting.metrics import number_of
from jupyter_dlaas.learner.training_run.run import Run, is_being_made, run_of

__all__ = [
    "NAMES_MOST",
    "Recorder",
    "Source",
    "in_one_piece",
    "is_led",
    "key_of",
    "leading",
    "made_recorder",
    "record_metrics",
    "record_progress",
    "recorder",
]

NAMES_MOST: Final = 50
"""The maximum number of distinct metrics that are recorded without being requested."""

_POINTS_PER_S: Final = 20.0
_BURST: Final = 2000


class Source(StrEnum):
    """The source of a number, highest precedence first."""

    RUN = "run"
    ASKED = "asked"
    CALLBACK = "callback"
    WRITER = "tensorboard"
    BAR = "bar"
    LOG = "log"
    LOOP = "loop"

    @property
    def rank(self) -> int:
        return _ORDER.index(self)

    @property
    def on_wire(self) -> str:
        """The name in metrics.jsonl: "log" for patterns, bars and lines; "callback" for a plain loop."""
        if self is Source.LOOP:
            return Source.CALLBACK.value
        return "log" if self in (Source.ASKED, Source.BAR) else self.value


_BESIDE: Final = re.compile(
    r"(?<![a-z])(?:lr|acc|accuracy|f1|auc|auroc|precision|recall|reward|return)(?![a-z])|learning.?rate", re.IGNORECASE
)
"""Names of numbers that a program prints beside its loss, or after its loop: they say nothing about the loss."""
_ORDER: Final = tuple(Source)
_SAME: Final[Mapping[str, str]] = {
    "validation": "val", "valid": "val", "dev": "val", "training": "train", "tr": "train", "testing": "test",
    "acc": "accuracy", "losses": "loss", "average": "", "avg": "", "mean": "", "epoch": "", "running": "", "lr": "rate",
    "learning": "", "eval": "val", "evaluation": "val",
}  # fmt: skip


@functools.lru_cache(1000)
def key_of(name: str) -> tuple[str, ...]:
    """Return a common key for names of one metric: "Loss/train", "train_loss" and "Training loss" are the same."""
    parts = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    kept = {_SAME.get(part, part) for part in parts} - {"", "train"}
    return tuple(sorted(kept)) or tuple(parts)


def record_metrics(
    values: Mapping[str, Any],
    *,
    source: Source = Source.CALLBACK,
    step: int | None = None,
    epoch: int | None = None,
    at_s: float | None = None,
) -> None:
    """Record a point of metrics in rank 0 of a job; does nothing elsewhere. Never raises for a value.

    `step` counts over the whole training; None: the position from `record_progress`. `at_s` is the time of the values
    in seconds of the system clock; None: now.
    """
    one = recorder()
    if one is not None:
        one.metrics(values, source, step, epoch, at_s)


@contextmanager
def in_one_piece() -> Iterator[None]:
    """Return a context in which recorded points are written together, which is cheaper."""
    one = recorder()
    if one is None:
        yield
        return
    with one.in_one_piece():
        yield


def record_progress(
    *,
    source: Source = Source.CALLBACK,
    epoch: int | None = None,
    epochs: int | None = None,
    step: int | None = None,
    steps: int | None = None,
    fraction: float | None = None,
) -> None:
    """Record the training progress. `epoch`: completed epochs (the first trained epoch is 0); `steps`: the total."""
    one = recorder()
    if one is not None:
        one.progress(source, epoch, epochs, step, steps, fraction)


@contextmanager
def leading(source: Source = Source.CALLBACK) -> Iterator[None]:
    """Return a context in which sources below this one are ignored: a framework's output repeats its callbacks."""
    one = recorder()
    if one is None:
        yield
        return
    one.leaders.append(source.rank)
    one.was_led = True
    try:
        yield
    finally:
        one.leaders.remove(source.rank)


def is_led(source: Source) -> bool:
    """Return whether a source of higher precedence leads now, so that this source is ignored."""
    one = recorder()
    return one is not None and any(rank < source.rank for rank in one.leaders)


_recorders: list[tuple[Context, Recorder]] = []


def made_recorder() -> Recorder | None:
    """Return this process's recorder if it exists; do not create one."""
    return _recorders[0][1] if _recorders and _recorders[0][0] is current() else None


def recorder() -> Recorder | None:
    """Return this process's recorder; None outside a job, in other ranks and in child processes."""
    context = current()
    if context is None or context.rank:
        return None
    if not _recorders or _recorders[0][0] is not context:
        if is_being_made():  # our own output, about a damaged checkpoint for example, holds no metrics
            return None
        made = Recorder(run_of(context), does_log=_logs_itself(context))
        context.at_end.append(made.end)
        _recorders[:] = [(context, made)]
    return _recorders[0][1]


def _logs_itself(context: Context) -> bool:
    """Return whether the program calls run.log, so that its output is meant for people only."""
    return words_in(context.job_dir / "train.py").logs


class Recorder:
    """The recorder of one learner, with precedence of sources. Thread-safe."""

    def __init__(self, run: Run, *, does_log: bool = False) -> None:
        """Create a recorder. `does_log`: the program calls `run.log`."""
        self.leaders: list[int] = []
        """The ranks of the sources that lead now."""
        self.was_led = False
        self._run = run
        self._does_log = does_log
        self._lock = threading.Lock()
        self._best: dict[tuple[str, ...], int] = {}
        """Metric -> rank of the highest source that has reported it."""
        self._names: set[str] = set()
        self._source_rank = Source.LOOP.rank
        self._has_end = False
        """True if the last progress included the end of training."""
        self._loops: Spot | None = None
        self._epoch = 0
        self._step: int | None = None
        self._last: dict[str, tuple[int, int]] = {}
        """Name -> its last step, and the offset added since the source restarted its count."""
        self._tokens, self._filled_s = float(_BURST), time.monotonic()
        self._held: tuple[dict[str, float], int, int, Source, float] | None = None
        self._has_losses = False
        """True once another source than a plain loop has reported what may be the loss."""

    @property
    def epoch(self) -> int:
        """The number of completed epochs, as reported by a source or seen in the program's own loops."""
        return max(self._epoch, self._loops.done or 0) if self._loops is not None else self._epoch

    def metrics(
        self,
        values: Mapping[str, Any],
        source: Source,
        step: int | None,
        epoch: int | None,
        at_s: float | None = None,
    ) -> None:
        with self._lock:
            found = {}
            for name, value in values.items():
                if self._may(name, source) and (number := _number(name, value)) is not None:
                    found[name] = number
            if found:
                self._take(found, source, step, epoch, time.time() if at_s is None else at_s)

    def in_one_piece(self) -> AbstractContextManager[None]:
        return self._run.in_one_piece()

    @property
    def is_loop_silent(self) -> bool:
        """True if another source reports losses, so that those of a plain loop are not recorded."""
        return self.was_led or self._has_losses

    def _may(self, name: str, source: Source) -> bool:
        logged = self._run.names_logged
        if source.rank >= Source.BAR.rank and (logged or self._does_log):
            return False
        if any(rank < source.rank for rank in self.leaders) and source is not Source.ASKED:
            return False
        if source is Source.LOOP and self.is_loop_silent:
            return False
        key = key_of(name)
        if logged and key in {key_of(one) for one in logged}:
            return False
        if self._best.get(key, source.rank) < source.rank:
            return False
        if name not in self._names:
            if source.rank > Source.ASKED.rank and len(self._names) >= NAMES_MOST:
                return False
            self._names.add(name)
        self._best[key] = source.rank
        self._has_losses |= source.rank < Source.LOOP.rank and _BESIDE.search(name) is None
        return True

    def _take(self, found: dict[str, float], source: Source, step: int | None, epoch: int | None, at_s: float) -> None:
        is_outranked = self._step is not None and self._source_rank < source.rank
        at = self._run.step if self._run.is_looping else self._step if step is None or is_outranked else step
        counts = at is None
        if at is None:
            at = 1 + max((self._last[name][0] for name in found if name in self._last), default=-1)
        base = 0
        for name in found:
            last, added = self._last.get(name, (-1, 0))
            if not counts and at + added < last:  # a second training counts from 0 again
                added = last
            base = max(base, added)
        at += base
        for name in found:
            self._last[name] = (at, base if not counts else 0)
        where = self._run.epoch if self._run.is_looping else self.epoch if epoch is None else epoch
        if self._has_token(source):
            self._write(found, at, where, source, at_s)
        else:
            held = self._held[0] if self._held is not None else {}
            self._held = (held | found, at, where, source, at_s)

    def _has_token(self, source: Source) -> bool:
        """Return whether a point may be written: a token bucket limits the rate of points.

        A program may print numbers at each of a million steps.
        """
        if source is Source.ASKED:
            return True
        now = time.monotonic()
        self._tokens = min(_BURST, self._tokens + (now - self._filled_s) * _POINTS_PER_S)
        self._filled_s = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _write(self, found: dict[str, float], step: int, epoch: int, source: Source, at_s: float) -> None:
        self._held = None
        self._run.record(found, step=step, epoch=epoch, source=source.on_wire, at_s=at_s)

    def progress(
        self,
        source: Source,
        epoch: int | None,
        epochs: int | None,
        step: int | None,
        steps: int | None,
        fraction: float | None,
    ) -> None:
        with self._lock:
            if source.rank > self._source_rank or any(rank < source.rank for rank in self.leaders):
                return
            if source is Source.LOOP and self.was_led:
                return  # the loop belongs to a framework, which reports its own progress
            self._source_rank = source.rank
            if epoch is not None:
                self._epoch = epoch
            if step is not None:
                self._step = step
            self._has_end = fraction is not None or epochs is not None or steps is not None
            if self._has_end or self._loops is None:
                self._run.show(self._epoch, epochs, self._step, steps, fraction)
            else:
                self._show_loops(self._loops)

    def loops(self, spot: Spot) -> None:
        """Record the position of the program's own loops, which is used if no other source knows the end."""
        with self._lock:
            self._loops = None if self.was_led or self.leaders else spot
            if self._loops is not None and not self._has_end:
                self._show_loops(spot)

    def _show_loops(self, spot: Spot) -> None:
        """Show the loops' position. Points keep the step of their own source, since sampling lags behind it."""
        step, steps, done, fraction = spot.step, spot.steps, spot.done or self._epoch, spot.fraction
        if self._step is not None:
            step, steps = self._step, None
            if spot.epochs and done < self._epoch <= spot.epochs:
                done = self._epoch
                fraction = max(fraction or 0.0, done / spot.epochs)
        self._run.show(done, spot.epochs, step, steps, fraction)

    def release(self, source: Source) -> None:
        """Let other sources report progress, after all bars were closed."""
        with self._lock:
            if self._source_rank == source.rank:
                self._source_rank, self._step, self._has_end = Source.LOOP.rank, None, False

    def end(self) -> dict[str, Any]:
        """Write the points held back last, so that metrics end where the training did."""
        with self._lock:
            if self._held is not None:
                self._write(*self._held)
            return {}


def _number(name: str, value: Any) -> float | None:
    try:
        return number_of(name, value)
    except Exception:  # noqa: BLE001 - a text or a tensor of many elements is not a metric, and must not end the training
        return None
