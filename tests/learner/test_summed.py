"""A loss that adds up over samples is known by the graph behind it, however it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from jupyter_dlaas.learner.elastic.sum_loss import Kind, kind_of, look

SAMPLES, TOTAL = 8, 16
torch.manual_seed(0)
layer = nn.Linear(4, 2)
x, y, t = torch.randn(SAMPLES, 4), torch.rand(SAMPLES, 2), torch.randint(0, 2, (SAMPLES,))
Loss = Callable[[torch.Tensor], Any]


def kld(out: torch.Tensor) -> torch.Tensor:
    mean, variance = out[:, :1], out[:, 1:]
    return -0.5 * torch.sum(1 + variance - mean.square() - variance.exp())


SUMS: dict[str, Loss] = {
    "mse": lambda out: nn.functional.mse_loss(out, y, reduction="sum"),
    "cross entropy": lambda out: nn.functional.cross_entropy(out, t, reduction="sum"),
    "a class": lambda out: nn.BCEWithLogitsLoss(reduction="sum")(out, y),
    "by hand": lambda out: (out - y).square().sum(),
    "a variational autoencoder": lambda out: (
        nn.functional.binary_cross_entropy(out.sigmoid(), y, reduction="sum") + kld(out)
    ),
    "scaled": lambda out: nn.functional.l1_loss(out, y, reduction="sum") * 1024.0,
    "over the batch size of all": lambda out: nn.functional.mse_loss(out, y, reduction="sum") / TOTAL,
    "in half precision": lambda out: nn.functional.mse_loss(out.bfloat16(), y.bfloat16(), reduction="sum").float(),
}
MEANS: dict[str, Loss] = {
    "mse": lambda out: nn.functional.mse_loss(out, y),
    "smoothed": lambda out: nn.functional.cross_entropy(out, t, label_smoothing=0.1),
    "over the samples": lambda out: (nn.functional.mse_loss(out, y, reduction="sum") + kld(out)) / len(x),
    "times one over the samples": lambda out: (out - y).square().sum() * (1 / len(x)),
    "over samples and pixels": lambda out: nn.functional.mse_loss(out, y) + kld(out) / (len(x) * 784),
    "of sums over a sample": lambda out: (out - y).square().sum(1).mean() + (0.1 * out.square().sum(1)).mean(),
    "with a regulariser": lambda out: (
        nn.functional.mse_loss(out, y) + 1e-3 * sum(p.abs().sum() for p in layer.parameters())
    ),
    "over time steps": lambda out: sum(nn.functional.cross_entropy(out, t) for _ in range(3)),
}
MIXED: dict[str, Loss] = {
    "a variational autoencoder": lambda out: nn.functional.binary_cross_entropy(out.sigmoid(), y) + kld(out),
    "an activity penalty": lambda out: nn.functional.mse_loss(out, y) + 0.01 * out.abs().sum(),
}
CASES = [
    *((Kind.SUM, name, SUMS[name]) for name in SUMS),
    *((Kind.MEAN, name, MEANS[name]) for name in MEANS),
    *((Kind.MIXED, name, MIXED[name]) for name in MIXED),
]


@pytest.mark.parametrize(("kind", "name", "loss"), CASES)
def test_a_loss_is_known_by_its_graph(kind: Kind, name: str, loss: Loss) -> None:
    assert kind_of(loss(layer(x)), SAMPLES, TOTAL) is kind, name


def test_the_first_losses_are_looked_at_and_then_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", plain)
    found: list[Kind] = []

    look(lambda: (SAMPLES, TOTAL), found.append)
    for _ in range(3):
        SUMS["mse"](layer(x)).backward()

    assert found == [Kind.SUM], "once"
    assert torch.autograd.backward is plain
