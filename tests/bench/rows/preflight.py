"""Cost of `%%train` before its request: cells and kernel of a usual torch notebook of 20 cells."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from tests.bench.measuring import Bench, Unmeasurable
from tests.bench.table import Line, figure

NOTEBOOK = """\
import os, math, random, time
import numpy as np
import pandas as pd
# %%
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split
# %%
SEED = 3
random.seed(SEED); np.random.seed(SEED); torch.manual_seed(SEED)
# %%
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
config = dict(lr=0.01, epochs=3, batch=64, hidden=32)
# %%
raw = pd.DataFrame(np.random.randn(2000, 8), columns=list('abcdefgh'))
raw['y'] = (raw.sum(axis=1) > 0).astype(int)
# %%
raw.head()
# %%
raw.describe()
# %%
clean = raw.dropna()
x = torch.tensor(clean.drop(columns='y').values, dtype=torch.float32)
y = torch.tensor(clean['y'].values)
# %%
clean['a'].hist
# %%
full = TensorDataset(x, y)
train_set, test_set = random_split(full, [1600, 400])
# %%
train_loader = DataLoader(train_set, batch_size=config['batch'], shuffle=True)
test_loader = DataLoader(test_set, batch_size=256)
# %%
class Block(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.lin, self.norm = nn.Linear(n, m), nn.BatchNorm1d(m)
    def forward(self, x):
        return F.relu(self.norm(self.lin(x)))
# %%
class Net(nn.Module):
    def __init__(self, n, hidden, classes=2):
        super().__init__()
        self.body = nn.Sequential(*[Block(n if i == 0 else hidden, hidden) for i in range(20)])
        self.head = nn.Linear(hidden, classes)
    def forward(self, x):
        return self.head(self.body(x))
# %%
model = Net(8, config['hidden']).to(device)
print(sum(p.numel() for p in model.parameters()))
# %%
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=config['lr'])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
# %%
def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(a.to(device)).argmax(1) == b.to(device)).sum().item() for a, b in loader)
    model.train()
    return right / len(loader.dataset)
# %%
def train_epoch(model, loader, optimizer):
    total = 0
    for a, b in loader:
        optimizer.zero_grad()
        loss = criterion(model(a.to(device)), b.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)
# %%
accuracy(model, test_loader)
# %%
batch = next(iter(train_loader))
batch[0].shape
# %%
!true
"""
GOAL = """\
history = []
for epoch in range(config['epochs']):
    loss = train_epoch(model, train_loader, optimizer)
    scheduler.step()
    history.append((loss, accuracy(model, test_loader)))
    print(f'epoch {epoch} loss {loss:.3f}')
torch.save(model.state_dict(), 'm.pt')
"""
PROGRAM = """
import contextlib, json, os, sys, time
os.environ["JUPYTER_DLAAS_WARM"] = "0"
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from jupyter_dlaas.kernel import magics, submit as submitting
from jupyter_dlaas.kernel.options import parse
given = json.load(sys.stdin)
config = Config()
config.HistoryManager.hist_file = ":memory:"
shell = InteractiveShell.instance(config=config)
found = {}
with contextlib.redirect_stdout(sys.stderr):
    for source in ["%load_ext jupyter_dlaas", *given["cells"]]:
        shell.run_cell(source, store_history=True).raise_error()
    known = magics._loaded[shell]
    for line in given["lines"]:
        times = []
        for _ in range(given["runs"]):
            begin, busy = time.perf_counter(), time.process_time()
            asked = parse(magics._parser(known.train), line)
            cell = submitting.Cell(given["goal"], 99)
            made = submitting.capture_cell(shell, known.recorder.cells(), cell, asked, known.follower.results())
            times.append(((time.perf_counter() - begin) * 1000, (time.process_time() - busy) * 1000))
            assert not made.errors, made.errors
        found[line] = times
print(json.dumps(found))
"""
LINES = {"": "%%train", "--push model,optimizer,scheduler": "… with --push of model, optimiser and schedule"}


def measure(bench: Bench) -> list[Line]:
    """Measure all runs, the first of each included: it is the one that a user waits for."""
    given = {"cells": NOTEBOOK.split("# %%\n"), "goal": GOAL, "lines": [*LINES], "runs": bench.runs}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], input=json.dumps(given), capture_output=True, text=True)
    if ended.returncode:
        raise Unmeasurable(ended.stderr[-300:])
    found = json.loads(ended.stdout)
    return [
        Line(
            what=f"pre-flight, 20 torch cells: {says}",
            bar="≤ 200 ms",
            measured=figure([whole for whole, _ in found[line]], "ms"),
            beside=f"{median(busy for _, busy in found[line]):.0f} ms of the processor's; "
            f"the first one {found[line][0][1]:.0f} ms",
        )
        for line, says in LINES.items()
    ]
