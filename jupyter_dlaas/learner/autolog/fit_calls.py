"""Calls of frameworks' own training loops (`model.fit`, `trainer.train`), numbered within one program.

A position is (call, epoch, batch). A call that has to halt stores its state in the job's checkpoint. After a restart
the program runs from its first line: completed calls are not trained again, and the interrupted call continues. Calls
so short that storing them would take longer than training are trained again.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.control.context import Context, Leave, current
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.environment.program_identifiers import words_in
from jupyter_dlaas.learner.log_capture.recorder import in_one_piece, leading, record_metrics, record_progress
from jupyter_dlaas.learner.training_run import checkpoint_policy, independence_check, training_loop
from jupyter_dlaas.learner.training_run.run import run_of
from jupyter_dlaas.learner.training_run.state import RunState
from jupyter_dlaas.transfer import rng_state
from jupyter_dlaas.wire.protocol import Elastic

__all__ = ["Call", "KeptCall", "keeping", "print_once", "stepwise", "watching"]

_WORTH: Final = 200
"""A call's end is stored if the call took this many times as long as storing it, or the checkpoint interval.

A restart trains shorter calls again.
"""
_STORING_S: Final = 0.05
"""The assumed time in seconds to store an end, until one has been measured."""
_POINT_S: Final = 0.05
"""The minimum interval in seconds between reads of a batch's numbers: reading a loss may wait for a device."""
_CALM_S: Final = 0.25
"""The maximum interval in seconds between checks of boundaries; a request to the learner ends it immediately."""
_SHOW_S: Final = 0.1
"""The minimum interval in seconds between progress updates."""
_WRITE_S: Final = 0.25
"""The minimum interval in seconds between writes of short rounds' points."""
_SHARE: Final = 0.003
"""The maximum share of time for writing them."""
_AT_ONCE: Final = 50
"""The maximum number of points written together."""
_NETWORKS: Final = frozenset({"torch", "tensorflow", "jax", "keras", "transformers", "lightning", "pytorch_lightning"})
Point = tuple[Mapping[str, Any], int, int | None]
"""Values, step, and epoch if known."""


def print_once(what: str) -> None:
    """Print a line in the job's log, once per text."""
    if what not in _printed:
        _printed.add(what)
        print(f"[{what}]", file=sys.stderr, flush=True)


_printed: Final[set[str]] = set()


class Call:
    """One observed call of a framework: metrics and progress."""

    def __init__(self) -> None:
        self.epochs: int | None = None
        self.steps: int | None = None
        self.due_s = 0.0
        """The time from which a batch's numbers may be read again."""
        self.calm_s = 0.0
        """The time until which batches are only counted, by `passed`."""
        self.show_s = 0.0
        """The time until which progress is not shown, except the last."""
        self._asked_s: float | None = None
        self._cost_s = 0.0
        """The time in seconds that the last point took; the first one also warms up, and does not count."""
        self._place: tuple[int, int] | None = None
        self.write_s = 0.0
        """The time from which points of short rounds are written, together."""
        self.on_finish: Callable[[], None] | None = None
        """Called by `finish` to report what was held back."""
        self._points: list[Point] = []

    def expect(self, epochs: int | None, *, per_epoch: int | None = None, steps: int | None = None) -> None:
        """Set the number of epochs of this call, and the number of batches per epoch or in total."""
        self.epochs, self.steps = epochs, steps or (epochs * per_epoch if epochs and per_epoch else None)

    def at(self, epoch: int, step: int) -> None:
        """Record completed epochs and batches of this call. They are shown several times a second."""
        self._place = (epoch, step)
        now = time.monotonic()
        if now >= self.show_s:
            self.show_s = now + _SHOW_S
            self._show()

    def _show(self) -> None:
        if self._place is not None:
            (epoch, step), self._place = self._place, None
            record_progress(epoch=epoch, epochs=self.epochs, step=step, steps=self.steps)

    def point(self, values: Mapping[str, Any], step: int, epoch: int | None = None) -> None:
        """Add a point of a step that may take only a millisecond; it is written together with others."""
        self._points.append((values, step, epoch))
        if time.monotonic() >= self.write_s:
            points, self._points = self._points, []
            self.points(points)

    def points(self, found: Sequence[Point]) -> None:
        """Write points, thinned out if there are very many; the last one is always written."""
        began_s = time.monotonic()
        every = -(-len(found) // _AT_ONCE)
        if found:
            with in_one_piece():
                for values, step, epoch in found[(len(found) - 1) % every :: every]:
                    record_metrics(values, step=step, epoch=epoch)
        now = time.monotonic()
        self.write_s = now + max(_WRITE_S, (now - began_s) / _SHARE)

    def finish(self) -> dict[str, Any]:
        """Show and write what is pending."""
        if self.on_finish is not None:
            self.on_finish()
        self._show()
        points, self._points = self._points, []
        self.points(points)
        return {}

    def passed(self) -> None:
        """Count another batch of the epoch without checking the boundary. Only calls that can halt use it."""

    def log(self, values: Mapping[str, Any], *, epoch: int | None = None, step: int | None = None) -> None:
        """Record a point of metrics. Without a step, it belongs to the current position."""
        record_metrics(values, epoch=epoch, step=step)
        if self._asked_s is not None:
            now = time.monotonic()
            former_s, self._cost_s = self._cost_s, now - self._asked_s
            self.due_s = now + max(_POINT_S, min(former_s, self._cost_s) / _SHARE)
            self._asked_s = None

    def is_time_for_point(self) -> bool:
        """Return whether a batch's numbers may be read now. If so, call `log` next."""
        now = time.monotonic()
        if now < self.due_s:
            return False
        self._asked_s, self.due_s = now, now + _POINT_S
        return True


class KeptCall(Call):
    """A call that can halt at a batch, and continues there after a restart."""

    def __init__(self, run: RunState, context: Context, number: int, framework: str, epochs_before: int) -> None:
        super().__init__()
        self.job_dir = context.job_dir
        self.state: Any = None
        """The state to continue from; None at the beginning, or if `end` is set."""
        self.folder: Path | None = None
        """The directory with the files of `state`."""
        self.end: Any = None
        """The end of this call in an earlier run: it must not be trained again."""
        self.save: Callable[[Path], Any] | None = None
        """Returns the state at a boundary; large objects are written as files into the given directory."""
        self._run, self.number, self._framework = run, number, framework
        self._epochs_before = epochs_before
        self._began_s = time.monotonic()
        self._is_over = False
        self.shares = _shares(context)
        """(rank, learners) if each batch is divided among the learners; None if the framework distributes the data."""
        self.batch = 1
        """The number of samples per step over all learners, if known."""
        every_s = context.spec.checkpoint_every_s
        run.boundaries.on_request = self._on_request
        self._calm_for_s = 0.0 if context.world_size > 1 else min(_CALM_S, every_s or math.inf)
        """The interval in seconds for work that costs more than reading the clock (cold calls take some µs).

        It is 0 with several learners, which must check each boundary together.
        """
        self._worth_s = min(_WORTH * _Program.storing_s, every_s or math.inf)
        restored = run.restored if run.resume is not None else None
        found = restored["call"] if restored is not None else None
        self._is_target = found is not None and found["number"] == number
        if found is None:
            self._first_step = run.step
        elif number < found["number"] or (self._is_target and found["is_over"]):
            self.end = checkpoint_files.load_end(self.job_dir, number)
        else:
            if found["framework"] != framework:
                raise RuntimeError(
                    f"the checkpoint was written by {found['framework']}, but the program now trains with {framework}"
                )
            self.state, self.folder = found["state"], restored["folder"] if restored is not None else None
        if found is not None:
            self._epochs_before, self._first_step = found["epochs_before"], found["first_step"]

    @property
    def is_replayed(self) -> bool:
        """True while this call only repeats what precedes the checkpoint: nothing counts."""
        return self._run.resume is not None

    def at(self, epoch: int, step: int) -> None:
        run = self._run
        if not self.is_replayed:
            epochs = self._epochs_before + self.epochs if self.epochs else None
            steps = self._first_step + self.steps if self.steps else None
            run.epoch = self._epochs_before + epoch
            run.meter.show(run.epoch, epochs, run.step, steps, None)

    @property
    def halt_hooks(self) -> list[Callable[[], object]]:
        """Functions that each learner calls when all of them stop at a boundary."""
        return self._run.halt_hooks

    def boundary(self, epoch: int, index: int) -> None:
        """Handle the boundary before batch `index` of an epoch: halt, or write a checkpoint, if due."""
        run = self._run
        position = Position(epoch=self._epochs_before + epoch, call=self.number, index=index, step=run.step)
        if not self.is_replayed:
            self.calm_s = time.monotonic() + self._calm_for_s  # first, so that a request from now on ends the interval
        try:
            training_loop.boundary(run, position, self._content)
        except Leave:
            self.at(epoch, index)  # progress is shown at intervals: the last one is the step at which it stops
            raise
        if run.meter.pacing is not None and run.rank == 0 and not self.is_replayed:
            left = None if self.steps is None else max(self.steps - (run.step - self._first_step), 0)
            run.meter.pacing.look(run.step, self.batch, left)

    def passed(self) -> None:
        """Count a batch; replaces `boundary` and `step`."""
        run = self._run
        run.step += 1
        run.trained.end += 1
        run.boundaries.passed()

    def step(self, epoch: int, index: int) -> None:
        """Begin batch `index` of an epoch."""
        run = self._run
        if run.resume is None:
            run.epoch = self._epochs_before + epoch
            training_loop.count(run, reports=False)
            now = time.monotonic()
            if now >= self.show_s:
                self.show_s = now + _SHOW_S
                self.at(epoch, index)

    def _on_request(self) -> None:
        self.calm_s = 0.0

    def reach(self) -> None:
        """Mark the checkpoint's position as reached, with all state restored: from here on, training counts."""
        if self.is_replayed:
            training_loop.reach(self._run)

    def close(self, end: Callable[[], Any], epochs: int) -> None:
        """Complete the call after this many epochs. `end` returns what a restarted program needs from it."""
        run = self._run
        if self.end is not None:
            rng_state.put_back(self.end["streams"])
        is_new = not self.is_replayed
        if self._is_target:
            self.reach()
        if self.end is None and is_new:
            after = self._epochs_before + epochs
            self._epochs_before, self._is_over = after, True
            run.epoch = after - 1
            run.meter.show(after, after, run.step, None, 1.0)
            position = Position(epoch=after, call=self.number + 1, step=run.step)
            ended_s = time.monotonic()
            if run.rank == 0 and ended_s - self._began_s >= self._worth_s and (write := self._end(end)) is not None:
                checkpoint_policy.save(run, position, self._content, write)
                _Program.storing_s = time.monotonic() - ended_s
            # several learners check the same boundaries, with or without a request
            if run.boundaries.is_stopping or run.world_size > 1:
                training_loop.boundary(run, position, self._content)

    @property
    def epochs_after(self) -> int:
        return self._epochs_before

    def _end(self, end: Callable[[], Any]) -> Callable[[], None] | None:
        """Take a snapshot of how this call ended; return a function that writes it, or None if that fails."""
        try:
            return checkpoint_files.take_end(self.job_dir, self.number, {"end": end(), "streams": rng_state.snapshot()})
        except Exception as error:  # noqa: BLE001 - any framework may fail in any way; the training is complete
            print_once(f"the result of this training could not be stored ({type(error).__name__}: {error})")
            return None

    def _content(self, folder: Path) -> dict[str, Any]:
        """Return this call's part of a checkpoint. Raises OSError, so that only the checkpoint is lost."""
        try:
            state = self.save(folder) if self.save is not None and not self._is_over else None
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self._framework} could not save its state: {type(error).__name__}: {error}") from error
        return {
            "number": self.number,
            "framework": self._framework,
            "is_over": self._is_over,
            "epochs_before": self._epochs_before,
            "first_step": self._first_step if not self._is_over else self._run.step,
            "state": state,
        }


class _Program:
    """The calls of this program so far."""

    calls = 0
    epochs = 0
    storing_s = _STORING_S
    is_inside = False
    stepwise: Call | None = None


def _outermost() -> Context | None:
    """Return the job's context if this call is to be observed: in the main thread, outside other frameworks' calls."""
    if _Program.is_inside or threading.current_thread() is not threading.main_thread():
        return None
    return current()


@contextmanager
def watching(framework: str, again: Call | None = None) -> Iterator[Call | None]:
    """Observe a framework's call that can only restart from its beginning. Yields None for a call to leave alone.

    `again`: the call that this one is a part of, for frameworks whose steps the program calls one by one.
    """
    context = _outermost()
    if context is None:
        yield None
        return
    if _Program.stepwise is not again:
        _finish_steps()
        _Program.stepwise = again
    with _inside():
        if again is not None:
            yield again
            return
        _look(context, framework)
        call = Call()
        try:
            yield call
        finally:
            call.finish()


def stepwise(framework: str) -> Call | None:
    """Return a call that spans many steps called by the program; None if they are to be left alone."""
    context = _outermost()
    if context is None:
        return None
    _finish_steps()
    _look(context, framework)
    _Program.stepwise = call = Call()
    context.at_end.append(call.finish)
    return call


def _look(context: Context, framework: str) -> None:
    """Report a training that uses a single learner, unless it is only a part of a network's training."""
    is_part = framework != "fastai" and not words_in(context.job_dir / "train.py").names.isdisjoint(_NETWORKS)
    if not independence_check.has_own_loop(context) and not is_part:
        independence_check.look(context, independence_check.alone(framework))


def _finish_steps() -> None:
    """Complete the observed steps before another training begins."""
    if _Program.stepwise is not None:
        _Program.stepwise.finish()
        _Program.stepwise = None


@contextmanager
def keeping(framework: str, *, is_whole: bool = True, alone: str | None = None) -> Iterator[Call | KeptCall | None]:
    """Observe a call that can halt and resume, if the job permits it. Yields None for a call to leave alone.

    `is_whole`: each learner holds the whole state, so that one learner can store it. `alone`: the report if the
    framework does not distribute the training.
    """
    context = _outermost()
    if context is None:
        yield None
        return
    _finish_steps()
    if alone is not None and not independence_check.has_own_loop(context):
        independence_check.look(context, alone)
    if not is_whole:
        independence_check.look_at_parts(context)
        if context.world_size > 1 and "call" in (run_of(context).internals.restored or ()):
            raise RuntimeError(
                f"{framework} cannot continue on several learners from the checkpoint of one learner; "
                "scale the job back to 1"
            )
    with _inside():
        if (context.world_size > 1 and not is_whole) or independence_check.has_own_loop(context):
            watched = Call()
            try:
                yield watched
            finally:
                watched.finish()
            return
        run = run_of(context).internals
        context.control.update_state(uses_run=True)
        training_loop.begin(run)
        if run.restored is not None and "call" not in run.restored:
            training_loop.reach(run)
        run.boundaries.is_between = False
        was_looping, run.is_looping = run.is_looping, True
        call = KeptCall(run, context, _Program.calls, framework, _Program.epochs)
        _Program.calls += 1
        try:
            yield call
        finally:
            run.is_looping = was_looping
            _Program.epochs = call.epochs_after
        run.boundaries.between()


@contextmanager
def _inside() -> Iterator[None]:
    _Program.is_inside = True
    try:
        with leading():
            yield
    finally:
        _Program.is_inside = False


def _shares(context: Context) -> tuple[int, int] | None:
    spec = context.spec
    is_elastic = spec.elastic is not Elastic.OFF and spec.learners_min < spec.learners_max
    return (context.rank, context.world_size) if is_elastic and context.world_size > 1 else None
