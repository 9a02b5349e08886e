"""fastai: a hook into `Learner.fit`, which fit_one_cycle, fine_tune and others call."""

from __future__ import annotations

import functools
from time import monotonic
from typing import Any, Final

from jupyter_dlaas.learner.autolog.fit_calls import Call, watching
from jupyter_dlaas.learner.autolog.safe_callbacks import guarded, made_of

__all__ = ["hook"]

_EVENTS: Final = frozenset({"before_fit", "after_batch", "after_epoch"})


def hook(module: Any) -> None:
    """Wrap Learner.fit."""
    learner_class = module.Learner
    original = learner_class.fit
    watch_class = made_of(_Watch, module.Callback)

    @functools.wraps(original)
    def fit(self: Any, n_epoch: int, *args: Any, **kwargs: Any) -> Any:
        with watching("fastai") as call:
            if call is None or not hasattr(self, "recorder") or _only_tries(kwargs.get("cbs")):
                return original(self, n_epoch, *args, **kwargs)
            with self.added_cbs(watch_class(call)):
                return original(self, n_epoch, *args, **kwargs)

    learner_class.fit = fit


def _only_tries(given: Any) -> bool:
    """Return whether this is lr_find, which fits to try learning rates and undoes it."""
    some = given if isinstance(given, list | tuple) else [given]
    return any(type(one).__name__ == "LRFinder" for one in some)


class _Watch:
    """The callback. Its attributes must not have the names of a learner's attributes."""

    order = 60
    """After the Recorder, which provides the numbers."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.watched = call
        self.per_epoch = 0

    def _component_attr_filter(self, name: str) -> bool:
        """Skip the lookup of unused events in the learner and its model, which is measurable at ten per batch."""
        return False

    def __call__(self, event_name: str) -> Any:
        """Handle only the events in use: fastai calls each callback a dozen times per batch."""
        return super().__call__(event_name) if event_name in _EVENTS else None  # type: ignore[misc]  # fastai's own

    @guarded
    def before_fit(self) -> None:
        learn = self.learn  # type: ignore[attr-defined]  # fastai's own
        self.per_epoch = len(learn.dls.train)
        self.watched.expect(int(learn.n_epoch), per_epoch=self.per_epoch)

    def after_batch(self) -> None:
        if monotonic() >= self.watched.show_s:
            self._see()

    @guarded
    def _see(self) -> None:
        learn = self.learn  # type: ignore[attr-defined]
        if learn.training:
            epoch = int(learn.epoch)
            done = epoch * self.per_epoch + int(learn.iter) + 1
            self.watched.at(epoch, done)
            if self.watched.is_time_for_point():
                self.watched.log({"batch_loss": learn.loss}, epoch=epoch, step=done)

    @guarded
    def after_epoch(self) -> None:
        learn = self.learn  # type: ignore[attr-defined]
        names = [name for name in learn.recorder.metric_names if name not in ("epoch", "time")]
        found = dict(zip(names, learn.final_record, strict=False))
        done = (int(learn.epoch) + 1) * self.per_epoch
        self.watched.log(found, epoch=int(learn.epoch), step=done)
        self.watched.at(int(learn.epoch) + 1, done)
