"""A plain loop, rewritten as `%%train --suggest` says, is an elastic job: its size changes while it trains."""

from __future__ import annotations

from typing import Any

from jupyter_dlaas.api.jobs import Job
from tests.notebook_e2e.rooms import Kernel, Pool, until
from tests.selection import exhaustive
from tests.suggest.running import rewritten

EPOCHS = 60
BATCHES = 8
CELLS = (
    """\
import pathlib, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 4)
train_loader = DataLoader(TensorDataset(x, x @ torch.ones(4, 1)), batch_size=8, shuffle=True)
net = nn.Linear(4, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.02)
""",
    """\
def fit(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            loss = ((model(a) - b) ** 2).mean()
            loss.backward()
            optimizer.step()
            if not pathlib.Path("all-sizes-seen").exists():
                time.sleep(0.2)
""",
    f"fit(net, train_loader, sgd, {EPOCHS})\n",
)


def steps_of(pool: Pool, handle: str) -> int:
    progress = pool.job(handle).progress
    return progress.step if progress is not None else 0


def trains_on(pool: Pool, handle: str, size: int) -> None:
    """Wait until the job has this size, and takes steps with it."""
    until(lambda: pool.job(handle).size.held == size, 300)
    first = steps_of(pool, handle)
    until(lambda: steps_of(pool, handle) > first + 3, 300)


@exhaustive
def test_rewritten_loop_scales_and_takes_each_step_once(kernel: Kernel, pool: Pool) -> None:
    *before, training = rewritten(*CELLS)
    for cell in before:
        kernel.run(cell)
    handle = kernel.run(f"%%train elastic --gpus 1:2 -o net\n{training}").job["id"]
    client = pool.client

    for size in (1, 2, 1):
        Job(handle, client).scale(size)
        trains_on(pool, handle, size)
    kernel.run("pathlib.Path('all-sizes-seen').touch()")
    view = pool.until(handle, "COMPLETED")
    assert [(one.before, one.after) for one in view.resizes][-2:] == [(1, 2), (2, 1)]
    assert steps_of(pool, handle) == EPOCHS * BATCHES
    curve: Any = client.curves(handle)["loss"]
    losses = [value for _, _, value in curve]
    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] / 100
