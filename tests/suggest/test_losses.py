"""A loss that adds up over samples is said to `run.prepare`: learners' gradients are averaged otherwise."""

from __future__ import annotations

import json

import pytest

from jupyter_dlaas.analysis.model import ExecutedCell, TrainingCell
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.suggest.notebook_report import check
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
    """Return the line that prepares the objects, and all hints."""
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
def test_summed_loss_is_declared_in_prepare(setup: str, loss: str) -> None:
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


SHARED = "import jupyter_dlaas as dlaas\nrun = dlaas.run()\n"
SHARED += "net, opt = run.prepare(net, opt{how})\nfor epoch in run.epochs(3):\n"


def warned(loss: str, how: str = "", learners: int = 4) -> list[str]:
    """Return the warnings before a job with a loop of `run` written by hand starts."""
    cell = SHARED.format(how=how) + f"    for x, y in run.batches(loader):\n        loss = {loss}\n"
    cell += "        loss.backward()\n        opt.step()\n"
    training = TrainingCell(count=2, source=cell, learners_max=learners)
    made = capture([ExecutedCell(count=1, source=HEAD)], training)
    return [problem.message for problem in made.warnings if problem.code == "loss_is_sum"]


def test_summed_loss_in_a_run_loop_is_a_warning() -> None:
    said = warned('F.mse_loss(net(x), y, reduction="sum")')

    assert said[0].startswith("cell [2], line 4: the loss sums over samples")
    assert said[0].endswith('Use run.prepare(…, loss="sum").')
    assert warned("F.mse_loss(net(x), y) + (net(x) ** 2).sum()")[0].startswith("cell [2], line 4: the loss adds a sum")


@pytest.mark.parametrize(
    ("loss", "how", "learners"),
    [
        ("F.mse_loss(net(x), y)", "", 4),
        ('F.mse_loss(net(x), y, reduction="sum")', ', loss="sum"', 4),
        ('F.mse_loss(net(x), y, reduction="sum")', "", 1),
    ],
)
def test_correct_or_single_learner_loss_gives_no_warning(loss: str, how: str, learners: int) -> None:
    assert warned(loss, how, learners) == []


def test_check_warns_of_a_sum_in_a_loop_of_run() -> None:
    cell = SHARED.format(how="") + "    for x, y in run.batches(loader):\n        loss = (net(x) - y).pow(2).sum()\n"
    cells = [HEAD, cell + "        loss.backward()\n        opt.step()\n"]
    page = {"cells": [{"cell_type": "code", "source": source} for source in cells]}

    report = check(json.dumps(page).encode(), "x.ipynb")

    assert [one.code for one in report.cells[-1].warnings] == ["loss_is_sum"]
