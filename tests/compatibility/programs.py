"""Training programs of the jobs in a kept pool: each takes its time from step 6 on, until the file `go` is there."""

from __future__ import annotations

__all__ = ["EXACT", "FAILING", "KERAS", "LIGHTNING", "PLAIN", "SENT", "TORCH"]

_SLOW = """
import pathlib, time
def slow(step):
    if step >= 6 and not pathlib.Path("go").exists():
        time.sleep(0.3)
"""

# Changes of everything that a checkpoint sees: names, containers, objects, closures, generators, functions by value.
PLAIN = (
    _SLOW
    + """
import collections, random, threading
import jupyter_dlaas as dlaas

class Average:
    def __init__(self):
        self.total, self.count, self.lock = 0.0, 0, threading.Lock()
    def add(self, value):
        self.total, self.count = self.total + value, self.count + 1

def counter():
    count = 0
    def add():
        nonlocal count
        count += 1
        return count
    return add

random.seed(3)
draws = random.Random(5)
data = list(range(64))
average, count = Average(), counter()
history, last, seen = [], collections.deque(maxlen=3), {}
scale = lambda value: value
run = dlaas.run()
for epoch in run.epochs(4):
    for batch in run.batches(data, 8):
        value = scale(float(sum(batch))) + draws.random() + random.random()
        average.add(value)
        history.append(round(value, 9))
        last.append(count())
        seen[run.step] = seen.get(run.step, 0) + 1
        run.state["best"] = max(run.state.get("best", 0.0), value)
        if run.step == 3:
            run.checkpoint()
        slow(run.step)
    by = epoch + 2
    scale = lambda value, by=by: value / by
    best = Average()
    best.add(run.state["best"])
    run.log(value=average.total / average.count)
result = {
    "history": history, "last": list(last), "seen": seen, "mean": average.total / average.count, "best": best.total,
    "after": [draws.random(), random.random()],
}
scaled = lambda value: scale(value) + 1
"""
)

FAILING = """
import jupyter_dlaas as dlaas
run = dlaas.run()
for epoch in run.epochs(2):
    for batch in run.batches(list(range(8)), 4):
        if run.step == 3:
            raise ValueError("the third step has bad luck")
"""

SENT = """
import jupyter_dlaas as dlaas
numbers, double = dlaas.pushed("numbers", "double")
result = [double(number) for number in numbers]
"""

_TORCH = (
    _SLOW
    + """
import torch
import jupyter_dlaas as dlaas
torch.manual_seed(0)
data = torch.randn(64, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.2), torch.nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
run = dlaas.run()
"""
)

_TORCH_RESULT = """
result = {
    "losses": losses, "rate": scheduler.get_last_lr(),
    "weights": {name: value.tolist() for name, value in model.state_dict().items()},
}
"""

# A plain loop with objects of its own beside the prepared ones: views of one storage, made within the loop.
TORCH = (
    _TORCH
    + """
run.prepare(model, optimizer, scheduler=scheduler)
losses, shadow = [], None
for epoch in run.epochs(4):
    for batch in run.batches(data, 8):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(round(loss.item(), 5))
        flat = torch.cat([one.detach().flatten() for one in model.parameters()])
        shadow = flat.clone() if shadow is None else shadow * 0.9 + flat * 0.1
        halves = [shadow[:4], shadow[4:]]
        if run.step == 3:
            run.checkpoint()
        slow(run.step)
    run.log(loss=losses[-1])
"""
    + _TORCH_RESULT
    + """
result["halves"] = [one.tolist() for one in halves]
factor = 2.0
by = (lambda factor: lambda value: value * factor)(factor)
"""
)

EXACT = (
    _TORCH
    + """
run.prepare(model, optimizer, scheduler=scheduler, shards=4)
def loss_of(part):
    return model(part).square().mean()
def update():
    optimizer.step()
    scheduler.step()
losses = []
for epoch in run.epochs(4):
    for batch in run.batches(data, 8):
        loss = run.train_step(loss_of, batch, update)
        losses.append(round(loss.item(), 5))
        slow(run.step)
    run.log(loss=losses[-1])
"""
    + _TORCH_RESULT
)

LIGHTNING = (
    _SLOW
    + """
import torch
from torch import nn
import lightning.pytorch as pl
pl.seed_everything(3)
x = torch.randn(64, 4)
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 1))
        self.losses = []
    def training_step(self, batch, index):
        loss = self.layers(batch).square().mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.losses.append(round(loss.item(), 5))
        slow(len(self.losses))
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
net = Net()
trainer = pl.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(net, torch.utils.data.DataLoader(x, batch_size=8, shuffle=True))
result = {"losses": net.losses, "weights": {name: value.tolist() for name, value in net.state_dict().items()}}
"""
)

KERAS = (
    _SLOW
    + """
import numpy as np
import keras
keras.utils.set_random_seed(3)
x = np.random.normal(size=(64, 4)).astype("float32")
y = x.sum(1)
losses = []
class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(round(float(logs["loss"]), 5))
        slow(len(losses))
model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
model.compile(optimizer, "mse", metrics=["mae"])
history = model.fit(x, y, epochs=4, batch_size=8, verbose=0, callbacks=[Slow()])
result = {"history": history.history["loss"], "weights": [one.tolist() for one in model.get_weights()]}
"""
)
