"""Training loops that DistributedDataParallel alone does not follow. One learner and several train the same.

A loop takes `prepare`, which is `run.prepare` or gives its arguments back, and `batches(epoch)`: a learner's share.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn

__all__ = ["EPOCHS", "LOOPS", "Batch", "shares"]

Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[[Callable[..., Any], Callable[[int], Iterable[Batch]]], Any]
EPOCHS: Final = 4
SIZES: Final = (7, 6, 5)
LOOPS: dict[str, Loop] = {}


def shares(epoch: int, rank: int, size: int) -> Iterator[tuple[Batch, float]]:
    """Return what a learner gets of each batch of an epoch, and its part of the samples."""
    for number, count in enumerate(SIZES):
        chance = torch.Generator().manual_seed(10 * epoch + number)
        x = torch.randn(count, 4, generator=chance, dtype=torch.float64)
        y = x.sum(1, keepdim=True).sin()
        first, end = rank * count // size, (rank + 1) * count // size
        yield (x[first:end], y[first:end]), (end - first) / count


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def sgd(*modules: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([p for one in modules for p in one.parameters()], lr=lr, momentum=0.5)


def mse(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (out - y).square().mean()


def train(model: Any, opt: Any, batches: Iterable[Batch], loss: Callable[..., torch.Tensor] = mse) -> None:
    for x, y in batches:
        opt.zero_grad()
        loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()


@loop
def unfrozen(prepare: Any, batches: Any) -> Any:
    model = net()
    model[0].requires_grad_(requires_grad=False)
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        if epoch == 2:
            model.requires_grad_()
        train(model, opt, batches(epoch))
    return model


@loop
def unfrozen_from_nothing_and_frozen_again(prepare: Any, batches: Any) -> Any:
    model, head = net().requires_grad_(requires_grad=False), nn.Linear(1, 1).double()
    model, head, opt = prepare(model, head, sgd(model, head))
    for epoch in range(EPOCHS):
        model.requires_grad_(epoch in (1, 3))
        train(nn.Sequential(model, head), opt, batches(epoch))
    return nn.ModuleList([model, head])


@loop
def unfrozen_for_another_optimiser(prepare: Any, batches: Any) -> Any:
    model = net()
    model[0].requires_grad_(requires_grad=False)
    model, opt = prepare(model, sgd(model[2]))
    for epoch in range(EPOCHS):
        if epoch == 1:
            model.requires_grad_()
            opt = torch.optim.Adam(model.parameters(), lr=0.01)
        train(model, opt, batches(epoch))
    return model


@loop
def new_layers(prepare: Any, batches: Any) -> Any:
    model = net()
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        if epoch == 1:
            model[2] = nn.Linear(6, 1).double()
            opt.add_param_group({"params": model[2].parameters(), "lr": 0.01})
        if epoch == 2:
            model.append(nn.Linear(1, 1).double())
            opt.add_param_group({"params": model[3].parameters()})
        train(model, opt, batches(epoch))
    return model


@loop
def removed_layers(prepare: Any, batches: Any) -> Any:
    model = net()
    model.append(nn.Linear(1, 1).double())
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        if epoch == 2:
            del model[3]
        train(model, opt, batches(epoch))
    return model


@loop
def parameters_without_a_model(prepare: Any, batches: Any) -> Any:
    model, scale, shift = net(), nn.Parameter(torch.ones(1).double()), nn.Parameter(torch.zeros(1).double())
    opt = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    model, opt = prepare(model, opt)
    for epoch in range(EPOCHS):
        if epoch == 2:
            opt.add_param_group({"params": [shift]})
        for x, y in batches(epoch):
            opt.zero_grad()
            mse(model(x) * scale + (shift if epoch >= 2 else 0), y).backward()
            opt.step()
    return nn.ParameterList([*model.parameters(), scale, shift])


class Parts(nn.Module):
    """A model of which parts and methods are called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(4, 3).double(), nn.Linear(3, 4).double()
        self.head = nn.Linear(3, 1).double()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse(self.head(self.encoder(x)), y)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = torch.tanh(self.encoder(x))
        return self.decoder(code), self.head(code)


@loop
def a_method(prepare: Any, batches: Any) -> Any:
    model = Parts()
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            opt.zero_grad()
            model.loss(x, y).backward()
            opt.step()
    return model


@loop
def forward_called(prepare: Any, batches: Any) -> Any:
    model = Parts()
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            opt.zero_grad()
            rebuilt, out = model(x) if epoch < 2 else model.forward(x)
            (mse(rebuilt, x) + mse(out, y)).backward()
            opt.step()
    return model


@loop
def two_backward_passes(prepare: Any, batches: Any) -> Any:
    model = Parts()
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            opt.zero_grad()
            rebuilt, out = model(x)
            mse(rebuilt, x).backward(retain_graph=True)
            mse(out, y).backward()
            opt.step()
    return model


@loop
def a_second_backward_pass(prepare: Any, batches: Any) -> Any:
    model = net()
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            opt.zero_grad()
            out = model(x)
            mse(out, y).backward(retain_graph=True)
            if epoch >= 2:
                out.abs().mean().backward()
            opt.step()
    return model


@loop
def unused_parameters(prepare: Any, batches: Any) -> Any:
    model = Parts()
    model, opt = prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1))
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(batches(epoch)):
            opt.zero_grad()
            rebuilt, out = model(x)
            (mse(rebuilt, x) if number % 2 else mse(out, y)).backward()
            opt.step()
    return model


@loop
def adversaries(prepare: Any, batches: Any) -> Any:
    maker, critic = nn.Linear(4, 4).double(), net()
    maker, critic, one, other = prepare(maker, critic, sgd(maker), sgd(critic))
    for epoch in range(EPOCHS):
        for x, _ in batches(epoch):
            other.zero_grad()
            (critic(maker(x).detach()).square().mean() - critic(x).square().mean()).backward()
            other.step()
            critic.requires_grad_(epoch % 2 == 0)
            one.zero_grad()
            critic(maker(x)).square().mean().backward()
            one.step()
            critic.requires_grad_()
    return nn.ModuleList([maker, critic])


@loop
def accumulated(prepare: Any, batches: Any) -> Any:
    model = Parts()
    model, opt = prepare(model, sgd(model))
    for number, (x, y) in enumerate(itertools.chain(*map(batches, range(EPOCHS)))):
        (model.loss(x, y) / 2).backward()
        if number % 2:
            opt.step()
            opt.zero_grad()
    return model


@loop
def lbfgs(prepare: Any, batches: Any) -> Any:
    model = net()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    model, opt = prepare(model, opt)
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                opt.zero_grad()
                loss = mse(model(x), y)
                loss.backward()
                return loss

            assert isinstance(opt.step(closure), torch.Tensor)
    return model


@loop
def a_closure_for_sgd(prepare: Any, batches: Any) -> Any:
    model = net()
    model, opt = prepare(model, sgd(model))
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                opt.zero_grad()
                loss = mse(model(x), y)
                loss.backward()
                return loss

            opt.step(closure)
    return model


@loop
def a_sum_as_loss(prepare: Any, batches: Any) -> Any:
    model = net()
    model, opt = prepare(model, sgd(model, lr=0.01), loss="sum")
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(batches(epoch)):
            (model(x) - y).square().sum().backward()
            if number % 2:  # gradients of two batches
                opt.step()
                opt.zero_grad()
    return model


@loop
def a_sum_in_a_closure(prepare: Any, batches: Any) -> Any:
    model = net()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    model, opt = prepare(model, opt, loss="sum")
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                opt.zero_grad()
                loss: torch.Tensor = (model(x) - y).square().sum()
                loss.backward()
                return loss

            opt.step(closure)
    return model


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as most write it."""

    def __init__(self, params: Any, base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in trained if p.grad is not None]).norm()
        for p in trained:
            self.state[p]["old"] = p.detach().clone()
            assert p.grad is not None
            p.add_(p.grad, alpha=float(0.05 / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> Any:
        assert closure is not None
        self.first_step()
        with torch.enable_grad():
            loss = closure()
        self.second_step()
        return loss


@loop
def sam(prepare: Any, batches: Any) -> Any:
    model = net()
    model, opt = prepare(model, SAM(model.parameters(), torch.optim.SGD, lr=0.1))
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                loss = mse(model(x), y)
                loss.backward()
                return loss

            if epoch % 2:
                closure()
                opt.step(closure)
            else:
                closure()
                opt.first_step()
                closure()
                opt.second_step()
    return model


@loop
def a_copy_that_is_averaged(prepare: Any, batches: Any) -> Any:
    model = net()
    model, opt = prepare(model, sgd(model))
    average = copy.deepcopy(model)
    for epoch in range(EPOCHS):
        train(model, opt, batches(epoch))
        for one, other in zip(average.parameters(), model.parameters(), strict=True):
            one.data.lerp_(other.data, 0.3)
    return average
