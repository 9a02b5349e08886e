"""Names of a notebook that refer to parts of a result see what they would see if the training cell had run here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.result_restore import Restored, restore
from jupyter_dlaas.transfer.shared_objects import ClassAttributes, Origins, parts_of

SETUP = """
import collections, copy
import numpy as np, pandas as pd, torch
from sklearn.preprocessing import StandardScaler
from torch import nn

class Stopper:
    def __init__(self):
        self.best, self.seen = 9.0, []
    def see(self, loss):
        self.best = min(self.best, loss)
        self.seen.append(loss)

class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.history, self.logs = [], {"loss": []}
        self.stopper, self.best = Stopper(), Stopper()
        self.recent, self.seen = collections.deque(maxlen=2), set()
        self.mean, self.total, self.table = np.zeros(2), torch.zeros(2), pd.DataFrame({"loss": [9.0]})
        self.generator, self.scaler = np.random.default_rng(0), StandardScaler()
    def fit(self, steps):
        for step in range(steps):
            loss = self.model(torch.ones(1, 2)).sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for one in (self.history, self.logs["loss"], self.recent):
                one.append(loss.item())
            self.seen.add(step)
            self.stopper.see(loss.item())
            self.mean += loss.item()
            self.total += loss.item()
            self.table.loc[len(self.table)] = [loss.item()]
            self.generator.random()
        self.scaler.fit(self.mean.reshape(-1, 1))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.losses, self.stopper = nn.Linear(2, 1), [], Stopper()
        self.loader = torch.utils.data.DataLoader([1.0, 2.0])
    def forward(self, x):
        return self.layer(x)

torch.manual_seed(0)
net = Net()
trainer = Trainer(net)
"""
PROGRAMS: dict[str, tuple[str, str, str]] = {
    # what it is: (the cells above, the training cell, what is compared)
    "list": ("alias = trainer.history", "trainer.fit(2)", "alias, alias is trainer.history"),
    "dict": ("alias = trainer.logs", "trainer.fit(2)", "alias, alias is trainer.logs"),
    "list in a dict": ("alias = trainer.logs['loss']", "trainer.fit(2)", "alias, alias is trainer.logs['loss']"),
    "deque": ("alias = trainer.recent", "trainer.fit(3)", "list(alias), alias is trainer.recent"),
    "set": ("alias = trainer.seen", "trainer.fit(2)", "alias, alias is trainer.seen"),
    "own object": ("alias = trainer.stopper", "trainer.fit(2)", "vars(alias), alias is trainer.stopper"),
    "list in an object": ("alias = trainer.stopper.seen", "trainer.fit(2)", "alias, alias is trainer.stopper.seen"),
    "array": ("alias = trainer.mean", "trainer.fit(2)", "alias.tolist(), alias is trainer.mean"),
    "tensor": ("alias = trainer.total", "trainer.fit(2)", "alias.tolist(), alias is trainer.total"),
    "table": ("alias = trainer.table", "trainer.fit(2)", "alias.loss.tolist(), alias is trainer.table"),
    "generator": ("alias = trainer.generator", "trainer.fit(2)", "alias.random(), alias is trainer.generator"),
    "estimator": ("alias = trainer.scaler", "trainer.fit(2)", "alias.mean_.tolist(), alias is trainer.scaler"),
    "field of a model": ("alias = net.losses", "net.losses.append(1)", "alias, alias is net.losses"),
    "object in a model": ("alias = net.stopper", "net.stopper.see(1)", "vars(alias), alias is net.stopper"),
    "model of a trainer": (
        "alias = trainer.model",
        "trainer.fit(2)",
        "alias is trainer.model, alias.layer.bias.tolist()",
    ),
    "trained before": ("trainer.fit(2)\nalias = trainer.history", "trainer.fit(2)", "alias, alias is trainer.history"),
    "replaced list": (
        "trainer.fit(2)\nalias = trainer.history",
        "trainer.history = []\ntrainer.fit(2)",
        "alias, trainer.history, alias is trainer.history",
    ),
    "replaced object": (
        "alias = trainer.best",
        "trainer.best = Stopper(); trainer.best.see(1)",
        "alias.best, trainer.best.best",
    ),
    "replaced array": (
        "alias = trainer.mean",
        "trainer.mean = trainer.mean + 1",
        "alias.tolist(), trainer.mean.tolist()",
    ),
    "replaced loader": ("alias = net.loader", "net.loader = type(alias)([1, 2, 3])", "len(alias), len(net.loader)"),
    "moved object": (
        "former = trainer.best; latter = trainer.stopper",
        "trainer.best, trainer.stopper = trainer.stopper, trainer.best; trainer.best.see(1)",
        "former is trainer.stopper, latter is trainer.best, vars(former), vars(latter)",
    ),
    "kept loader": ("alias = net.loader", "net.losses.append(1)", "alias is net.loader, alias.dataset"),
    "object given to two": (
        "shared = Stopper(); net.stopper = trainer.stopper = shared",
        "trainer.fit(1)",
        "vars(shared), shared is net.stopper, shared is trainer.stopper",
    ),
    "class attribute": (
        "Trainer.runs = 0; Trainer.all = []; alias = Trainer.all",
        "Trainer.runs += 1; trainer.all.append(1); Trainer.last = 2",
        "Trainer.runs, Trainer.last, alias, alias is trainer.all",
    ),
    "replaced class attribute": (
        "Trainer.all = []; alias = Trainer.all",
        "Trainer.all = [1]; trainer.fit(1)",
        "alias, trainer.all",
    ),
    "attribute of a base": (
        "class Base:\n    known = {}\nclass Sub(Stopper, Base): pass\ntrainer.stopper = Sub()",
        "trainer.stopper.known['trainer'] = 1",
        "Base.known",
    ),
    "copy of a list": ("alias = list(trainer.history)", "trainer.fit(2)", "alias, len(trainer.history)"),
}


def be_main(space: dict[str, Any]) -> None:
    """Let pickle find the classes of this program."""
    for name, one in space.items():
        if isinstance(one, type) and one.__module__ == "__main__":
            setattr(sys.modules["__main__"], name, one)


def after_a_job(above: str, cell: str, folder: Path, *names: str) -> tuple[dict[str, Any], Restored]:
    """Run a training cell as a job does; return the notebook with its results."""
    here: dict[str, Any] = {"__name__": "__main__"}
    there = dict(here)
    for space in (here, there):
        exec(SETUP + above, space)
    origins = Origins({name: there[name] for name in names}, [one for one in there.values() if isinstance(one, type)])
    exec(cell, there)
    be_main(there)
    stored, errors = results.store(folder, names, there, origins)
    assert (stored, errors) == ([*names], {})
    data = (folder / f"{names[0]}.bin").read_bytes()
    be_main(here)
    loaded = results.load_graph(names[0], data)
    attributes = ClassAttributes(loaded)
    into = {name: here[name] for name in names} | attributes.values()
    found = restore(loaded, into, origins=results.origins_in(data))
    attributes.bind(found.values)
    here.update({name: found.values[name] for name in names})
    return here, found


@pytest.mark.parametrize("name", PROGRAMS)
def test_alias_is_as_after_the_cell_itself(name: str, tmp_path: Path) -> None:
    above, cell, seen = PROGRAMS[name]
    names = ["net"] if "trainer" not in cell else ["trainer"]
    plain: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP + above + "\n" + cell, plain)
    here, found = after_a_job(above, cell, tmp_path, *names)

    assert not found.reason
    assert eval(seen, here) == eval(seen, plain)


def test_parts_of_keras_layers_have_no_paths() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tracked: list[int] = []

    outer = Layer()
    outer.inner = Layer()
    assert [*(parts_of("outer", outer) or {})] == ["outer.tracked", "outer.inner.tracked"]
    Layer.__module__ = "keras.src.layers"

    assert parts_of("outer", outer) == {}
