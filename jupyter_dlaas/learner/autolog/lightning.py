"""Lightning: a hook into `Trainer.fit`, as `lightning.pytorch` and as `pytorch_lightning`. Halts at a batch.

Lightning's own checkpoint holds weights, optimisers, schedulers, callbacks and loops. It restarts the epoch's data and
loses sums accumulated in the epoch. So the order of samples is drawn again from the random state at the beginning of
the epoch, batches that were trained already are read and dropped, and we store the sums.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from jupyter_dlaas.learner.autolog.batch_share import Shares
from jupyter_dlaas.learner.autolog.deferred import held
from jupyter_dlaas.learner.autolog.fit_calls import Call, KeptCall, keeping
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
_LOG_ARGUMENTS: Final = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    *("dataloader_idx", "metric_attribute"),
)
"""Arguments of `log` that Lightning keeps with the metric."""
_UNUSED: Final = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""Lightning calls every hook that is callable, each in a profiler context, at each step."""


def hook(module: Any) -> None:
    """Wrap Trainer.fit."""
    package = module.__name__.removesuffix(".trainer.trainer")
    trainer_class = module.Trainer
    original = trainer_class.fit
    signature = inspect.signature(original)
    _wrap_fetchers(sys.modules[f"{package}.loops.fetchers"])
    watch_class = made_of(_Watch, sys.modules[f"{package}.callbacks"].Callback)
    for name in _UNUSED:
        setattr(watch_class, name, None)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = {kind.__name__ for kind in type(self.strategy).__mro__}
        is_whole = bool(kinds & _WHOLE) and not kinds & _PARTED
        with keeping("lightning", is_whole=is_whole, alone=_ALONE if _SINGLE in kinds else None) as call:
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
    trainer._run_stage = lambda: None
    try:
        original(*bound.args, **bound.kwargs)
    finally:
        del trainer._run_stage
        path.unlink()
    trainer.fit_loop.restarting = False
    trainer.should_stop = end["should_stop"]
    trainer._logger_connector._callback_metrics.update(end["metrics"])
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
        self.streams: Any = None
        self.generators: list[Any] = []
        self.pending_sums: dict[str, Any] = {}
        """Restored sums of metrics that the program has not logged again in the epoch in which it was resumed."""

    @contextmanager
    def among(self) -> Iterator[None]:
        """Add this callback to the trainer during the call."""
        self.trainer.callbacks.append(self)
        _active.append(self)
        try:
            with _shared_out(self.trainer, self.call):
                yield
        finally:
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
        found = dict(trainer._logger_connector.metrics["log"])
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

    @guarded
    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._log_late(trainer)

    def _log_epoch(self, trainer: Any) -> None:
        found = dict(trainer._logger_connector.metrics["callback"])
        self.known.update(found)
        self._log(found, trainer)

    def _log_late(self, trainer: Any) -> None:
        found = dict(trainer.callback_metrics)
        self.late.update(set(found) - self.known)
        self._log({name: found[name] for name in self.late if name in found}, trainer)

    def _log(self, found: dict[str, Any], trainer: Any) -> None:
        if found:
            self.call.log(found, epoch=trainer.current_epoch - self.first, step=self._done(trainer))

    def _done(self, trainer: Any) -> int:
        return int(trainer.fit_loop.epoch_loop.batch_progress.total.processed)

    # -- checkpoint content

    def state(self, folder: Path) -> dict[str, Any]:
        _write(self.trainer, folder / _FILE)
        return {
            "first": self.first,
            "index": self.index,
            "streams": self.streams,
            "generators": self.generators,
            "sums": _sums(self.trainer, self.module, self.pending_sums),
            "stepped": self.trainer.fit_loop.epoch_loop._batches_that_stepped,
            **self._kept(),
        }

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
            # Several learners would compute the numbers together; one alone uses those already computed.
            "metrics": dict(
                trainer._logger_connector._callback_metrics if trainer.world_size > 1 else trainer.callback_metrics
            ),
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
        trainer._logger_connector._callback_metrics.update(kept["metrics"])
        trainer.fit_loop._restarting = False  # otherwise schedulers that use a metric miss this epoch
        trainer.fit_loop.epoch_loop._batches_that_stepped = kept["stepped"]
        if trainer.is_global_zero:  # the sums are rank 0's
            self.pending_sums = _put_back_sums(trainer, self.module, kept["sums"])
        self.put_back_held(kept)


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
    connector = trainer._data_connector
    original = connector._prepare_dataloader

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
        if one.trainer.fit_loop._data_fetcher is fetcher:
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


# -- sums accumulated over an epoch -----------------------------------------------------------------------------------


def _metrics_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the torchmetrics among a module's submodules."""
    for name, one in module.named_modules():
        if hasattr(one, "_defaults") and hasattr(one, "_update_count"):
            yield name, one


def _sum(metric: Any) -> tuple[dict[str, Any], int]:
    return {name: getattr(metric, name) for name in metric._defaults}, metric._update_count


def _put_back_sum(metric: Any, kept: Sequence[Any]) -> None:
    for name, value in kept[0].items():
        is_list = isinstance(value, list)
        setattr(metric, name, [one.to(metric.device) for one in value] if is_list else value.to(metric.device))
    metric._update_count = kept[1]


def _logged_sum(metric: Any) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Return the sum of a logged metric, and the arguments with which the program logs it."""
    meta, sync = metric.meta, metric.meta.sync
    arguments = {name: getattr(meta, name) for name in _LOG_ARGUMENTS}
    arguments |= {"reduce_fx": meta.reduce_fx.__name__, "sync_dist": sync.should, "rank_zero_only": sync.rank_zero_only}
    states, count = _sum(metric)
    return states, count, {**arguments, "shown": metric._forward_cache}


def _sums(trainer: Any, module: Any, pending: Mapping[str, Any]) -> dict[str, Any]:
    logged = trainer.fit_loop.epoch_loop._results.items()
    return {
        "logged": {**pending, **{key: _logged_sum(one) for key, one in logged if not one.has_reset}},
        "metrics": {name: _sum(one) for name, one in _metrics_of(module)},
    }


def _put_back_sums(trainer: Any, module: Any, kept: dict[str, Any]) -> dict[str, Any]:
    """Restore the sums. Returns those that wait until the program logs the metric again; they leave the dict then."""
    for name, one in _metrics_of(module):
        if name in kept["metrics"]:
            _put_back_sum(one, kept["metrics"][name])
    results, pending = trainer.fit_loop.epoch_loop._results, dict(kept["logged"])
    stand_ins: set[str] = set()
    """Entries of metrics that the program has not logged again, and may not log again in this epoch."""
    if trainer.world_size == 1:  # all learners must have the same metrics, since they sum them up together
        stand_ins |= {key for key, one in pending.items() if len(one) > 2 and one[2]["dataloader_idx"] is None}
    for key in sorted(stand_ins):
        _log_again(trainer, module, key, *pending[key])
        trainer._logger_connector._first_loop_iter = False  # otherwise the next batch resets the sums
    log, update = results.log, results.update_metrics

    def log_by_the_program(fx: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Remove the stand-in: Lightning compares the options of `log`, not all of which are kept."""
        if f"{fx}.{name}" in stand_ins:
            stand_ins.remove(f"{fx}.{name}")
            del results[f"{fx}.{name}"]
        if not stand_ins:
            del results.log
        return log(fx, name, *args, **kwargs)

    def update_metrics(key: str, *args: Any) -> Any:
        """Restore a logged sum when the program logs it for the first time, which creates its entry."""
        if key in pending:
            _put_back_sum(results[key], pending.pop(key))
        if not pending:
            del results.update_metrics
        return update(key, *args)

    if stand_ins:
        results.log = log_by_the_program
    if pending:
        results.update_metrics = update_metrics
    return pending


def _log_again(trainer: Any, module: Any, key: str, states: dict[str, Any], count: int, how: dict[str, Any]) -> None:
    """Restore a logged metric together with its sum: the program may not log it again in this epoch."""
    results, attribute = trainer.fit_loop.epoch_loop._results, how["metric_attribute"]
    value = states["value"].to(module.device) if attribute is None else module.get_submodule(attribute)
    arguments = {name: one for name, one in how.items() if name not in {"dataloader_idx", "shown"}}
    results.log(value=value, batch_size=1, sync_dist_fn=trainer.strategy.reduce, **arguments)
    _put_back_sum(results[key], (states, count))
    results[key]._forward_cache = how["shown"]
