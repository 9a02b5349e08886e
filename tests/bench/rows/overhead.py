"""Overhead of the platform: the same small CNN as a plain script and as a job, in steps per second."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

from tests.bench.measuring import Bench, Unmeasurable, in_turn
from tests.bench.table import Figure, Line, figure

STEPS = 400
WARM_UP = 40
MODEL = f"""import time
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.out = nn.Linear(64 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.out(x.flatten(1))


model = Net()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
epochs = {STEPS + WARM_UP} // 29 + 1
count, marks = 0, {{}}


def train(x, y):
    global count
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    count += 1
    if count in ({WARM_UP}, {STEPS + WARM_UP}):
        marks[count] = time.perf_counter(), time.process_time()
    return loss


def tell():
    wall, used = (b - a for a, b in zip(marks[{WARM_UP}], marks[{STEPS + WARM_UP}]))
    print(f"STEPS {{{STEPS} / wall}} {{{STEPS} / used}}", flush=True)

"""
PLAIN = (
    MODEL
    + """
loader = DataLoader(data, 64, shuffle=True)
for epoch in range(epochs):
    for x, y in loader:
        loss = train(x, y)
    print(epoch, loss.item())
tell()
"""
)
PLAIN_DDP = (
    MODEL
    + """
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
sampler = DistributedSampler(data)
loader = DataLoader(data, 32, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = train(x, y)
    print(epoch, loss.item())
if torch.distributed.get_rank() == 0:
    tell()
torch.distributed.destroy_process_group()
"""
)
OURS = (
    MODEL
    + """
import jupyter_dlaas as dlaas
run = dlaas.run()
model, opt = run.prepare(model, opt)
for epoch in run.epochs(epochs):
    for x, y in run.batches(data, 64):
        loss = train(x, y)
    run.log(loss=loss)
if run.is_main:
    tell()
"""
)


def measure(bench: Bench) -> list[Line]:
    """Alternate runs of both sides, each with one thread per process, as a job on one CPU slot has it."""
    runs = max(2, bench.runs // 3)
    lines: list[Line] = []
    for learners, who in ((1, "python script.py"), (2, "torchrun, DDP")):
        if learners > bench.site.slots:
            continue
        script = bench.script(PLAIN if learners == 1 else PLAIN_DDP)
        wall, used = _Pair(), _Pair()
        in_turn(runs, _plain(str(script), learners, wall, used), _job(bench, learners, wall, used))
        said = "one learner" if learners == 1 else "two learners"
        bar = "≤ 1 %" if learners == 1 else "≤ 3 %"
        lines.append(wall.line(f"overhead in steps/s, {said}", bar, who))
        lines.append(used.line(f"… in steps per CPU second, {said}", "(less noisy)", who))
    return lines


class _Pair:
    """Rates of both sides; the first round of each is thrown away."""

    def __init__(self) -> None:
        self.plain: list[float] = []
        self.ours: list[float] = []

    def line(self, what: str, bar: str, who: str) -> Line:
        ours, theirs = figure(self.ours[1:], "/s"), figure(self.plain[1:], "/s")
        lost = 100 * (1 - ours.median / theirs.median)
        measured = Figure(lost, lost, lost, 1, "%")
        return Line(what=what, bar=bar, measured=measured, beside=f"job {ours}, {who}", beside_figure=theirs)


def _rates(text: str) -> tuple[float, float]:
    found = re.search(r"STEPS (\S+) (\S+)", text)
    if found is None:
        raise Unmeasurable(f"the training did not tell its rate: {text[-300:]}")
    return float(found[1]), float(found[2])


def _plain(script: str, learners: int, wall: _Pair, used: _Pair) -> Callable[[], float]:
    command = [sys.executable, script]
    if learners > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={learners}"]

    def once() -> float:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        rates = _rates(ended.stdout + ended.stderr)
        wall.plain.append(rates[0])
        used.plain.append(rates[1])
        return rates[0]

    return once


def _job(bench: Bench, learners: int, wall: _Pair, used: _Pair) -> Callable[[], float]:
    def once() -> float:
        job = bench.site.submit(OURS, learners=learners, env={"OMP_NUM_THREADS": "1"}, framework="torch").wait()
        rates = _rates(str(job.client.log(job.id)["text"]))
        wall.ours.append(rates[0])
        used.ours.append(rates[1])
        return rates[0]

    return once
