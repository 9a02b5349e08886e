"""Keras: a hook into `Model.fit` on TensorFlow, torch and JAX, also as `tf.keras`. Halts at a batch.

A checkpoint holds the variables of model, optimisers, metrics and seeds, the history, and the state of the user's own
callbacks. On resume, the order of samples is drawn again from the random state at the beginning of the epoch, and
batches that were trained already are read and dropped.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from jupyter_dlaas.learner.autolog.deferred import flat, held
from jupyter_dlaas.learner.autolog.fit_calls import Call, KeptCall, keeping
from jupyter_dlaas.learner.autolog.safe_callbacks import attempt, guarded, made_of
from jupyter_dlaas.learner.checkpoint import user_state
from jupyter_dlaas.learner.training_run.independence_check import alone
from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.transfer import rng_state

__all__ = ["hook"]


def hook(keras: Any) -> None:
    """Wrap Model.fit."""
    original = keras.Model.fit
    signature = inspect.signature(original)
    _wrap_iterator(sys.modules["keras.src.trainers.epoch_iterator"].EpochIterator)
    watch_class = made_of(_Watch, keras.callbacks.Callback)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with keeping("keras", alone=alone("Keras' fit")) as call:
            if call is None:
                return original(self, *args, **kwargs)
            bound = attempt(lambda: signature.bind(self, *args, **kwargs))
            watch = attempt(lambda: watch_class(call, self, bound.arguments)) if bound is not None else None
            if watch is None:
                return original(self, *args, **kwargs)
            if isinstance(call, KeptCall) and call.end is not None:
                return _again(original, bound, call, watch)
            if isinstance(call, KeptCall):
                call.save = watch.state
                if call.state is not None:
                    bound.arguments["initial_epoch"] = call.state["epoch"]
            with watch.among(bound.arguments):
                history = original(*bound.args, **bound.kwargs)
            if isinstance(call, KeptCall):
                call.close(watch.end, watch.epoch + 1 - watch.first)
            return history

    keras.Model.fit = fit


def _again(original: Callable[..., Any], bound: inspect.BoundArguments, call: KeptCall, watch: Any) -> Any:
    """Restore a completed call: build the model as it did, train nothing, and restore its end."""
    end = call.end["end"]
    # TensorFlow builds nothing before the first epoch begins: let it begin, without a batch.
    epochs = int(sys.modules["keras"].backend.backend() == "tensorflow")
    nothing = {"epochs": epochs, "initial_epoch": 0, "verbose": 0, "validation_data": None, "validation_split": 0.0}
    bound.arguments.update(nothing, callbacks=[watch])
    history = original(*bound.args, **bound.kwargs)
    _put_back_variables(watch.fitted, end)
    watch.put_back_callbacks(end)
    for one in watch.users:
        one.set_model(watch.fitted)
        one.set_params(end["params"])
    call.close(watch.end, end["epochs"])
    return history


class _Watch:
    """The callback."""

    async_safe = True
    """Only `on_train_batch_end` may be called from another thread, so a user's asynchronous fit stays asynchronous."""

    def __init__(self, call: Call, model: Any, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.call = call
        self.fitted = model
        given = arguments.get("callbacks")
        self.users: list[Any] = list(getattr(given, "callbacks", None) or flat(given))
        self.first = int(arguments.get("initial_epoch") or 0)
        self.last = int(arguments.get("epochs", 1))
        self.epoch, self.index, self.done = self.first, 0, 0
        self.data = arguments.get("x")
        self.params: dict[str, Any] = {}
        self.streams: Any = None
        """The random states at the beginning of the call and of the epoch."""
        self.data_state: dict[str, Any] = {}
        self.counts_when_read = False

    @contextmanager
    def among(self, arguments: dict[str, Any]) -> Iterator[None]:
        """Add this callback to the call, without changing the user's own list."""
        given: Any = arguments.get("callbacks")
        try:
            if hasattr(given, "callbacks"):  # a CallbackList: fit uses it as it is
                self.set_model(self.fitted)  # type: ignore[attr-defined]  # Keras' own
                self.set_params(given.params)  # type: ignore[attr-defined]
                given.callbacks.append(self)
            else:
                arguments["callbacks"] = [*self.users, self]
            yield
        finally:
            _pending.clear()
            if hasattr(given, "callbacks"):
                given.callbacks.remove(self)

    # -- called by Keras

    @guarded
    def on_train_begin(self, logs: Any = None) -> None:
        self.call.expect(self.last - self.first, per_epoch=self.params.get("steps"))

    @guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch, self.index = epoch, 0
        call = self.call
        call.at(epoch - self.first, self.done)
        if not isinstance(call, KeptCall):
            return
        _pending.append(self)
        if (call.state is not None and call.is_replayed) or call.end is not None:
            return
        now = rng_state.snapshot()
        self.streams = (self.streams[0] if self.streams is not None else now, now)
        self.data_state = held(self.data) if hasattr(self.data, "on_epoch_end") else {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.index = batch
        if not self.counts_when_read:
            self._begin(batch)

    @guarded
    def _begin(self, batch: int) -> None:
        if isinstance(self.call, KeptCall):
            self.call.step(self.epoch - self.first, batch)
        else:
            self.call.at(self.epoch - self.first, self.done + batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.index = batch + 1
        if monotonic() >= self.call.due_s:
            self._point(logs)

    @guarded
    def _point(self, logs: Any) -> None:
        if logs and "loss" in logs and self.call.is_time_for_point():
            self.call.log({"batch_loss": logs["loss"]}, step=self.done + self.index)

    @guarded
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.done += self.index
        if self.call.steps is None:
            self.call.expect(self.last - self.first, per_epoch=self.index)
        self.call.log(logs or {}, epoch=epoch - self.first, step=self.done)
        self.call.at(epoch + 1 - self.first, self.done)

    # -- checkpoint content

    def state(self, folder: Path) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "index": self.index,
            "done": self.done,
            "streams": self.streams,
            "data": self.data_state,
            **_variables(self.fitted),
            **self._history_and_callbacks(),
        }

    def end(self) -> dict[str, Any]:
        epochs = self.epoch + 1 - self.first
        return {"epochs": epochs, "params": self.params, **_variables(self.fitted), **self._history_and_callbacks()}

    def _history_and_callbacks(self) -> dict[str, Any]:
        history = self.fitted.history
        return {
            "history": (history.history, history.epoch),
            "callbacks": [held(one, but=("params",)) for one in self.users],
            "stop_training": bool(self.fitted.stop_training),
        }

    def put_back_callbacks(self, kept: dict[str, Any]) -> None:
        history = self.fitted.history
        history.history, history.epoch = kept["history"]
        self.fitted.stop_training = kept["stop_training"]
        for one, own in zip(self.users, kept["callbacks"], strict=False):
            user_state.put_back(vars(one), own)

    # -- resume

    def steps(self, iterator: Any, original: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Yield the steps of an epoch; handle the boundary before each batch is read."""
        call = self.call
        assert isinstance(call, KeptCall)
        if call.end is not None:
            _build(self.fitted, iterator)
            return
        if call.state is not None and call.is_replayed:
            steps = self._left(call.state, iterator, original)
            call.reach()
        else:
            steps = original(iterator)
        # If the number of batches is unknown, a halt in the first epoch could leave no batch for the resumed one.
        is_known = iterator.num_batches is not None
        self.counts_when_read = is_known
        call.batch = iterator.data_adapter.batch_size or 1
        call.calm_s = 0.0  # check the boundary of an epoch's first batch
        for step in steps:
            if monotonic() < call.calm_s:
                call.passed()
            elif is_known:
                self._pass(call, step[0])
            yield step

    @guarded
    def _pass(self, call: KeptCall, index: int) -> None:
        self.index = index
        epoch = self.epoch - self.first
        call.boundary(epoch, index)
        call.step(epoch, index)

    def _left(self, kept: dict[str, Any], iterator: Any, original: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Return the remaining steps of the interrupted epoch, and restore all state."""
        _build(self.fitted, iterator)
        self.streams, self.data_state, self.done = kept["streams"], kept["data"], kept["done"]
        rng_state.put_back(self.streams[0])
        self._pass_epochs(iterator, original)
        user_state.put_back(vars(self.data) if self.data_state else {}, self.data_state)
        rng_state.put_back(self.streams[1])
        _put_back_variables(self.fitted, kept)
        self.put_back_callbacks(kept)
        steps = original(iterator)
        trained = 0
        while trained < kept["index"]:
            _, last, batches = next(steps)
            for _ in range(last + 1 - trained):
                next(batches)
            trained = last + 1
        begun = next(steps, None)  # the boundary followed it, and its random draws
        return itertools.chain(() if begun is None else (begun,), steps)

    def _pass_epochs(self, iterator: Any, original: Callable[[Any], Iterator[Any]]) -> None:
        """Read data of earlier epochs if its order depends on the number of passes, not on the random state."""
        kind = type(iterator.data_adapter).__name__
        reads_all = kind == "GeneratorDataAdapter" or bool(iterator.steps_per_epoch)
        loader = getattr(iterator.data_adapter, "_dataloader", None)
        own_order = getattr(getattr(loader, "sampler", None), "generator", None) is not None
        is_tensorflow = type(iterator).__name__ == "TFEpochIterator" and kind == "ArrayDataAdapter"
        if not (reads_all or own_order or is_tensorflow or kind == "TFDatasetAdapter"):
            return
        for _ in range(self.first, self.epoch):
            for number, (first, last, batches) in enumerate(original(iterator)):
                if reads_all or number == 0:
                    for _ in range(last + 1 - first):
                        next(batches, None)
                elif iterator.num_batches is None:
                    break


_pending: Final[list[_Watch]] = []
"""The watch whose call is about to read the first batch of an epoch."""


def _wrap_iterator(kind: Any) -> None:
    original = kind._enumerate_iterator

    @functools.wraps(original)
    def enumerate_iterator(self: Any) -> Any:
        return _pending.pop().steps(self, original) if _pending else original(self)

    kind._enumerate_iterator = enumerate_iterator


# -- variables --------------------------------------------------------------------------------------------------------


def _all_variables(model: Any) -> list[Any]:
    found = {id(one): one for one in (*model.variables, *model.metrics_variables)}
    state = sys.modules["keras.src.backend.common.global_state"]
    generator = state.get_global_attribute("global_seed_generator")
    if generator is not None:
        found.setdefault(id(generator.state), generator.state)
    return list(found.values())


def _optimizers(model: Any) -> dict[str, Any]:
    kind = sys.modules["keras"].optimizers.Optimizer
    found = {name: one for name, one in sorted(vars(model).items()) if isinstance(one, kind)}
    return {"optimizer": model.optimizer, **found} if isinstance(model.optimizer, kind) else found


def _variables(model: Any) -> dict[str, Any]:
    """Return everything that training changes, as arrays."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    variables = _all_variables(model)
    places = {id(one): place for place, one in enumerate(variables)}
    optimizers = {
        name: {
            "of": [places[id(one)] for one in keras_objects.trained_by(optimizer)],
            "values": [one.numpy() for one in optimizer.variables],
        }
        for name, optimizer in _optimizers(model).items()
        if optimizer.built
    }
    return {"variables": [one.numpy() for one in variables], "optimizers": optimizers}


def _put_back_variables(model: Any, kept: dict[str, Any]) -> None:
    variables = _all_variables(model)
    _assign(variables, kept["variables"])
    for name, optimizer in _optimizers(model).items():
        if name in kept["optimizers"]:
            held = kept["optimizers"][name]
            if not optimizer.built:
                optimizer.build([variables[place] for place in held["of"]])
            _assign(optimizer.variables, held["values"])


def _assign(variables: list[Any], arrays: list[Any]) -> None:
    if [tuple(one.shape) for one in variables] != [array.shape for array in arrays]:
        raise RuntimeError(
            "the checkpoint belongs to another model: its variables differ from those of this program's model"
        )
    for one, array in zip(variables, arrays, strict=True):
        one.assign(array)


def _build(model: Any, iterator: Any) -> None:
    """Build the model: TensorFlow builds when it traces the first step, but restoring needs the variables before."""
    parts = [*keras_objects.layers_in(model), model._compile_metrics, model._compile_loss, model.optimizer]
    if not all(part.built for part in parts if hasattr(part, "built")) and hasattr(iterator, "_distributed_dataset"):
        # By their shapes: reading a batch would count as an epoch for a pipeline that shuffles itself.
        model._symbolic_build(data_batch=iterator.data_adapter.get_tf_dataset().element_spec)
