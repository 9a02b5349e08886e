"""The object that `dlaas.run()` returns: the training program's interface to its job, inside and outside a job."""

from __future__ import annotations

import importlib
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.control.boundaries import Boundaries
from jupyter_dlaas.learner.control.context import Context, current
from jupyter_dlaas.learner.control.throughput_report import Pacing
from jupyter_dlaas.learner.data.batch_policy import BadPolicy, growth_of
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.data.sources import Reading, source_of
from jupyter_dlaas.learner.environment.program_identifiers import words_in
from jupyter_dlaas.learner.environment.seeds import derive
from jupyter_dlaas.learner.reporting.metrics import History, Metrics, number_of
from jupyter_dlaas.learner.reporting.progress import Meter
from jupyter_dlaas.learner.training_run import (
    checkpoint_policy,
    checkpoint_state,
    divergence,
    independence_check,
    training_loop,
)
from jupyter_dlaas.learner.training_run.batches import Batches
from jupyter_dlaas.learner.training_run.loop_builtins import numbered, paired
from jupyter_dlaas.learner.training_run.size_request import learners_for
from jupyter_dlaas.learner.training_run.state import RunState
from jupyter_dlaas.runtime.system.process import uptime_s
from jupyter_dlaas.wire.codec import DlaasError, encode
from jupyter_dlaas.wire.learner_messages import SizeRequest

__all__ = ["Batches", "Run", "existing_run", "is_being_made", "run", "run_of"]


class NotPreparable(DlaasError):
    """An object given to `run.prepare` that has no state to checkpoint."""

    code = "not_preparable"


def run() -> Run:
    """Return this program's run.

    Inside a job, every call returns the same object. Outside a job, each call creates a run with one learner.
    """
    context = current()
    if context is None:
        return Run(None)
    one = run_of(context)
    context.control.update_state(uses_run=True)
    return one


def run_of(context: Context) -> Run:
    """Return this job's run; create it on first use, even if the program never calls `run()`."""
    if not _runs:
        _making.append(context)
        try:
            _runs.append(Run(context))
        finally:
            _making.clear()
    return _runs[0]


def existing_run() -> Run | None:
    """Return this job's run if it was created already."""
    return _runs[0] if _runs else None


def is_being_made() -> bool:
    """Return whether this job's run is reading its checkpoint. Output handlers must not request the run meanwhile."""
    return bool(_making)


_runs: list[Run] = []
_making: list[Context] = []


class Run:
    """The position, state, logging and control of one training program. Created by `run()`."""

    def __init__(self, context: Context | None) -> None:
        rank, job_dir = (context.rank, context.job_dir) if context else (0, None)
        self.internals = RunState(
            context=context,
            rank=rank,
            world_size=context.world_size if context else 1,
            seed=context.seed if context else derive(time.time_ns()),
            is_joining=context is not None and context.is_joining,
            boundaries=Boundaries(context.control if context else None),
            meter=Meter(job_dir / "progress.json" if job_dir is not None and rank == 0 else None),
            metrics=Metrics(None, None),
        )
        """State for the other modules of this package. Programs use the members below."""
        self.names_logged: set[str] = set()
        """The metric names passed to `log` so far."""
        state = self.internals
        if context is None:
            return
        state.meter.pacing = Pacing(context)
        step = None if state.is_joining else checkpoint_state.load(state, context, [])
        state.metrics = Metrics(context.job_dir / "metrics.jsonl", step)
        state.counts_epochs = "batches" not in words_in(context.job_dir / "train.py").methods
        for name, replacement in (("enumerate", numbered), ("zip", paired)):
            context.script.setdefault(name, replacement)
        if rank == 0:
            state.metrics.open()
        context.before_results.append(state.gate.release)
        context.at_end.append(self._end)

    # -- identity -----------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of this learner in the gang, from 0."""
        return self.internals.rank

    @property
    def world_size(self) -> int:
        """The number of learners that train together now."""
        return self.internals.world_size

    @property
    def state(self) -> dict[str, Any]:
        """Values that every checkpoint includes: put here what a restart must know."""
        return self.internals.user_values

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        self.internals.user_values = values

    @property
    def is_main(self) -> bool:
        """True in exactly one learner of the gang: the one that should write files."""
        return self.rank == 0

    @property
    def step(self) -> int:
        """The number of steps that the job has begun, over all epochs, restarts and sizes."""
        return self.internals.step

    @property
    def epoch(self) -> int:
        """The epoch in progress."""
        return self.internals.epoch

    @property
    def is_looping(self) -> bool:
        """True once the program has entered a loop over `epochs` or `batches`, which then define its position."""
        return self.internals.is_looping

    @property
    def device(self) -> Any:
        """The device for tensors: a `torch.device` if torch is loaded, else its name."""
        return self.internals.device

    @property
    def output_dir(self) -> Path:
        """A directory for the program's own files. The job's card shows the pictures in it."""
        return self.internals.output_dir

    @property
    def history(self) -> History:
        """All logged metrics by name, as in `run.history["loss"]`. Includes values from before halts and restarts."""
        return self.internals.metrics.history

    @property
    def should_stop(self) -> bool:
        """True once the job has to stop. Custom training loops check it and end by themselves."""
        state = self.internals
        training_loop.begin(state)
        training_loop.restore_early(state)
        state.saw_stop = state.saw_stop or state.boundaries.is_stopping
        return state.saw_stop

    def on_halt(self, fn: Callable[[], object]) -> Callable[[], object]:
        """Call `fn` before this learner stops, just before the checkpoint is written. Usable as a decorator."""
        self.internals.halt_hooks.append(fn)
        return fn

    def on_checkpoint(self, fn: Callable[[], object]) -> Callable[[], object]:
        """Call `fn` before each checkpoint, in all learners at once, so that it can gather sharded state.

        With several learners, no periodic checkpoint is written then: only when the job stops and where all learners
        call `checkpoint`.
        """
        self.internals.checkpoint_hooks.append(fn)
        return fn

    def request_gpus(self, number: int) -> None:
        """Request another number of GPUs from within the program; training continues meanwhile.

        The request is equivalent to one made on the job's card: it holds until the next request and is granted as soon
        as enough GPUs are available. Make the same call in all learners. Does nothing outside a job. Raises NotAllowed.
        """
        state = self.internals
        if state.context is not None:
            learners = learners_for(state.context.spec, number)
            if self.rank == 0 and state.counts:
                state.context.control.update_state(size_request=SizeRequest(learners, state.step))

    # -- objects ------------------------------------------------------------------------------------------------------

    def prepare(
        self,
        *objects: Any,
        scheduler: Any = None,
        scaler: Any = None,
        ddp: dict[str, Any] | None = None,
        shards: int | None = None,
        loss: str = "mean",
    ) -> Any:
        """Prepare models, optimisers and other objects for any number of learners, and return them.

        Every checkpoint includes their state, and a restart restores it. If `scheduler` and `scaler` are given, they
        are returned after the other objects. `ddp`: options for torch's DistributedDataParallel (find_unused_parameters
        …). `loss="sum"`: the loss is a sum over samples (reduction="sum"), so gradients are summed over learners, too.
        `shards`: exact mode, see `train_step`. Raises NotPreparable, NotShareable, NotExact.
        """
        state = self.internals
        if loss not in ("mean", "sum"):
            raise NotPreparable(f'run.prepare: loss must be "mean" or "sum", not {loss!r}')
        state.loss_is_sum = loss == "sum"
        given = [one for one in (*objects, scheduler, scaler) if one is not None]
        for one in given:
            if not callable(getattr(one, "state_dict", None)) or not callable(getattr(one, "load_state_dict", None)):
                hint = (
                    "give data to run.batches(data, batch_size)" if hasattr(one, "__len__") else "it has no state_dict"
                )
                raise NotPreparable(f"run.prepare: a {type(one).__name__} cannot be prepared: {hint}")
        torch = sys.modules.get("torch")
        for one in given:
            state.objects.append((f"{len(state.objects)}:{type(one).__name__}", one))
            if torch is not None and isinstance(one, torch.nn.Module) and self.device.type != "cpu":
                one.to(self.device)
        if shards is not None or state.exact is not None:
            importlib.import_module("jupyter_dlaas.learner.exact.requirements").begin(state, shards, ddp, given)
        if not state.restores_late:
            checkpoint_state.put_back_objects(state)
        is_gang = torch is not None and (self.world_size > 1 or training_loop.may_change(state))
        if is_gang:
            training_loop.form_gang(state)
        if torch is not None and (is_gang or state.exact is not None):
            preparing = importlib.import_module("jupyter_dlaas.learner.training_run.preparation")
            preparing.prepare(state, state.objects[-len(given) :], scheduler, scaler, ddp or {})
        if torch is not None and state.context is not None and state.accumulated is None:
            module = importlib.import_module("jupyter_dlaas.learner.elastic.gradient_snapshot")
            state.accumulated = module.Accumulated(state.objects, lambda: state.step)
        return given[0] if len(given) == 1 else tuple(given)

    def train_step(self, fn: Callable[[Any], Any], batch: Any, update: Callable[[], object] | None = None) -> Any:
        """Run one step in exact mode: bitwise identical weights for any number of learners, whatever happens.

        `model, opt = run.prepare(model, opt, shards=8)` splits each batch into 8 shards. `for batch in run.batches(…)`
        then yields this learner's shards. `fn(part)` returns the mean loss over one shard as a tensor, before its
        backward pass. Gradients and BatchNorm statistics are averaged over all shards, then `update()` is called.
        By default each prepared optimiser steps. For gradient clipping, pass
        `update=lambda: (clip_grad_norm_(model.parameters(), 1.0), opt.step())`.

        Returns the mean loss over the batch. BatchNorm normalises each shard by itself. More learners than shards bring
        no speed-up. Exactness holds for one type of device and one version of PyTorch, with one thread per learner.
        Raises NotExact.
        """
        if self.internals.exact is None:
            raise DlaasError("run.train_step requires exact mode: run.prepare(model, opt, shards=8)")
        return self.internals.exact.step(fn, batch, update, self.internals.step)

    # -- loops --------------------------------------------------------------------------------------------------------

    def epochs(self, number: int | None = None) -> Iterator[int]:
        """Iterate over the remaining epochs, counted from 0; a restart continues with the interrupted epoch."""
        iterator = self._epochs(number)
        self.internals.epochs = weakref.ref(iterator)
        return iterator

    def _epochs(self, number: int | None) -> Generator[int]:
        state = self.internals
        iterator = state.epochs
        if number is None:
            number = state.context.spec.epochs if state.context else None
        if number is None:
            raise DlaasError("run.epochs needs the number of epochs: run.epochs(30) or %%train --epochs 30")
        training_loop.begin(state)
        checkpoint_state.begin_loop(state)
        checkpoint_state.report_surrounding(state, iterator(), item="epoch", loop="run.epochs(…)")
        state.meter.epochs = number
        if state.counts_epochs:
            independence_check.look_at_loop(state, parts=False)
        epoch = -1
        while (epoch := self._next_epoch(epoch)) < number:
            state.epoch, state.call, state.is_epoch_over = epoch, 0, False
            if state.counts_epochs:
                training_loop.boundary(state, Position(epoch=epoch, step=state.step))
                training_loop.reach(state)
                training_loop.count(state)
            elif state.namespace is not None:
                state.namespace.begin_epoch()
            try:
                yield epoch
            except GeneratorExit:
                state.is_epoch_over = not state.is_leaving
                if line := divergence.left_at():
                    divergence.goes_on(state, line)
                raise
            state.is_epoch_over = True
            if not divergence.goes_on(state):
                return
            has_schedule = state.context is not None and bool(state.context.spec.schedule)
            state.meter.tell(epoch + 1, state.step, force=has_schedule or epoch + 1 >= number)

    def _next_epoch(self, epoch: int) -> int:
        state = self.internals
        if state.goes_back and state.resume is not None:
            state.goes_back = False
            return state.resume.epoch
        return max(epoch + 1, self._first_epoch())

    def _first_epoch(self) -> int:
        state = self.internals
        if state.is_joining and state.context is not None:
            epoch = (read_json(state.context.job_dir / "progress.json") or {}).get("epoch")
            return epoch if isinstance(epoch, int) else 0
        return state.resume.epoch if state.resume else 0

    def batches(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        skip_bad: bool = False,
        batch: str = "fixed",
        max_batch: int | None = None,
        rate: str | None = None,
        warmup_steps: int = 100,
        **options: Any,
    ) -> Batches:
        """Return one pass over the data, with each sample once, however often the number of learners changes.

        `data`: a dataset, a DataLoader (its dataset, batch size, collate function, workers and shuffling are used), a
        tensor or array, or a tuple of these. Every learner reads an IterableDataset completely and trains on its share.
        `batch_size` is the total over all learners, so that the size of the gang does not affect the training. With
        `batch="grow"` it is the size per learner: the batch grows with the gang up to `max_batch`, and learning rates
        are scaled by `rate` ("linear" over `warmup_steps`, "sqrt", "adascale", "none").

        `skip_bad`: skip and list samples that raise an exception when they are read. Further options are passed to
        torch's DataLoader. Raises BadData, BadPolicy, NotExact.
        """
        state = self.internals
        reading = Reading(skip_bad=skip_bad, is_exact=state.exact is not None)
        source = source_of(data, batch_size, shuffle=shuffle, drop_last=drop_last, options=options, reading=reading)
        growth = growth_of(batch, source.batch_size, max_batch, rate, warmup_steps)
        if growth is not None and source.groups is not None:
            raise BadPolicy('run.batches(batch="grow"): a batch sampler determines the sizes of its batches itself')
        if state.exact is not None:
            importlib.import_module("jupyter_dlaas.learner.exact.requirements").check_data(
                source, state.exact.shards, grows=growth is not None
            )
        return Batches(state, source, growth)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write a checkpoint at the next step boundary of a loop over `epochs` or `batches`; outside such a loop, now.

        Outside a job, it is written to `dlaas-checkpoints/` in the working directory.
        """
        state = self.internals
        training_loop.begin(state)
        training_loop.restore_early(state)
        if state.is_looping:
            state.wants_checkpoint = True
            state.boundaries.call_up()
            return
        for hook in state.checkpoint_hooks:
            hook()
        if self.rank == 0:
            checkpoint_policy.save(state, Position(epoch=state.epoch, step=state.step))
            checkpoint_files.settle()

    # -- metrics ------------------------------------------------------------------------------------------------------

    def log(self, *, reduce: str | None = None, **metrics: Any) -> dict[str, float]:
        """Log numbers, including tensors of one element.

        Rank 0's values are logged, or with `reduce="mean"` the mean over all samples. Returns the logged numbers. Means
        are identical in all learners, so all learners can base the same decision on them.
        """
        state = self.internals
        training_loop.begin(state)
        divergence.check(state)
        if reduce not in (None, "mean"):
            raise DlaasError(f'run.log: reduce must be "mean" or None, not {reduce!r}')
        found = {name: number_of(name, value) for name, value in metrics.items()}
        if reduce == "mean" and self.world_size > 1:
            training_loop.form_gang(state)
            means: Sequence[float] = state.gang.mean(list(found.values()), float(state.share))
            found = dict(zip(found, means, strict=True))
        self.names_logged.update(found)
        self.record(found, step=state.step, epoch=state.epoch, source="run")
        return found

    def record(self, found: dict[str, float], *, step: int, epoch: int, source: str, at_s: float | None = None) -> None:
        """Add numbers to the metrics; called by `log`, and by log capture for numbers found in output.

        `at_s` is their time in seconds of the system clock; None: now.
        """
        # Drop numbers on the way to a checkpoint's position: the same lines logged them in the first run. Drop those of
        # a failed step, too: its repetition logs them.
        if self.internals.counts and not self.internals.gate.is_torn:
            self.internals.metrics.log(found, step=step, epoch=epoch, source=source, at_s=at_s)

    def in_one_piece(self) -> AbstractContextManager[None]:
        """Return a context in which added metrics are written together."""
        return self.internals.metrics.together()

    def show(self, epoch: int, epochs: int | None, step: int | None, steps: int | None, fraction: float | None) -> None:
        """Show progress that log capture found, unless this run's own loops report it."""
        if not self.internals.is_looping:
            self.internals.meter.show(epoch, epochs, step or 0, steps, fraction)

    def _end(self) -> dict[str, Any]:
        """Return this run's part of result.json."""
        state = self.internals
        checkpoint_files.settle()
        state.metrics.flush()
        if state.meter.has_shown:
            state.meter.tell_last()
        elif state.has_begun:
            state.meter.tell(state.epoch + state.is_epoch_over, state.step, force=True)
        found: dict[str, Any] = {"step": state.step, "up_s": state.last_step_s or uptime_s()}
        if self.rank == 0:
            found["trained"] = [encode(one) for one in state.trained]
        if state.saw_stop:
            found["saw_stop"] = True
        return found
