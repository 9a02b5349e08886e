"""What curves without a changed line take from training: the same job with and without `--autolog`, one learner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from statistics import median

from tests.bench.measuring import Bench, Unmeasurable, in_turn
from tests.bench.table import Figure, Line

DATA = """import time
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(6400, 784), torch.randint(0, 10, (6400,))
data = torch.utils.data.TensorDataset(x, y)


marks = []


def mark():
    marks.append(time.process_time())


def timed(fit):
    marks.clear()
    mark()
    fit()
    mark()
    print("COST", *(f"{b - a:.5f}" for a, b in zip(marks, marks[1:])), flush=True)
"""
PLAIN = (
    DATA
    + """
from tqdm import tqdm

model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters())
loader = torch.utils.data.DataLoader(data, 64, shuffle=True)


def fit(epochs):
    for epoch in range(epochs):
        total = 0.0
        bar = tqdm(loader, desc=f"Epoch {epoch}")
        for step, (a, b) in enumerate(bar):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            total += loss.item()
            if step % 20 == 0:
                bar.set_postfix(loss=loss.item())
        print(f"Epoch {epoch + 1}/{epochs} loss: {total / len(loader):.4f}")
        mark()


fit(1)
timed(lambda: fit(20))
"""
)
LIGHTNING = (
    DATA
    + """
import logging
import lightning

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


    def on_train_epoch_end(self):
        mark()


net, loader = Net(), torch.utils.data.DataLoader(data, 64, shuffle=True)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)


def fit(epochs):
    lightning.Trainer(max_epochs=epochs, accelerator="cpu", **quiet).fit(net, loader)


fit(1)
timed(lambda: fit(20))
"""
)
KERAS = (
    """import os
os.environ["KERAS_BACKEND"] = "torch"
"""
    + DATA
    + """
import keras

model = keras.Sequential([keras.layers.Input((784,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def fit(epochs):
    marker = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: mark())
    model.fit(x.numpy(), y.numpy(), batch_size=64, epochs=epochs, verbose=2, callbacks=[marker])


fit(1)
timed(lambda: fit(12))
"""
)
PROGRAMS = {"plain loop, tqdm and print": PLAIN, "Lightning": LIGHTNING, "Keras on torch": KERAS}


class _Side:
    """CPU seconds of each epoch (the first of a fit tells how it begins) and from the last epoch to the fit's end."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.epochs: list[float] = []
        self.ends: list[float] = []

    def take(self, text: str) -> float:
        found = re.search(r"COST (.+)", text)
        if found is None:
            raise Unmeasurable(f"the training did not tell what it took: {text[-300:]}")
        begin, *epochs, end = (float(one) for one in found[1].split())
        self.begins.append(begin)
        self.epochs += epochs
        self.ends.append(end)
        return sum(epochs)

    def fit_s(self, of: Callable[[list[float]], float]) -> float:
        """A fit of as many epochs as one was, each of its parts as `of` (least, median) says."""
        count = len(self.epochs) / len(self.ends)
        return of(self.begins) + count * of(self.epochs) + of(self.ends)


def measure(bench: Bench) -> list[Line]:
    """Runs in turn, one thread per process, in CPU seconds. The machine varies more between two runs than the bar

    is wide, so what counts is put together from the least of each part over all runs.
    """
    lines: list[Line] = []
    for said, program in PROGRAMS.items():
        script = str(bench.script(program))
        on, off, alone = _Side(), _Side(), _Side()
        in_turn(bench.runs, _job(bench, program, on), _job(bench, program, off, autolog=False), _plain(script, alone))
        more = 100 * (on.fit_s(min) / off.fit_s(min) - 1)
        medians = 100 * (on.fit_s(median) / off.fit_s(median) - 1)
        lines.append(
            Line(
                what=f"curves without a changed line: {said}",
                bar="≤ 1 %",
                measured=Figure(more, more, more, 1, "%"),
                beside=f"medians {medians:+.1f} %; an epoch {1e3 * min(on.epochs):.1f} ms, without "
                f"{1e3 * min(off.epochs):.1f}, plain {1e3 * min(alone.epochs):.1f}; end of the fit "
                f"{1e3 * min(on.ends):.1f} ms, without {1e3 * min(off.ends):.1f}",
            )
        )
    return lines


def _plain(script: str, side: _Side) -> Callable[[], float]:
    def once() -> float:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=300)
        return side.take(ended.stdout + ended.stderr)

    return once


def _job(bench: Bench, program: str, side: _Side, *, autolog: bool = True) -> Callable[[], float]:
    def once() -> float:
        environment = {"OMP_NUM_THREADS": "1"}
        job = bench.site.submit(program, env=environment, framework="torch", autolog=autolog).wait()
        return side.take(str(job.client.log(job.id)["text"]))

    return once
