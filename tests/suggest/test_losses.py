"""A loss that adds up over samples is said to `run.prepare`: learners' gradients are averaged otherwise."""

from __future__ import annotations

import pytest

from tests.suggest.running import suggestion_for
from tests.suggest.test_shapes import MODEL

HEAD = MODEL + "import torch.nn.functional as F\n"
VAE = """\
def loss_function(recon, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon, x{how})
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD
"""
SUM = VAE.format(how=", reduction='sum'")
OWN = """\
class Net(nn.Module):
    def loss(self, x, y):
        return {loss}
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""


def prepared(setup: str, loss: str, then: str = "") -> str:
    """The line that hands the objects over, and all hints."""
    step = f"        loss = {loss}\n{then}        loss.backward()\n        opt.step()\n"
    found = suggestion_for(HEAD + setup, f"for epoch in range(3):\n    for x, y in loader:\n{step}")
    assert found.cells, found.why
    lines = [line for cell in found.cells for line in cell.added if "prepare(" in line]
    return "\n".join([*lines, *found.hints])


@pytest.mark.parametrize(
    ("setup", "loss"),
    [
        ("", 'F.mse_loss(net(x), y, reduction="sum")'),
        ("", "((net(x) - y) ** 2).sum()"),
        ("", "torch.sum((net(x) - y) ** 2)"),
        ("", "0.5 * (net(x) - y).pow(2).sum()"),
        ("", "((net(x) - y) ** 2).sum() / 64"),
        ('criterion = nn.MSELoss(reduction="sum")\n', "criterion(net(x), y)"),
        ("criterion = nn.MSELoss(size_average=False)\n", "criterion(net(x), y)"),
        (SUM, "loss_function(*net(x))"),
        (OWN.format(loss="(self(x) - y).abs().sum()"), "net.loss(x, y)"),
    ],
)
def test_a_sum_is_said_to_prepare(setup: str, loss: str) -> None:
    assert 'run.prepare(net, opt, loss="sum")' in prepared(setup, loss)


@pytest.mark.parametrize(
    ("setup", "loss"),
    [
        ("", "F.mse_loss(net(x), y)"),
        ("", "(net(x) - y).pow(2).sum(dim=1).mean()"),
        ("", "(net(x) - y).pow(2).sum() / x.size(0)"),
        ("", "torch.sum((net(x) - y) ** 2) / len(x)"),
        ("criterion = nn.CrossEntropyLoss()\n", "criterion(net(x), y)"),
        (SUM, "loss_function(*net(x)) / x.shape[0]"),
        (OWN.format(loss="(self(x) - y).abs().sum(1).mean()"), "net.loss(x, y)"),
        ("", "something(net(x), y)"),
    ],
)
def test_a_mean_is_left_alone(setup: str, loss: str) -> None:
    said = prepared(setup, loss)
    assert "run.prepare(net, opt)" in said
    assert "sum over samples" not in said


@pytest.mark.parametrize(
    ("setup", "loss", "then"),
    [
        (VAE.format(how=""), "loss_function(*net(x))", ""),
        ("", "F.mse_loss(net(x), y)", "        loss += 0.1 * net(x).abs().sum()\n"),
    ],
)
def test_a_sum_beside_a_mean_is_reported(setup: str, loss: str, then: str) -> None:
    assert "adds a sum over samples to a mean" in prepared(setup, loss, then)
