"""The object that `dlaas.run()` returns: the training program's interface to its job, inside and outside a job."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.learner.checkpoint import checkpoint_files, user_state
from jupyter_dlaas.learner.checkpoint.trained_steps import Trained
from jupyter_dlaas.learner.control.boundaries import Boundaries, Verdict
from jupyter_dlaas.learner.control.context import Context, Leave, current
from jupyter_dlaas.learner.control.throughput_report import Pacing
from jupyter_dlaas.learner.data.batch_policy import BadPolicy, Growth, growth_of
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.data.sample_reader import Bad
from jupyter_dlaas.learner.data.sharding import Share
from jupyter_dlaas.learner.data.sources import Reading, source_of
from jupyter_dlaas.learner.elastic.step_gate import Gate
from jupyter_dlaas.learner.environment.program_identifiers import words_in
from jupyter_dlaas.learner.environment.seeds import derive, seed_all
from jupyter_dlaas.learner.reporting.metrics import History, Metrics, number_of
from jupyter_dlaas.learner.reporting.progress import Meter
from jupyter_dlaas.learner.training_run import checkpoint_policy, checkpoint_state, divergence, independence_check
from jupyter_dlaas.learner.training_run.batches import Batches, numbered
from jupyter_dlaas.learner.training_run.size_request import learners_for
from jupyter_dlaas.runtime.system.process import uptime_s
from jupyter_dlaas.transfer import rng_state
from jupyter_dlaas.wire.codec import DlaasError, encode
from jupyter_dlaas.wire.learner_messages import SizeRequest

__all__ = ["Batches", "Run", "is_being_made", "run", "run_of"]


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


def is_being_made() -> bool:
    """Return whether this job's run is reading its checkpoint. Output handlers must not request the run meanwhile."""
    return bool(_making)


_runs: list[Run] = []
_making: list[Context] = []


class Run:
    """The position, state, logging and control of one training program. Created by `run()`."""

    def __init__(self, context: Context | None) -> None:
        self._context = context
        self.rank: int = context.rank if context else 0
        self.world_size: int = context.world_size if context else 1
        self.state: dict[str, Any] = {}
        """Values that every checkpoint includes: put here what a restart must know."""
        self._boundaries = Boundaries(context.control if context else None)
        self._objects: list[tuple[str, Any]] = []
        self._gang: Any = None
        self._gate = Gate()
        self._accumulated: Any = None
        """The gradients of the prepared models, in a gang whose membership may change."""
        self._exact: Any = None
        """The executor of steps in exact mode."""
        self._growth: Growth | None = None
        self._regrouping: Any = None
        self._is_joining = context is not None and context.is_joining
        """True until a joining learner has received the gang's state. Until then it rehearses, and no effect counts."""
        self._goes_back = False
        """True if this joining learner rehearsed in a later epoch than the one the gang is in."""
        self._moved: list[list[Any]] = []
        self._hooks: list[Callable[[], object]] = []
        self._gathers: list[Callable[[], object]] = []
        self._epoch = self._call = self._index = self._step = 0
        self._is_epoch_over, self._is_leaving = True, False
        self._seed = context.seed if context else derive(time.time_ns())
        self._resume: Position | None = None
        self._restored: dict[str, Any] | None = None
        self._has_begun = self._is_looping = self._saw_stop = False
        self._wants_checkpoint = self._has_kept = False
        self._counts_epochs = False
        self.names_logged: set[str] = set()
        """The metric names passed to `log` so far."""
        self._share = 1
        self._sums = False
        """True if the loss is a sum over samples."""
        self._base: user_state.Base = {}
        self._namespace: Any = None
        """The program's objects as they were when its loop over `epochs` or `batches` began."""
        self._restores_late = False
        """True if the checkpoint is restored when that loop begins, not before."""
        self._told: set[str] = set()
        self._trained = Trained()
        self._last_step_s: float | None = None
        self._saved_s = time.monotonic()
        self._passed_s = 0.0
        job_dir = context.job_dir if context else None
        self._meter = Meter(job_dir / "progress.json" if job_dir is not None and self.rank == 0 else None)
        if context is not None:
            self._meter.pacing = Pacing(context)
        step = checkpoint_state.load(self, context, []) if context and not self._is_joining else None
        self._metrics = Metrics(job_dir / "metrics.jsonl" if job_dir else None, step)
        if context is not None:
            self._counts_epochs = "batches" not in words_in(context.job_dir / "train.py").methods
            context.script.setdefault("enumerate", numbered)
            if self.rank == 0:
                self._metrics.open()
            context.before_results.append(self._gate.release)
            context.at_end.append(self._end)

    # -- identity -----------------------------------------------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        """True in exactly one learner of the gang: the one that should write files."""
        return self.rank == 0

    @property
    def step(self) -> int:
        """The number of steps that the job has begun, over all epochs, restarts and sizes."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch in progress."""
        return self._epoch

    @property
    def is_looping(self) -> bool:
        """True once the program has entered a loop over `epochs` or `batches`, which then define its position."""
        return self._is_looping

    @property
    def device(self) -> Any:
        """The device for tensors: a `torch.device` if torch is loaded, else its name."""
        torch = sys.modules.get("torch")
        if torch is None:
            return "cpu"
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    @property
    def output_dir(self) -> Path:
        """A directory for the program's own files. The job's card shows the pictures in it."""
        if self._context is not None:
            return self._context.output_dir
        folder = Path("dlaas-output")
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def history(self) -> History:
        """All logged metrics by name, as in `run.history["loss"]`. Includes values from before halts and restarts."""
        return self._metrics.history

    @property
    def should_stop(self) -> bool:
        """True once the job has to stop. Custom training loops check it and end by themselves."""
        self._begin()
        self._restore_early()
        self._saw_stop = self._saw_stop or self._boundaries.is_stopping
        return self._saw_stop

    def on_halt(self, fn: Callable[[], object]) -> Callable[[], object]:
        """Call `fn` before this learner stops, just before the checkpoint is written. Usable as a decorator."""
        self._hooks.append(fn)
        return fn

    def on_checkpoint(self, fn: Callable[[], object]) -> Callable[[], object]:
        """Call `fn` before each checkpoint, in all learners at once, so that it can gather sharded state.

        With several learners, no periodic checkpoint is written then: only when the job stops and where all learners
        call `checkpoint`.
        """
        self._gathers.append(fn)
        return fn

    def request_gpus(self, number: int) -> None:
        """Request another number of GPUs from within the program; training continues meanwhile.

        The request is equivalent to one made on the job's card: it holds until the next request and is granted as soon
        as enough GPUs are available. Make the same call in all learners. Does nothing outside a job. Raises NotAllowed.
        """
        if self._context is not None:
            learners = learners_for(self._context.spec, number)
            if self.rank == 0 and self._resume is None and not self._is_joining:
                self._context.control.update_state(size_request=SizeRequest(learners, self._step))

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
        if loss not in ("mean", "sum"):
            raise NotPreparable(f'run.prepare(loss={loss!r}): a loss is a "mean" over samples, or their "sum"')
        self._sums = loss == "sum"
        given = [one for one in (*objects, scheduler, scaler) if one is not None]
        for one in given:
            if not callable(getattr(one, "state_dict", None)) or not callable(getattr(one, "load_state_dict", None)):
                hint = (
                    "give data to run.batches(data, batch_size)" if hasattr(one, "__len__") else "it has no state_dict"
                )
                raise NotPreparable(f"run.prepare: a {type(one).__name__} cannot be prepared: {hint}")
        torch = sys.modules.get("torch")
        for one in given:
            self._objects.append((f"{len(self._objects)}:{type(one).__name__}", one))
            if torch is not None and isinstance(one, torch.nn.Module) and self.device.type != "cpu":
                one.to(self.device)
        if shards is not None or self._exact is not None:
            importlib.import_module("jupyter_dlaas.learner.exact.requirements").begin(self, shards, ddp, given)
        if not self._restores_late:
            checkpoint_state.put_back_objects(self)
        is_gang = torch is not None and (self.world_size > 1 or self._may_change())
        if is_gang:
            self._meet()
        if torch is not None and (is_gang or self._exact is not None):
            preparing = importlib.import_module("jupyter_dlaas.learner.training_run.preparation")
            preparing.prepare(self, self._objects[-len(given) :], scheduler, scaler, ddp or {})
        if torch is not None and self._context is not None and self._accumulated is None:
            module = importlib.import_module("jupyter_dlaas.learner.elastic.gradient_snapshot")
            self._accumulated = module.Accumulated(self._objects, lambda: self._step)
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
        if self._exact is None:
            raise DlaasError("run.train_step: ask for exact mode where it begins, run.prepare(model, opt, shards=8)")
        return self._exact.step(fn, batch, update, self._step)

    def _may_change(self) -> bool:
        """Return whether this gang's membership may change while it trains."""
        if self._context is None or not self._context.may_change:
            return False
        return self.device.type == "cpu" or bool(
            importlib.import_module("jupyter_dlaas.learner.elastic.nccl_group").is_able()
        )

    def _meet(self) -> None:
        if self._gang is not None:
            return
        module = importlib.import_module("jupyter_dlaas.learner.elastic.data_parallel")
        may_change = self._may_change()
        self._gang = gang = module.Gang(self.device, self.rank, self.world_size, self._gate, may_change=may_change)
        if self._context is not None:
            self._context.control.beats.collectives_started = gang.talks
        if may_change and self._context is not None:
            regrouping = importlib.import_module("jupyter_dlaas.learner.training_run.membership")
            self._regrouping = regrouping.Regrouping(self, self._context, gang)
            if self._is_joining:
                gang.enter(None, self.rank, 1)
            elif self.world_size > 1:
                gang.meet(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if not self._is_joining:
            gang.check_step(self._step)
        if self._exact is not None:
            self._exact.gang = gang
            if not self._is_joining:
                self._exact.share()

    # -- loops --------------------------------------------------------------------------------------------------------

    def epochs(self, number: int | None = None) -> Iterator[int]:
        """Iterate over the remaining epochs, counted from 0; a restart continues with the interrupted epoch."""
        if number is None:
            number = self._context.spec.epochs if self._context else None
        if number is None:
            raise DlaasError("run.epochs: say how many, run.epochs(30) or %%train --epochs 30")
        self._begin()
        checkpoint_state.begin_loop(self)
        self._meter.epochs = number
        if self._counts_epochs:
            independence_check.look_at_loop(self, parts=False)
        epoch = -1
        while (epoch := self._next_epoch(epoch)) < number:
            self._epoch, self._call, self._is_epoch_over = epoch, 0, False
            if self._counts_epochs:
                self._boundary(Position(epoch=epoch, step=self._step))
                self._reach()
                self._count()
            try:
                yield epoch
            except GeneratorExit:
                self._is_epoch_over = not self._is_leaving
                if line := divergence.left_at():
                    divergence.goes_on(self, line)
                raise
            self._is_epoch_over = True
            if not divergence.goes_on(self):
                return
            has_schedule = self._context is not None and bool(self._context.spec.schedule)
            self._meter.tell(epoch + 1, self._step, force=has_schedule)

    def _next_epoch(self, epoch: int) -> int:
        if self._goes_back and self._resume is not None:
            self._goes_back = False
            return self._resume.epoch
        return max(epoch + 1, self._first_epoch())

    def _first_epoch(self) -> int:
        if self._is_joining and self._context is not None:
            epoch = (read_json(self._context.job_dir / "progress.json") or {}).get("epoch")
            return epoch if isinstance(epoch, int) else 0
        return self._resume.epoch if self._resume else 0

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
        reading = Reading(skip_bad=skip_bad, is_exact=self._exact is not None)
        source = source_of(data, batch_size, shuffle=shuffle, drop_last=drop_last, options=options, reading=reading)
        growth = growth_of(batch, source.batch_size, max_batch, rate, warmup_steps)
        if growth is not None and source.groups is not None:
            raise BadPolicy('run.batches(batch="grow"): a batch sampler decides itself how large its batches are')
        if self._exact is not None:
            importlib.import_module("jupyter_dlaas.learner.exact.requirements").check_data(
                source, self._exact.shards, grows=growth is not None
            )
        return Batches(self, source, growth)

    def _weigh(self, share: Share | None, *, is_counted: bool = False, size: int = 0) -> None:
        """Set the weight of this learner's gradients in the next step. `is_counted`: some samples may be missing."""
        if self._growth is not None and share is not None:
            self._growth.begin(self._step, size)
        gang = self._gang
        if gang is None or self._exact is not None:
            self._share = share.count if share is not None else 1
        elif share is None:
            gang.weight = 1.0 / self.world_size
        else:
            self._share = share.count
            total = gang.total(share.count) if is_counted else share.total
            gang.weight = share.count / total if total else 0.0

    def _may_lose(self) -> bool:
        """Return whether other learners may be lost in the next step, so that the step would be repeated."""
        return self._gang is not None and self._gang.may_change and self.world_size > 1

    def _tell_bad(self, one: Bad) -> None:
        print(f"[sample {one.number} cannot be read and is left out: {one.why}]", flush=True)
        with (self.output_dir / "bad-samples.txt").open("a", encoding="utf-8") as file:
            print(one.number, one.why.replace("\n", " "), file=file)

    def _count(self, samples: int = 0, *, tells: bool = True) -> None:
        """Begin a step: values logged from now on belong to it."""
        self._step += 1
        self._trained.add(self._epoch, self._step - 1)
        if tells:
            self._meter.step(self._epoch, self._step, samples)

    def _uncount(self, samples: int) -> None:
        self._step -= 1
        self._trained.undo()
        self._meter.step(self._epoch, self._step, -samples)

    # -- boundaries ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin training: restore the checkpoint or seed this learner, and start to report progress. Runs once."""
        if self._has_begun:
            return
        self._has_begun = True
        context = self._context
        if context is None:
            return
        if not independence_check.has_own_loop(context):
            self._base = user_state.base(context.script)
        if self.world_size > 1 and "torch" in sys.modules and self._objects:
            self._meet()
        if self._is_joining:
            return
        if self._resume is None:
            if self.rank and self._exact is None:
                seed_all(derive(self._seed, self._step, self.rank))
        elif self._restored is not None and "call" not in self._restored and not self._restores_late:
            # (A checkpoint from a framework's own loop is restored there: the code before it runs again with its own
            # values.)
            checkpoint_state.put_back(self, reverts=False)
        self._boundaries.begin()
        self._saved_s = time.monotonic()
        if self._restored is None or ("call" not in self._restored and not self._restores_late):
            self._tell_begin()

    def _tell_begin(self) -> None:
        """Report the step from which this learner trains, once its checkpoint is restored: an earlier one may serve."""
        if self._context is not None:
            self._context.control.update_state(step=self._step, up_s=uptime_s())

    def _restore_early(self) -> None:
        """Restore the checkpoint now: a custom loop has no position at which to wait for it."""
        if self._restores_late and self._namespace is None:
            self._restores_late = False
            checkpoint_state.put_back(self, reverts=False)
            self._tell_begin()

    def _boundary(self, position: Position, add: checkpoint_policy.Add | None = None) -> Position:
        """Stop, change the gang's membership or write a checkpoint, if due. Called between two steps.

        Returns `position` itself, or the position at which this learner continues with the other learners' state.
        """
        self._is_looping = True
        arrived_s = time.monotonic()
        found: Position | None
        live = self._regrouping
        while (verdict := live.ask(position.step) if live else self._boundaries.ask()) is Verdict.SWITCH:
            found = live.change(position, arrived_s)
            if found is not None and found is not position:
                return found
        if verdict is Verdict.STOP:
            self._last_step_s = uptime_s()
            for hook in (*self._hooks, *self._gathers):
                hook()
            if self.rank == 0 and (self._trained or self._resume is None):
                checkpoint_policy.save(self, position, add)
            checkpoint_files.settle()
            self._is_leaving = True
            raise Leave("told")
        self._passed_s = arrived_s
        if self._resume is None and checkpoint_policy.is_due(self):
            for hook in self._gathers:
                hook()
            self._wants_checkpoint = False
            if self.rank == 0:
                checkpoint_policy.save(self, position, add)
        return position

    def _reach(self) -> None:
        """Restore the checkpoint's state when the program reaches the position at which it was taken."""
        if self._resume is None:
            return
        self._resume = None
        assert self._restored is not None
        if "call" in self._restored:
            checkpoint_state.put_back_values(self)
        else:
            checkpoint_state.put_back(self, reverts=True)  # the code before this position has run a second time
        checkpoint_state.put_back_step(self, self._restored)
        if self.rank == 0 or self._exact is not None:
            rng_state.put_back(self._restored["streams"])
        else:
            seed_all(derive(self._seed, self._step, self.rank))
        if "call" in self._restored:  # the code before it only led to this position
            self._tell_begin()
        self._restored = None

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write a checkpoint at the next step boundary of a loop over `epochs` or `batches`; outside such a loop, now.

        Outside a job, it is written to `dlaas-checkpoints/` in the working directory.
        """
        self._begin()
        self._restore_early()
        if self._is_looping:
            self._wants_checkpoint = True
            self._boundaries.call_up()
            return
        for hook in self._gathers:
            hook()
        if self.rank == 0:
            checkpoint_policy.save(self, Position(epoch=self._epoch, step=self._step))
            checkpoint_files.settle()

    # -- metrics ------------------------------------------------------------------------------------------------------

    def log(self, *, reduce: str | None = None, **metrics: Any) -> dict[str, float]:
        """Log numbers, including tensors of one element.

        Rank 0's values are logged, or with `reduce="mean"` the mean over all samples. Returns the logged numbers. Means
        are identical in all learners, so all learners can base the same decision on them.
        """
        self._begin()
        divergence.check(self)
        if reduce not in (None, "mean"):
            raise DlaasError(f'run.log(reduce={reduce!r}): there is only reduce="mean"')
        found = {name: number_of(name, value) for name, value in metrics.items()}
        if reduce == "mean" and self.world_size > 1:
            self._meet()
            means: Sequence[float] = self._gang.mean(list(found.values()), float(self._share))
            found = dict(zip(found, means, strict=True))
        self.names_logged.update(found)
        self.record(found, step=self._step, epoch=self._epoch, source="run")
        return found

    def record(self, found: dict[str, float], *, step: int, epoch: int, source: str) -> None:
        """Add numbers to the metrics; called by `log`, and by log capture for numbers found in output."""
        # Drop numbers on the way to a checkpoint's position: the same lines logged them in the first run. Drop those of
        # a failed step, too: its repetition logs them.
        if self._resume is None and not self._is_joining and not self._gate.is_torn:
            self._metrics.log(found, step=step, epoch=epoch, source=source)

    def in_one_piece(self) -> AbstractContextManager[None]:
        """Return a context in which added metrics are written together."""
        return self._metrics.together()

    def show(self, epoch: int, epochs: int | None, step: int | None, steps: int | None, fraction: float | None) -> None:
        """Show progress that log capture found, unless this run's own loops report it."""
        if not self._is_looping:
            self._meter.show(epoch, epochs, step or 0, steps, fraction)

    def _end(self) -> dict[str, Any]:
        """Return this run's part of result.json."""
        checkpoint_files.settle()
        self._metrics.flush()
        if self._meter.has_shown:
            self._meter.tell_last()
        elif self._has_begun:
            self._meter.tell(self._epoch + self._is_epoch_over, self._step, force=True)
        found: dict[str, Any] = {"step": self._step, "up_s": self._last_step_s or uptime_s()}
        if self.rank == 0:
            found["trained"] = [encode(one) for one in self._trained]
        if self._saw_stop:
            found["saw_stop"] = True
        return found
