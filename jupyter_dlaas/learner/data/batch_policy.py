"""Batch sizes that grow with the gang, and the rules that scale the learning rate with them.

Each learner's batch size is constant, up to a limit for the total (the rule of Or, Zhang, Freedman, "Resource
Elasticity in Distributed Deep Learning", MLSys 2020). The learning rate follows one of these rules:

- `none`: it is constant;
- `linear`: it grows with the batch over some warm-up steps (Goyal et al., "Accurate, Large Minibatch SGD", 2017);
- `sqrt`: it grows with the square root of the batch, immediately (Krizhevsky, "One weird trick …", 2014);
- `adascale`: it grows by the measured benefit of the larger batch, from the variance of the learners' gradients
  (Johnson et al., "AdaScale SGD", ICML 2020, with its estimators and their moving average).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["RULES", "BadPolicy", "Growth", "growth_of"]

RULES: Final = ("linear", "sqrt", "adascale", "none")


class BadPolicy(DlaasError):
    """An unknown or incomplete batch policy."""

    code = "bad_policy"


def growth_of(batch: str, batch_size: int, max_batch: int | None, rate: str | None, warmup_steps: int) -> Growth | None:
    """Return the policy of `run.batches`; None for batches of fixed size. Raises BadPolicy."""
    if batch == "fixed":
        if max_batch is not None or rate is not None:
            raise BadPolicy('run.batches: max_batch= and rate= require batch="grow"')
        return None
    if batch != "grow":
        raise BadPolicy(f'run.batches(batch="{batch}"): use "fixed" or "grow"')
    if rate not in RULES:
        raise BadPolicy(f'run.batches(batch="grow"): set rate= to scale the learning rate; one of {", ".join(RULES)}')
    if max_batch is None or max_batch < batch_size:
        raise BadPolicy('run.batches(batch="grow"): set max_batch=, the largest batch of all learners together')
    return Growth(per_learner=batch_size, most=max_batch, rule=rate, warmup_steps=warmup_steps)


@dataclass(slots=True)
class Growth:
    """The size of batches and the factor of learning rates. Identical in all learners."""

    per_learner: int
    """Samples: the batch size for which the learning rate was chosen."""
    most: int
    rule: str
    warmup_steps: int
    state: dict[str, float] = field(default_factory=dict)
    """Plain numbers, for checkpoints and joining learners."""

    def bind(self, before: Growth | None) -> Growth:
        """Continue with the state of an earlier pass or a checkpoint."""
        if before is not None:
            self.state = before.state
        return self

    def batch(self, learners: int) -> int:
        """Return the samples of a step over all learners."""
        return max(self.per_learner, min(self.per_learner * learners, self.most))

    def begin(self, step: int, samples: int) -> None:
        """Begin a step of this many samples in total. A last, shorter batch has the learning rate of full batches."""
        scale = samples / self.per_learner
        if self.state.get("scale") != scale:
            self.state["from"] = self.factor(step)
            self.state["scale"], self.state["since"] = scale, step
        self.state["step"] = step

    def factor(self, step: int | None = None) -> float:
        """Return the factor of the learning rate in this step."""
        scale = self.state.get("scale", 1.0)
        if self.rule == "sqrt":
            return math.sqrt(scale)
        if self.rule == "adascale":
            return self._gain(scale)
        if self.rule == "none":
            return 1.0
        step = int(self.state.get("step", 0)) if step is None else step
        done = (step - self.state.get("since", 0)) / self.warmup_steps if self.warmup_steps else 1.0
        start = self.state.get("from", 1.0)
        return start + (scale - start) * min(1.0, max(0.0, done))

    def _gain(self, scale: float) -> float:
        """Return (σ² + μ²) / (σ²/S + μ²); 1 without data. σ²: the gradient variance at one learner's batch size."""
        variance, square = self.state.get("variance", 0.0), self.state.get("square", 0.0)
        below = variance / scale + square
        return (variance + square) / below if below > 0 else 1.0

    def learn(self, local: float, mean: float, learners: int, samples: int) -> None:
        """Update the estimates from one step.

        `local`: the mean of squared gradient norms; `mean`: the squared norm of the mean gradient.
        """
        if learners < 2:
            return
        scale = samples / self.per_learner
        variance = max(0.0, (local - mean) * learners / (learners - 1))  # of one learner's share
        square = max(0.0, mean - variance / learners)
        variance *= samples / learners / self.per_learner
        keep = max(0.0, 1.0 - scale / 1000.0) if "variance" in self.state else 0.0
        for name, value in (("variance", variance), ("square", square)):
            self.state[name] = keep * self.state.get(name, 0.0) + (1.0 - keep) * value
