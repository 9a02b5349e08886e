"""Optimisers that wrap another one are loaded with it, and the two stay connected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.result_restore import restore

Optimizer = torch.optim.Optimizer


class Wrapper(Optimizer):
    """Sharpness-aware minimisation, in outline: it shares its groups with the optimiser inside."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, dict(options))
        self.base = torch.optim.SGD(self.param_groups, momentum=0.9, **options)
        self.param_groups = self.base.param_groups
        self.steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        self.base.step()


class Reconnecting(Wrapper):
    """Wrapper that connects the new groups itself, as published versions do."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.base.param_groups = self.param_groups


class Averaging(Optimizer):
    """Lookahead, in outline: it keeps slow weights, and the state of the optimiser inside is its own."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, dict(options))
        self.fast = torch.optim.Adam(self.param_groups, **options)
        self.param_groups, self.state = self.fast.param_groups, self.fast.state
        self.slow = [one.detach().clone() for one in self.param_groups[0]["params"]]
        self.steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.fast.step()
        self.steps += 1
        for slow, one in zip(self.slow, self.param_groups[0]["params"], strict=True):
            slow.lerp_(one.detach(), 0.5)


def advance(model: nn.Module, optimizer: Any, *, learning_rate: float) -> None:
    optimizer.param_groups[0]["lr"] = learning_rate
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.mark.parametrize("kind", [Wrapper, Reconnecting, Averaging])
def test_wrapped_optimiser_goes_on_as_in_the_job(kind: Any) -> None:
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    values = {"model": model, "optimizer": optimizer}
    advance(model, optimizer, learning_rate=0.1)
    job = results.load(results.dump(values))
    advance(job["model"], job["optimizer"], learning_rate=0.05)

    found = restore(results.load(results.dump(job)), values)
    for one in (values, job):
        advance(one["model"], one["optimizer"], learning_rate=0.02)

    assert found.kept == {"model", "optimizer"}
    assert optimizer.steps == 3
    assert torch.equal(model.weight, job["model"].weight)
    slow, expected = (getattr(one, "slow", []) for one in (optimizer, job["optimizer"]))
    assert len(slow) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(slow, expected, strict=True))


def test_scheduler_of_a_wrapped_optimiser_still_sets_its_rate() -> None:
    model = nn.Linear(2, 1)
    optimizer = Wrapper(model.parameters(), lr=0.1)
    values = {"model": model, "optimizer": optimizer}
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer.base, gamma=0.5)

    restore(results.load(results.dump(values)), values)
    optimizer.step()
    schedule.step()

    assert optimizer.param_groups is optimizer.base.param_groups
    assert [group["lr"] for group in optimizer.param_groups] == [0.05]
