"""Lightning: a hook into `Trainer.fit`, as `lightning.pytorch` and as `pytorch_lightning`. Halts at a batch.

Lightning's own checkpoint holds weights, optimisers, schedulers, callbacks and loops. It restarts the epoch's data and
loses sums accumulated in the epoch. So the order of samples is drawn again from the random state at the beginning of
the epoch, batches that were trained already are read and dropped, and we store the sums.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from jupyter_dlaas.learner.autolog.batch_share import Shares
from jupyter_dlaas.learner.autolog.deferred import held
from jupyter_dlaas.learner.autolog.fit_calls import Call, KeptCall, keeping, watching
from jupyter_dlaas.learner.autolog.lightning_sums import (
    add_sums_of_others,
    optional,
    put_back_sums,
    report_once,
    sums_of,
    write_own_sums,
)
from jupyter_dlaas.learner.autolog.safe_callbacks import attempt, guarded, made_of
from jupyter_dlaas.learner.checkpoint import checkpoint_files, user_state
from jupyter_dlaas.learner.training_run.independence_check import alone
from jupyter_dlaas.transfer import rng_state

__all__ = ["hook"]

_FILE: Final = "lightning.ckpt"
_SINGLE: Final = "SingleDeviceStrategy"
_INSTEAD: Final = (
    'Trainer(strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"])) trains one model on all the CPU slots. '
)
_ALONE: Final = alone("This Trainer", instead=_INSTEAD)
_WHOLE: Final = frozenset({_SINGLE, "DDPStrategy"})
"""Strategies in which each learner holds the whole model, including subclasses …"""
_PARTED: Final = frozenset({"DeepSpeedStrategy"})
"""… except these."""
_USUAL_WRITERS: Final = ("Strategy.save_checkpoint", "TorchCheckpointIO")
_NEEDED: Final = (
    *("_checkpoint_connector.dump_checkpoint", "fit_loop._data_fetcher", "fit_loop.epoch_progress.current.processed"),
    *("fit_loop.epoch_loop.batch_progress.current.ready", "fit_loop.epoch_loop.batch_progress.total.processed"),
)
"""Private names without which a training cannot halt at a batch."""
_UNKNOWN_RELEASE: Final = (
    "This release of Lightning cannot be halted at a batch: after a halt or a move, the training starts again from its "
    "first step. To resume at a batch, install an earlier release: pip install 'lightning<2.7'"
)
_NONE: Final[dict[str, Any]] = {}
_SUMS_LOST: Final = "after a halt, averages of the interrupted epoch lack its first batches"
_METRICS_LOST: Final = "after a halt, trainer.callback_metrics is empty until the end of the epoch"
_STEPS_LOST: Final = "after a halt, the steps of metrics in the logger start from zero"
_CURVES_LOST: Final = "the card shows no curves of logged metrics"
_SHARES_LOST: Final = "each learner reads whole batches of its own, so that a step has the samples of all of them"
_RUN_LOST: Final = "a completed training may train again when the job restarts"
_UNUSED: Final = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""Lightning calls every hook that is callable, each in a profiler context, at each step."""


def hook(module: Any) -> None:
    """Wrap Trainer.fit."""
    package = module.__name__.removesuffix(".trainer.trainer")
    trainer_class = module.Trainer
    original = trainer_class.fit
    signature = inspect.signature(original)
    fetchers = sys.modules.get(f"{package}.loops.fetchers")
    can_fetch = _has(fetchers, "_DataFetcher.__iter__", "_PrefetchDataFetcher.__next__")
    if can_fetch:
        _wrap_fetchers(fetchers)
    watch_class = made_of(_Watch, sys.modules[f"{package}.callbacks"].Callback)
    for name in _UNUSED:
        setattr(watch_class, name, None)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = {kind.__name__ for kind in type(self.strategy).__mro__}
        is_whole = bool(kinds & _WHOLE) and not kinds & _PARTED
        if can_fetch and _has(self, *_NEEDED):
            mode: Any = keeping("lightning", is_whole=is_whole, alone=_ALONE if _SINGLE in kinds else None)
        else:
            report_once("release", _UNKNOWN_RELEASE)
            mode = watching("lightning")
        with mode as call:
            if call is None:
                return original(self, *args, **kwargs)
            bound = attempt(lambda: signature.bind(self, *args, **kwargs))
            watch = attempt(lambda: watch_class(call, self, bound.arguments["model"])) if bound is not None else None
            if watch is None:
                return original(self, *args, **kwargs)
            if not isinstance(call, KeptCall):
                with watch.among():
                    return original(*bound.args, **bound.kwargs)
            if call.end is not None:
                return _again(original, bound, call, watch)
            call.save = watch.state
            if call.folder is not None:
                _start_from(call.folder / _FILE, bound, call.state["folders"])
            with watch.among():
                result = original(*bound.args, **bound.kwargs)
            call.close(watch.end, self.current_epoch - watch.first)
            return result

    trainer_class.fit = fit


def _has(owner: Any, *paths: str) -> bool:
    """Return whether an object has all attributes with these paths."""
    for path in paths:
        found = owner
        for name in path.split("."):
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
    return True


def _connected(trainer: Any, kind: str) -> dict[str, Any]:
    """Return the logged metrics of one kind."""
    return optional("metrics", _CURVES_LOST, lambda: dict(trainer._logger_connector.metrics[kind]), dict(_NONE))


def _callback_metrics(trainer: Any) -> dict[str, Any]:
    """Return the values of `trainer.callback_metrics`.

    Several learners would compute them together; one alone uses those already computed.
    """
    return dict(trainer._logger_connector._callback_metrics if trainer.world_size > 1 else trainer.callback_metrics)


def _start_from(path: Path, bound: inspect.BoundArguments, folders: list[Any]) -> None:
    """Let fit resume from a file. Its checkpoint callbacks keep their directories, so that they find their files."""
    bound.arguments["ckpt_path"] = str(path)
    if "weights_only" in bound.signature.parameters:
        bound.arguments["weights_only"] = False  # the job's own, verified file
    for one, folder in zip(bound.arguments["self"].checkpoint_callbacks, folders, strict=False):
        if one.dirpath is None:
            one.dirpath = folder


def _again(original: Callable[..., Any], bound: inspect.BoundArguments, call: KeptCall, watch: Any) -> None:
    """Restore a completed call: set everything up as it did, train nothing, and restore its end."""
    trainer, end = watch.trainer, call.end["end"]
    path = watch.temporary()
    path.write_bytes(end["checkpoint"])
    _start_from(path, bound, end["folders"])
    optional("_run_stage", _RUN_LOST, lambda: trainer._run_stage, None)
    trainer._run_stage = lambda: None
    try:
        original(*bound.args, **bound.kwargs)
    finally:
        del trainer._run_stage
        path.unlink()
    trainer.fit_loop.restarting = False
    trainer.should_stop = end["should_stop"]
    watch.put_back_metrics(end["metrics"])
    watch.put_back_held(end)
    call.close(watch.end, 0)


class _Watch:
    """The callback."""

    def __init__(self, call: Call, trainer: Any, model: Any) -> None:
        super().__init__()
        self.call = call
        self.trainer = trainer
        self.module = model
        self.first = int(trainer.current_epoch)
        self.epoch = self.index = 0
        self.counts_when_read = self.names_loss = False
        self.known: set[str] = set()
        """Metrics seen when they were computed; others are logged in hooks that run after ours."""
        self.late: set[str] = set()
        self.logged_at: dict[str, int] = {}
        """The step of the last recorded point of each metric."""
        self.streams: Any = None
        self.generators: list[Any] = []
        self.pending_sums: dict[str, Any] = {}
        """Restored sums of metrics that the program has not logged again in the epoch in which it was resumed."""

    @contextmanager
    def among(self) -> Iterator[None]:
        """Add this callback to the trainer during the call."""
        self.trainer.callbacks.append(self)
        _active.append(self)
        hooks = self.call.halt_hooks if isinstance(self.call, KeptCall) else []
        hooks.append(self._write_sums)
        try:
            with _shared_out(self.trainer, self.call):
                yield
        finally:
            hooks.remove(self._write_sums)
            _active.remove(self)
            self.trainer.callbacks.remove(self)

    # -- called by Lightning

    @guarded
    def on_train_start(self, trainer: Any, module: Any) -> None:
        epochs, batches = trainer.max_epochs, trainer.num_training_batches
        per_epoch = int(batches) if batches != float("inf") else None
        most = trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None
        most = most * trainer.accumulate_grad_batches if most else None
        left = epochs - self.first if epochs and epochs > 0 else None
        if most and per_epoch and (left is None or most < left * per_epoch):
            left = -(-most // per_epoch)
        else:
            most = None
        self.call.expect(left, per_epoch=per_epoch, steps=most)

    @guarded
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._log_late(trainer)
        self.call.at(trainer.current_epoch - self.first, self._done(trainer))

    @guarded
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        epoch = trainer.current_epoch - self.first
        if isinstance(self.call, KeptCall):
            self.call.step(epoch, batch_idx)
        else:
            self.call.at(epoch, self._done(trainer))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if monotonic() >= self.call.due_s:
            self._point(trainer, outputs)

    @guarded
    def _point(self, trainer: Any, outputs: Any) -> None:
        if not self.call.is_time_for_point():
            return
        found = _connected(trainer, "log")
        self.known.update(found)
        if any("loss" in name for name in found):
            if self.counts_when_read and isinstance(self.call, KeptCall):
                self.names_loss = True  # from now on, read numbers before the next batch
                vars(self)["on_train_batch_end"] = None
        elif isinstance(outputs, dict):
            found["batch_loss"] = outputs.get("loss")
        self._log(found, trainer)

    @guarded
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self._log_epoch(trainer)

    @guarded
    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.pending_sums.clear()  # a metric that is logged in the next epoch begins at zero
        self._log_epoch(trainer)
        if self.call.is_time_for_point():  # short epochs have no point among their batches
            self._log_last(trainer)

    @guarded
    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._log_late(trainer)
        self._log_last(trainer)

    def _log_last(self, trainer: Any) -> None:
        """Log the newest values of metrics that have no point at the current step."""
        done, found = self._done(trainer), _callback_metrics(trainer)
        self._log({name: found[name] for name, at in self.logged_at.items() if at < done and name in found}, trainer)

    def _log_epoch(self, trainer: Any) -> None:
        found = _connected(trainer, "callback")
        self.known.update(found)
        self._log(found, trainer)

    def _log_late(self, trainer: Any) -> None:
        found = dict(trainer.callback_metrics)
        self.late.update(set(found) - self.known)
        self._log({name: found[name] for name in self.late if name in found}, trainer)

    def _log(self, found: dict[str, Any], trainer: Any) -> None:
        if found:
            done = self._done(trainer)
            self.logged_at.update(dict.fromkeys(found, done))
            self.call.log(found, epoch=trainer.current_epoch - self.first, step=done)

    def _done(self, trainer: Any) -> int:
        return int(trainer.fit_loop.epoch_loop.batch_progress.total.processed)

    # -- checkpoint content

    def state(self, folder: Path) -> dict[str, Any]:
        _write(self.trainer, folder / _FILE)
        loop = self.trainer.fit_loop.epoch_loop
        return {
            "first": self.first,
            "index": self.index,
            "streams": self.streams,
            "generators": self.generators,
            "sums": self._sums(),
            "learners": self.trainer.world_size,
            "at": self._at(),
            "stepped": optional("_batches_that_stepped", _STEPS_LOST, lambda: loop._batches_that_stepped, None),
            **self._kept(),
        }

    def _sums(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"logged": {}, "metrics": {}}
        return optional("_results", _SUMS_LOST, lambda: sums_of(self.trainer, self.module, self.pending_sums), empty)

    def _at(self) -> tuple[int, ...]:
        return self.epoch, self.index, self._done(self.trainer)

    def _write_sums(self) -> None:
        """Write this learner's sums when all learners stop at the same boundary."""
        if isinstance(self.call, KeptCall) and self.trainer.world_size > 1 and self.index:
            rank = int(self.trainer.global_rank)
            write_own_sums(self.call.job_dir, self.call.number, rank, self._at(), self._sums())

    def end(self) -> dict[str, Any]:
        path = self.temporary()
        try:
            _write(self.trainer, path)
            checkpoint = path.read_bytes()
        finally:
            path.unlink(missing_ok=True)
        return {"checkpoint": checkpoint, "should_stop": self.trainer.should_stop, **self._kept()}

    def _kept(self) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "metrics": optional("_callback_metrics", _METRICS_LOST, lambda: _callback_metrics(trainer), _NONE),
            "folders": [one.dirpath for one in trainer.checkpoint_callbacks],
            "held": [_own(one) for one in self._holders()],
        }

    def _holders(self) -> list[Any]:
        return [self.module, *(one for one in self.trainer.callbacks if one is not self)]

    def put_back_held(self, kept: dict[str, Any]) -> None:
        for one, own in zip(self._holders(), kept["held"], strict=False):
            user_state.put_back(vars(one), own)

    def temporary(self) -> Path:
        assert isinstance(self.call, KeptCall)
        return self.call.job_dir / f".lightning-{self.call.number}-{self.trainer.global_rank}.ckpt"

    # -- resume

    def set_out(self, fetcher: Any, original: Callable[[Any], Any]) -> None:
        """Record the random state before the training data is read, or continue from the checkpoint's position."""
        call = self.call
        if isinstance(call, KeptCall):
            each = next((loader.batch_size for loader in fetcher.combined_loader.flattened if loader.batch_size), 1)
            call.batch = each if call.shares is not None else each * self.trainer.world_size
        if not isinstance(call, KeptCall) or call.state is None or not call.is_replayed:
            self._note(fetcher)
            original(fetcher)
            return
        kept = call.state
        generators = _generators(fetcher.combined_loader)
        self.first, self.streams, self.generators = kept["first"], kept["streams"], kept["generators"]
        rng_state.put_back(self.streams)
        for one, state in zip(generators, self.generators, strict=True):
            one.set_state(state)
        loaders = fetcher.combined_loader.flattened
        for sampler in {id(one): one for loader in loaders for one in _samplers(loader)}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)
        original(fetcher)
        if not all(hasattr(loader, "load_state_dict") for loader in loaders):  # stateful loaders resume by themselves
            for _ in range(kept["index"]):
                next(fetcher.iterator)

    @guarded
    def _note(self, fetcher: Any) -> None:
        self.streams = rng_state.snapshot()
        self.generators = [one.get_state() for one in _generators(fetcher.combined_loader)]

    def before_batch(self) -> None:
        """Handle the boundary before the next batch is read."""
        call = self.call
        if isinstance(call, KeptCall):
            if call.state is not None and call.is_replayed:
                self._put_back(call.state)
                call.reach()
            self._pass(call)

    def after_batch(self) -> None:
        """Count a batch that was read and is trained next. This replaces Lightning's more expensive hook."""
        if not self.counts_when_read:
            self.counts_when_read = True
            vars(self)["on_train_batch_start"] = None
        if isinstance(self.call, KeptCall):
            self.call.step(self.epoch, self.index)
        else:
            self.call.at(self.trainer.current_epoch - self.first, self._done(self.trainer))

    @guarded
    def _pass(self, call: KeptCall) -> None:
        loop = self.trainer.fit_loop
        self.epoch = loop.epoch_progress.current.processed - self.first
        self.index = loop.epoch_loop.batch_progress.current.ready
        if self.names_loss and self.index and monotonic() >= call.due_s:
            self._point(self.trainer, None)
        # otherwise there are accumulated gradients, which are not stored
        if self.index % self.trainer.accumulate_grad_batches == 0:
            call.boundary(self.epoch, self.index)

    def _put_back(self, kept: dict[str, Any]) -> None:
        trainer = self.trainer
        self.put_back_metrics(kept["metrics"])
        trainer.fit_loop._restarting = False  # otherwise schedulers that use a metric miss this epoch
        if kept["stepped"] is not None:
            trainer.fit_loop.epoch_loop._batches_that_stepped = kept["stepped"]
        if trainer.is_global_zero:  # the sums are rank 0's
            sums = kept["sums"]
            if kept.get("learners", 1) > 1 and kept["index"] and isinstance(self.call, KeptCall):
                folder, number = self.call.job_dir, self.call.number
                add_sums_of_others(self.module, folder, number, kept["learners"], tuple(kept["at"]), sums)
            restore = functools.partial(put_back_sums, trainer, self.module, sums)
            self.pending_sums = optional("_results", _SUMS_LOST, restore, {})
        self.put_back_held(kept)

    def put_back_metrics(self, kept: Mapping[str, Any]) -> None:
        """Restore the values of `trainer.callback_metrics`."""
        connector = self.trainer._logger_connector if kept else None
        optional(
            "_callback_metrics", _METRICS_LOST, lambda: connector and connector._callback_metrics.update(kept), None
        )


def _write(trainer: Any, path: Path) -> None:
    """Write like `save_checkpoint`, but without its barrier, since one learner writes alone, and without two copies."""
    content = trainer._checkpoint_connector.dump_checkpoint(False)
    strategy = trainer.strategy
    by = (type(strategy).save_checkpoint.__qualname__, type(strategy.checkpoint_io).__name__)
    if by == _USUAL_WRITERS:
        checkpoint_files.save_by_torch(content, path)
    else:
        strategy.save_checkpoint(content, path)


@contextmanager
def _shared_out(trainer: Any, call: Call) -> Iterator[None]:
    """In an elastic job, give each learner its part of every batch, in the order of one learner."""
    if not isinstance(call, KeptCall) or call.shares is None or trainer.world_size == 1:
        yield
        return
    rank, learners = call.shares
    connector: Any = getattr(trainer, "_data_connector", None)
    original = optional("_prepare_dataloader", _SHARES_LOST, lambda: connector._prepare_dataloader, None)
    if original is None:
        yield
        return

    def prepare(loader: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(loader, *args, **kwargs)
        sampler: Any = getattr(made, "sampler", None)
        if kwargs.get("mode") == "train" and type(sampler).__name__ == "DistributedSampler" and made.batch_size:
            sampler.num_replicas, sampler.rank = 1, 0
            sampler.num_samples = sampler.total_size = len(sampler.dataset)
            object.__setattr__(made, "batch_sampler", Shares(made.batch_sampler, rank, learners))
        return made

    connector._prepare_dataloader = prepare
    try:
        yield
    finally:
        del connector._prepare_dataloader


def _own(one: Any) -> dict[str, Any]:
    """Return the user's own state. Lightning's, partly keyed by addresses of objects, begins with an underscore."""
    return {name: value for name, value in held(one).items() if not name.startswith("_")}


_active: Final[list[_Watch]] = []


def _wrap_fetchers(module: Any) -> None:
    module._DataFetcher._dlaas_watch = None
    begin = module._DataFetcher.__iter__
    read = module._PrefetchDataFetcher.__next__

    @functools.wraps(begin)
    def iterate(self: Any) -> Any:
        watch = self._dlaas_watch = _watch_of(self)
        if watch is not None:
            watch.call.calm_s = 0.0  # check the boundary of an epoch's first batch
            watch.set_out(self, begin)
            return self
        return begin(self)

    @functools.wraps(read)
    def fetch(self: Any) -> Any:
        watch: _Watch | None = self._dlaas_watch
        if watch is None:
            return read(self)
        if monotonic() < watch.call.calm_s:
            batch = read(self)
            watch.call.passed()
            return batch
        watch.before_batch()
        batch = read(self)
        watch.after_batch()
        return batch

    module._DataFetcher.__iter__ = iterate
    module._PrefetchDataFetcher.__next__ = fetch


def _watch_of(fetcher: Any) -> _Watch | None:
    """Return the watch whose training data this fetcher reads; None for other data."""
    for one in _active:
        if getattr(one.trainer.fit_loop, "_data_fetcher", None) is fetcher:
            return one
    return None


def _samplers(loader: Any) -> Iterator[Any]:
    for one in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if one is not None:
            yield one
            inner = getattr(one, "sampler", None)
            if inner is not None:
                yield inner


def _generators(combined: Any) -> Iterator[Any]:
    """Yield the loaders' own random generators, from which they draw the order of samples."""
    seen: set[int] = set()
    for loader in combined.flattened:
        for one in (loader, *_samplers(loader)):
            generator = getattr(one, "generator", None)
            if generator is not None and hasattr(generator, "get_state") and id(generator) not in seen:
                seen.add(id(generator))
                yield generator
