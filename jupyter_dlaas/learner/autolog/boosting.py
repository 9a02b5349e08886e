"""XGBoost and LightGBM: `train`, which their scikit-learn classes call too. One round is one step."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from jupyter_dlaas.learner.autolog.calls import Call, watching
from jupyter_dlaas.learner.autolog.guarded import attempt, guarded, made_of

__all__ = ["hook"]


def hook(module: Any) -> None:
    """Put ourselves around `train` before the package's other modules import it from here."""
    is_xgboost = module.__name__.startswith("xgboost")
    original = module.train
    signature = inspect.signature(original)
    round_class: Any = made_of(_XGBoost, module.TrainingCallback) if is_xgboost else _LightGBM

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Any:
        with watching() as call:
            if call is None:
                return original(*args, **kwargs)
            bound = attempt(lambda: _with_callback(signature.bind(*args, **kwargs), round_class, call))
            return original(*args, **kwargs) if bound is None else original(*bound.args, **bound.kwargs)

    module.train = train


def _with_callback(bound: inspect.BoundArguments, round_class: Any, call: Call) -> inspect.BoundArguments:
    bound.apply_defaults()
    given = bound.arguments["callbacks"] or []
    bound.arguments["callbacks"] = [*given, round_class(call, bound.arguments["num_boost_round"])]
    return bound


class _XGBoost:
    def __init__(self, call: Call, rounds: int) -> None:
        super().__init__()
        self.call = call
        self.begun: int | None = None
        call.expect(None, steps=rounds)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self._see(epoch, evals_log)
        return False

    @guarded
    def _see(self, epoch: int, evals_log: Any) -> None:
        self.begun = epoch if self.begun is None else self.begun
        done = epoch + 1 - self.begun
        found = {
            f"{data}_{name}": numbers[-1] for data, metrics in evals_log.items() for name, numbers in metrics.items()
        }
        self.call.at(0, done)
        self.call.log(found, step=done)


class _LightGBM:
    order = 25
    """After what only looks, before early stopping, which ends by an exception."""
    before_iteration = False

    def __init__(self, call: Call, rounds: int) -> None:
        self.call = call

    @guarded
    def __call__(self, env: Any) -> None:
        done = env.iteration + 1 - env.begin_iteration
        self.call.expect(None, steps=env.end_iteration - env.begin_iteration)
        self.call.at(0, done)
        results = env.evaluation_result_list or ()
        self.call.log({f"{data}_{name}": value for data, name, value, *_ in results}, step=done)
