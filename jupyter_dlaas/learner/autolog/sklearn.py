"""scikit-learn: `partial_fit` loops, MLP epochs, stages of gradient boosting.

What other estimators print with `verbose` is read from the log, like any program's output.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from jupyter_dlaas.learner.autolog.fit_calls import Call, print_once, stepwise, watching
from jupyter_dlaas.learner.environment import import_hooks

__all__ = ["hook"]


def hook(base: Any) -> None:
    """Wrap the decorator of every fit and partial_fit, and two training loops."""
    original = base._fit_context

    @functools.wraps(original)
    def fit_context(**options: Any) -> Any:
        decorate = original(**options)
        return lambda method: _partial(decorate(method)) if method.__name__ == "partial_fit" else decorate(method)

    base._fit_context = fit_context
    import_hooks.after("sklearn.neural_network._multilayer_perceptron", _hook_perceptron)
    import_hooks.after("sklearn.ensemble._gb", _hook_boosting)


def _quiet(act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - an unknown version may lack anything
        print_once(f"no automatic metrics from scikit-learn: {type(error).__name__}: {error}; log with run.log")


# -- partial_fit ------------------------------------------------------------------------------------------------------

_calls: Final[weakref.WeakKeyDictionary[Any, list[Any]]] = weakref.WeakKeyDictionary()
"""Estimator -> its call, and its number of partial_fit calls."""


def _partial(method: Any) -> Any:
    @functools.wraps(method)
    def partial_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept = _calls.get(self)
        if kept is None and (made := stepwise("scikit-learn")) is not None:
            kept = _calls[self] = [made, 0]
        with watching("scikit-learn", kept[0] if kept is not None else None) as call:
            result = method(self, *args, **kwargs)
            if call is not None and kept is not None:
                kept[1] += 1
                _quiet(lambda: _see_partial(self, call, kept[1]))
            return result

    return partial_fit


def _see_partial(estimator: Any, call: Call, done: int) -> None:
    bar = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if not getattr(bar, "_instances", None):  # a progress bar knows the total
        call.at(0, done)
    loss = getattr(estimator, "loss_", None)
    if loss is not None:
        call.point({"loss": loss}, done)


# -- loops inside fit -------------------------------------------------------------------------------------------------


def _hook_perceptron(module: Any) -> None:
    kind = module.BaseMultilayerPerceptron
    fit, count = kind._fit, kind._update_no_improvement_count

    @functools.wraps(fit)
    def fit_watched(self: Any, X: Any, y: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803 - scikit-learn's name
        with watching("scikit-learn") as call:
            if call is not None:
                _watched[id(self)] = call
            try:
                return fit(self, X, y, *args, **kwargs)
            finally:
                _watched.pop(id(self), None)

    @functools.wraps(count)
    def count_watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = count(self, *args, **kwargs)  # once per epoch, after the loss was recorded
        call = _watched.get(id(self))
        if call is not None:
            _quiet(lambda: _see_perceptron(self, call))
        return result

    kind._fit, kind._update_no_improvement_count = fit_watched, count_watched


_watched: Final[dict[int, Call]] = {}


def _see_perceptron(estimator: Any, call: Call) -> None:
    done = len(estimator.loss_curve_)
    call.expect(int(estimator.max_iter))
    call.at(done, done)
    found = {"loss": estimator.loss_curve_[-1]}
    if getattr(estimator, "validation_scores_", None):
        found["validation_score"] = estimator.validation_scores_[-1]
    call.point(found, done, done - 1)


def _hook_boosting(module: Any) -> None:
    kind = module.BaseGradientBoosting
    fit = kind._fit_stages

    @functools.wraps(fit)
    def fit_watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watching("scikit-learn") as call:
            if call is None or "monitor" in kwargs or not args:
                return fit(self, *args, **kwargs)
            *others, monitor = args
            return fit(self, *others, functools.partial(_stage, call, monitor), **kwargs)

    kind._fit_stages = fit_watched


def _stage(call: Call, monitor: Any, stage: int, estimator: Any, names: Any) -> bool:
    """Report a stage; the user's own monitor decides whether it is the last."""

    def see() -> None:
        call.expect(None, steps=int(estimator.n_estimators))
        call.at(0, stage + 1)
        call.point({"train_loss": estimator.train_score_[stage]}, stage + 1)

    _quiet(see)
    return bool(monitor(stage, estimator, names)) if monitor is not None else False
