"""Curves and progress without a changed line: the one door for tqdm, printed lines, writers and frameworks' callbacks.

Who says more exactly wins: `run.log`, then `--metric` patterns, then callbacks of a framework, then a SummaryWriter,
then what was recognised in the log, last what a loop does in silence. A curve that came from one of them is not drawn
a second time from one below it.
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
"""Distinct curves that are made without being asked for."""

_POINTS_PER_S: Final = 20.0
_BURST: Final = 2000


class Source(StrEnum):
    """Where a number comes from, highest first."""

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
        """What metrics.jsonl says: patterns, bars and lines are "from the log"; a loop is watched, as by a callback."""
        if self is Source.LOOP:
            return Source.CALLBACK.value
        return "log" if self in (Source.ASKED, Source.BAR) else self.value


_ORDER: Final = tuple(Source)
_SAME: Final[Mapping[str, str]] = {
    "validation": "val", "valid": "val", "dev": "val", "training": "train", "tr": "train", "testing": "test",
    "acc": "accuracy", "losses": "loss", "average": "", "avg": "", "mean": "", "epoch": "", "running": "", "lr": "rate",
    "learning": "", "eval": "val", "evaluation": "val",
}  # fmt: skip


@functools.lru_cache(1000)
def key_of(name: str) -> tuple[str, ...]:
    """What two names of one curve share: "Loss/train", "train_loss" and "Training loss" are the same."""
    parts = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    kept = {_SAME.get(part, part) for part in parts} - {"", "train"}
    return tuple(sorted(kept)) or tuple(parts)


def record_metrics(
    values: Mapping[str, Any], *, source: Source = Source.CALLBACK, step: int | None = None, epoch: int | None = None
) -> None:
    """Add a point to curves, where this process is rank 0 of a job; else nothing happens. Never raises for a value.

    `step` counts over the whole training; None: where `record_progress` said that training is.
    """
    one = recorder()
    if one is not None:
        one.metrics(values, source, step, epoch)


@contextmanager
def in_one_piece() -> Iterator[None]:
    """Points that are recorded meanwhile are written together, which costs less."""
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
    """Say how far training is. `epoch`: how many are done (the first one that is trained is 0); `steps`: in all."""
    one = recorder()
    if one is not None:
        one.progress(source, epoch, epochs, step, steps, fraction)


@contextmanager
def leading(source: Source = Source.CALLBACK) -> Iterator[None]:
    """While a framework trains, nothing below it is recorded: what it prints and writes are the same numbers."""
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
    """Whether somebody above this source trains now: what it says is not looked at."""
    one = recorder()
    return one is not None and any(rank < source.rank for rank in one.leaders)


_recorders: list[tuple[Context, Recorder]] = []


def made_recorder() -> Recorder | None:
    """What records this process, if something was recorded already; asking makes none."""
    return _recorders[0][1] if _recorders and _recorders[0][0] is current() else None


def recorder() -> Recorder | None:
    """What records this process; None outside of a job, in other ranks and in processes that it started."""
    context = current()
    if context is None or context.rank:
        return None
    if not _recorders or _recorders[0][0] is not context:
        if is_being_made():  # it tells of a damaged checkpoint, say: a line of ours, with nothing to record
            return None
        made = Recorder(run_of(context), does_log=_logs_itself(context))
        context.at_end.append(made.end)
        _recorders[:] = [(context, made)]
    return _recorders[0][1]


def _logs_itself(context: Context) -> bool:
    """Whether the program means to use run.log: then what it prints is for people."""
    return words_in(context.job_dir / "train.py").logs


class Recorder:
    """What is recorded of one learner, by precedence. May be called from any thread."""

    def __init__(self, run: Run, *, does_log: bool = False) -> None:
        """`does_log`: the program means to use `run.log`."""
        self.leaders: list[int] = []
        """Ranks of the sources that lead now."""
        self.was_led = False
        self._run = run
        self._does_log = does_log
        self._lock = threading.Lock()
        self._best: dict[tuple[str, ...], int] = {}
        """Curve -> rank of the highest source that it came from."""
        self._names: set[str] = set()
        self._told_by = Source.LOOP.rank
        self._has_end = False
        """What was told last says how long training goes on."""
        self._loops: Spot | None = None
        self._epoch = 0
        self._step: int | None = None
        self._last: dict[str, tuple[int, int]] = {}
        """Name -> its last step, and what is added since a count began anew."""
        self._tokens, self._filled_s = float(_BURST), time.monotonic()
        self._held: tuple[dict[str, float], int, int, Source] | None = None

    def metrics(self, values: Mapping[str, Any], source: Source, step: int | None, epoch: int | None) -> None:
        with self._lock:
            found = {}
            for name, value in values.items():
                if self._may(name, source) and (number := _number(name, value)) is not None:
                    found[name] = number
            if found:
                self._take(found, source, step, epoch)

    def in_one_piece(self) -> AbstractContextManager[None]:
        return self._run.in_one_piece()

    @property
    def is_loop_silent(self) -> bool:
        """A loop that says anything says what counts: what it does in silence is not drawn from then on."""
        return self.was_led or any(rank < Source.LOOP.rank for rank in self._best.values())

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
        return True

    def _take(self, found: dict[str, float], source: Source, step: int | None, epoch: int | None) -> None:
        is_told_better = self._step is not None and self._told_by < source.rank
        at = self._run.step if self._run.is_looping else self._step if step is None or is_told_better else step
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
        where = self._run.epoch if self._run.is_looping else self._epoch if epoch is None else epoch
        if self._has_token(source):
            self._write(found, at, where, source)
        else:
            held = self._held[0] if self._held is not None else {}
            self._held = (held | found, at, where, source)

    def _has_token(self, source: Source) -> bool:
        """At most so many points a second, after a burst: a program may print each of a million steps."""
        if source is Source.ASKED:
            return True
        now = time.monotonic()
        self._tokens = min(_BURST, self._tokens + (now - self._filled_s) * _POINTS_PER_S)
        self._filled_s = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _write(self, found: dict[str, float], step: int, epoch: int, source: Source) -> None:
        self._held = None
        self._run.record(found, step=step, epoch=epoch, source=source.on_wire)

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
            if source.rank > self._told_by or any(rank < source.rank for rank in self.leaders):
                return
            if source is Source.LOOP and self.was_led:
                return  # the loop was a framework's, which says itself how far it is
            self._told_by = source.rank
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
        """Take where the program's own loops are: they tell their end, where nobody else tells one."""
        with self._lock:
            self._loops = None if self.was_led or self.leaders else spot
            if self._loops is not None and not self._has_end:
                self._show_loops(spot)

    def _show_loops(self, spot: Spot) -> None:
        """Points keep the place that their own source gives them: what is looked at now and then lags behind it."""
        step, steps, done, fraction = spot.step, spot.steps, spot.done or self._epoch, spot.fraction
        if self._step is not None:
            step, steps = self._step, None
            if spot.epochs and done < self._epoch <= spot.epochs:
                done = self._epoch
                fraction = max(fraction or 0.0, done / spot.epochs)
        self._run.show(done, spot.epochs, step, steps, fraction)

    def release(self, source: Source) -> None:
        """All bars are closed: others may tell how far training is."""
        with self._lock:
            if self._told_by == source.rank:
                self._told_by, self._step, self._has_end = Source.LOOP.rank, None, False

    def end(self) -> dict[str, Any]:
        """The points that were held back last: a curve must end where the training did."""
        with self._lock:
            if self._held is not None:
                self._write(*self._held)
            return {}


def _number(name: str, value: Any) -> float | None:
    try:
        return number_of(name, value)
    except Exception:  # noqa: BLE001 - a text, a tensor of many elements: not for run.log, so it ends no training
        return None
