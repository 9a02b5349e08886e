"""XGBoost and LightGBM: hooks into `train`, which their scikit-learn classes also call. One round is one step."""

from __future__ import annotations

import functools
import inspect
from time import monotonic
from typing import Any, Final

from jupyter_dlaas.learner.autolog.fit_calls import Call, watching
from jupyter_dlaas.learner.autolog.safe_callbacks import attempt, guarded, made_of

__all__ = ["hook"]

_LOOK_S: Final = 0.05
"""The approximate interval in seconds between reads of the clock, in rounds; it adapts to the rounds' speed."""


def hook(module: Any) -> None:
    """Wrap `train` before the package's other modules import it from here."""
    is_xgboost = module.__name__.startswith("xgboost")
    framework = "XGBoost" if is_xgboost else "LightGBM"
    original = module.train
    signature = inspect.signature(original)
    round_class: Any = made_of(_XGBoost, module.TrainingCallback) if is_xgboost else _LightGBM

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Any:
        with watching(framework) as call:
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


class _Clock:
    """The schedule of rounds after which the clock is read: a round may take only a millisecond."""

    def __init__(self) -> None:
        self.at = 0
        self._before: int | None = None
        self._then_s = monotonic()

    def look(self, done: int) -> float:
        """Return the time, and schedule the next read."""
        now_s = monotonic()
        passed = 0 if self._before is None else done - self._before
        self.at = done + 1 + int(passed * min(1.0, _LOOK_S / max(now_s - self._then_s, 1e-9)))
        self._before, self._then_s = done, now_s
        return now_s


class _XGBoost:
    def __init__(self, call: Call, rounds: int) -> None:
        super().__init__()
        self.call = call
        self.clock = _Clock()
        self.begun = -1
        self.seen = 0
        self.round = -1
        self.curves: Any = {}
        """Data set -> metric -> one number per round. XGBoost appends to the same lists."""
        call.expect(None, steps=rounds)
        call.on_finish = self._see

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.round = epoch
        if epoch >= self.clock.at:
            self._look(evals_log)
        return False

    @guarded
    def _look(self, evals_log: Any) -> None:
        self.begun = self.round if self.begun < 0 else self.begun
        self.curves = evals_log
        if self.clock.look(self.round) >= self.call.write_s:
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
    """After callbacks that only observe, before early stopping, which ends the training by an exception."""
    before_iteration = False

    def __init__(self, call: Call, rounds: int) -> None:
        self.call = call
        self.clock = _Clock()
        self.kept: list[Any] = []
        call.on_finish = self._see

    def __call__(self, env: Any) -> None:
        self.kept.append(env)
        if env.iteration >= self.clock.at:
            self._look()

    @guarded
    def _look(self) -> None:
        if self.clock.look(self.kept[-1].iteration) >= self.call.write_s:
            self._see()

    @guarded
    def _see(self) -> None:
        if not self.kept:
            return
        kept, self.kept = self.kept, []
        begin, last = kept[0].begin_iteration, kept[-1]
        self.call.expect(None, steps=last.end_iteration - begin)
        self.call.at(0, last.iteration + 1 - begin)
        self.call.points(  # by index: iterating over one of these results takes 10 µs
            [
                (
                    {f"{one[0]}_{one[1]}": one[2] for one in env.evaluation_result_list},
                    env.iteration + 1 - begin,
                    None,
                )
                for env in kept
                if env.evaluation_result_list
            ]
        )
