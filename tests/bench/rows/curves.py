"""Overhead of curves without a changed line, one learner on one thread."""

from __future__ import annotations

import json
import re
from statistics import median, quantiles

from tests.bench.measuring import Bench, Unmeasurable
from tests.bench.table import Figure, Line

DATA = """import json
import sys
import time
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(6400, 784), torch.randint(0, 10, (6400,))
data = torch.utils.data.TensorDataset(x, y)


marks, found = [], {True: [], False: []}


def mark():
    marks.append(time.process_time())


# With all that a job puts around this program for its curves, or as if it were not there.
def switch(on):
    for owner, name, ours in WRAPPED:
        setattr(owner, name, ours if on else ours.__wrapped__)
    steps._global_optimizer_post_hooks.clear()
    steps._global_optimizer_post_hooks.update(HOOKS if on else {})
    sys.stdout, sys.stderr = STREAMS if on else [one._stream for one in STREAMS]
    calls._Program.is_inside = not on


# Fits with and without: the seconds of their epochs, but for the first of each. Neighbours are compared: a processor
# is faster at one time than at another.
def in_turn(fit, rounds):
    global WRAPPED, HOOKS, STREAMS, calls, steps
    import torch.optim.optimizer as steps
    from jupyter_dlaas.learner.autolog import fit_calls as calls

    fit()  # what is looked at only in the beginning is gone then
    bar = sys.modules["tqdm.std"].tqdm if "tqdm.std" in sys.modules else object
    owners = [(torch.Tensor, "backward"), *((bar, name) for name in vars(bar))]
    WRAPPED = [(owner, name, vars(owner)[name]) for owner, name in owners]
    WRAPPED = [one for one in WRAPPED if "jupyter_dlaas" in getattr(one[2], "__code__", CODE).co_filename]
    HOOKS, STREAMS = dict(steps._global_optimizer_post_hooks), (sys.stdout, sys.stderr)
    for number in range(2 * rounds):
        on = number % 2 == number // 2 % 2
        switch(on)
        marks.clear()
        fit()
        found[on].append(marks[-1] - marks[0])
    switch(True)
    print("COST", json.dumps([found[True], found[False]]), flush=True)


CODE = in_turn.__code__
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


in_turn(lambda: fit(6), ROUNDS)
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


in_turn(lambda: fit(6), ROUNDS)
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


in_turn(lambda: fit(6), ROUNDS)
"""
)
TRANSFORMERS = (
    DATA
    + """
import tempfile
import transformers

transformers.utils.logging.disable_progress_bar()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


class Mark(transformers.TrainerCallback):
    def on_epoch_end(self, *_, **__):
        mark()


net, rows = Net(), [{"x": a, "labels": b} for a, b in data]


def fit(epochs):
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=epochs, per_device_train_batch_size=64, use_cpu=True, report_to=[],
        save_strategy="no", logging_steps=50, disable_tqdm=True,
    )
    trainer = transformers.Trainer(net, arguments, train_dataset=rows, callbacks=[Mark()])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


in_turn(lambda: fit(6), ROUNDS)
"""
)
FASTAI = (
    DATA
    + """
from fastai.basics import Callback, DataLoaders, Learner


class Mark(Callback):
    def after_epoch(self):
        mark()


loaders = DataLoaders.from_dsets(data, torch.utils.data.TensorDataset(x[:64], y[:64]), bs=64, num_workers=0)


def fit(epochs):
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    learner = Learner(loaders, net, loss_func=nn.CrossEntropyLoss(), cbs=[Mark()])
    with learner.no_logging():
        learner.fit(epochs)


in_turn(lambda: fit(6), ROUNDS)
"""
)
BOOSTED = (
    DATA
    + """
import KIND as boosting

x, y = x[:2000, :40].numpy(), y[:2000].numpy() > 4
IN_AN_EPOCH = 60
MARK


def fit(epochs):
    TRAIN


in_turn(lambda: fit(6), ROUNDS)
"""
)
XGBOOST = (
    BOOSTED.replace("KIND", "xgboost")
    .replace(
        "MARK",
        """

class Mark(boosting.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        if epoch % IN_AN_EPOCH == 0:
            mark()
        return False
""",
    )
    .replace(
        "TRAIN",
        """table = boosting.DMatrix(x, label=y)
    settings = {"nthread": 1, "max_depth": 6, "objective": "binary:logistic"}
    rounds = epochs * IN_AN_EPOCH
    boosting.train(settings, table, rounds, evals=[(table, "train")], verbose_eval=False, callbacks=[Mark()])""",
    )
)
LIGHTGBM = (
    BOOSTED.replace("KIND", "lightgbm")
    .replace(
        "MARK",
        """

def marking(env):
    if env.iteration % IN_AN_EPOCH == 0:
        mark()
""",
    )
    .replace(
        "TRAIN",
        """table = boosting.Dataset(x, label=y)
    settings = {"num_threads": 1, "objective": "binary", "verbose": -1}
    boosting.train(settings, table, epochs * IN_AN_EPOCH, valid_sets=[table], callbacks=[marking])""",
    )
)
PARTIAL = (
    DATA
    + """
from sklearn.neural_network import MLPClassifier

x, y = x.numpy(), y.numpy()


def fit(epochs):
    model = MLPClassifier((512,))
    for epoch in range(epochs):
        for at in range(0, len(x), 64):
            model.partial_fit(x[at : at + 64], y[at : at + 64], classes=list(range(10)))
        mark()


in_turn(lambda: fit(6), ROUNDS)
"""
)
PROGRAMS = {
    "plain loop, tqdm and print": PLAIN,
    "Lightning": LIGHTNING,
    "Keras on torch": KERAS,
    "Transformers' Trainer": TRANSFORMERS,
    "fastai": FASTAI,
    "XGBoost": XGBOOST,
    "LightGBM": LIGHTGBM,
    "scikit-learn's partial_fit": PARTIAL,
}


def measure(bench: Bench) -> list[Line]:
    """One job each, which trains in turn with and without: two runs differ by more than the bar is wide."""
    lines: list[Line] = []
    for said, program in PROGRAMS.items():
        source = program.replace("ROUNDS", str(max(4, 3 * bench.runs)))
        job = bench.site.submit(source, env={"OMP_NUM_THREADS": "1"}, framework="torch").wait()
        text = str(job.client.log(job.id)["text"])
        cost = re.search(r"COST (.+)", text)
        if cost is None:
            raise Unmeasurable(f"the training did not print its cost: {text[-300:]}")
        with_it, without = json.loads(cost[1])
        dearer = [100 * (a / b - 1) for a, b in zip(with_it, without, strict=True)]
        least, _, most = quantiles(dearer)
        lines.append(
            Line(
                what=f"curves without a changed line: {said}",
                bar="≤ 1 %",
                measured=Figure(median(dearer), least, most, len(dearer), "%"),
                beside=f"CPU time of a fit of six epochs, median: {1e3 * median(with_it):.0f} ms, "
                f"without {1e3 * median(without):.0f}; pairs in turn, their quarters in brackets",
            )
        )
    return lines
