"""XGBoost and LightGBM: `train`, which their scikit-learn classes call too. One round is one step."""

from __future__ import annotations

import functools
import inspect
from time import monotonic
from typing import Any, Final

from jupyter_dlaas.learner.autolog.calls import Call, watching
from jupyter_dlaas.learner.autolog.guarded import attempt, guarded, made_of

__all__ = ["hook"]

_LOOK_S: Final = 0.05
"""The clock is looked at about so often: one round more each time, fewer at once where rounds get slower."""


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
        self.begun = -1
        self.seen = 0
        self.round = -1
        self.look_at = 0
        """The round after which the clock is looked at again: a round may take a millisecond."""
        self.looked = (0, monotonic())
        self.curves: Any = {}
        """Data set -> metric -> one number a round. XGBoost goes on with the same lists."""
        call.expect(None, steps=rounds)
        call.on_finish = self._see

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.round = epoch
        if epoch >= self.look_at:
            self._look(evals_log)
        return False

    @guarded
    def _look(self, evals_log: Any) -> None:
        now, (before, then) = monotonic(), self.looked
        if self.begun < 0:
            self.begun = before = self.round
        self.looked = (self.round, now)
        self.look_at = self.round + 1 + int((self.round - before) * min(1.0, _LOOK_S / max(now - then, 1e-9)))
        self.curves = evals_log
        if now >= self.call.write_s:
            self._see()

    @guarded
    def _see(self) -> None:
        if self.begun < 0:
            return
        done = self.round + 1 - self.begun
        named = {
            f"{data}_{name}": numbers for data, metrics in self.curves.items() for name, numbers in metrics.items()
        }
        found = [
            ({name: numbers[at] for name, numbers in named.items()}, at + 1, None)
            for at in range(self.seen, done)
            if named
        ]
        self.seen = done
        self.call.at(0, done)
        self.call.points(found)


class _LightGBM:
    order = 25
    """After what only looks, before early stopping, which ends by an exception."""
    before_iteration = False

    def __init__(self, call: Call, rounds: int) -> None:
        self.call = call
        self.kept: list[tuple[int, Any]] = []
        self.last: Any = None
        call.on_finish = self._see

    def __call__(self, env: Any) -> None:
        self.last = env
        self.kept.append((env.iteration, env.evaluation_result_list))
        if monotonic() >= self.call.write_s:
            self._see()

    @guarded
    def _see(self) -> None:
        if self.last is None:
            return
        kept, self.kept, env = self.kept, [], self.last
        self.call.expect(None, steps=env.end_iteration - env.begin_iteration)
        self.call.at(0, env.iteration + 1 - env.begin_iteration)
        self.call.points(
            [
                ({f"{data}_{name}": value for data, name, value, *_ in results}, at + 1 - env.begin_iteration, None)
                for at, results in kept
                if results
            ]
        )
