"""Which cells look like training: shapes met in public notebooks."""

from __future__ import annotations

import json

import pytest

from jupyter_dlaas.notebook.check import check

STEP = "def update(engine, batch):\n    loss(batch).backward()\n    optimizer.step()"


def training_cells(*sources: str) -> list[int]:
    cells = [{"cell_type": "code", "source": source} for source in sources]
    report = check(json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}).encode(), "a.ipynb")
    return [cell.cell for cell in report.cells if cell.is_training]


@pytest.mark.parametrize(
    "source",
    [
        "history = autoencoder.fit(x, x, epochs=3)",
        "transformer.fit(pairs, epochs=3)",  # by its options, whatever it is called
        "encoder_decoder.fit(x, y)",
        "estimator = inference.append_simulations(theta, x).train()",
        "inference.append_simulations(theta, x)\ninference.train()",
        "model.compile('adam', lr=0.001)\nmodel.train()",
        "from library import fit_to_data\nflow, losses = fit_to_data(key, flow, x)",
        "from library import train_and_evaluate\ntrain_and_evaluate(config)",
        "import train\nstate = train.train_and_evaluate(workdir='.')",
        "inference.append_simulations(theta, x)\nestimator = inference.train()",
        "from library import fit_to_data\ndef go(x):\n    return fit_to_data(x)\nflow = go(x)",
        "from library import ppo\nimport functools\ntrain_fn = functools.partial(ppo.train, seed=1)\ntrain_fn(x)",
        "def solve(net):\n    def one(batch):\n        loss(batch).backward()\n    one(1)\nsolve(x)",
        f"{STEP}\ntrainer = Engine(update)\ntrainer.run(x, max_epochs=2)",
        f"{STEP}\npool.map(update, x)",
    ],
)
def test_it_looks_like_training(source: str) -> None:
    assert training_cells("x = y = theta = pairs = config = key = 1", source) == [2]


@pytest.mark.parametrize(
    "source",
    [
        "encoder.fit(labels)",
        "transformer = ColumnTransformer([])\ntransformer.fit(x)",
        "model = Net().to(device).train()",
        "model.to(device).train()",
        "model = Net(3).train()",
        "other = model.train()",
        "def solve(net):\n    def one(batch):\n        loss(batch).backward()\n    return one\nsolve(x)",
        "model.train()",
        "from sklearn.model_selection import train_test_split\na, b = train_test_split(x)",
        "from library import train_loader, train_transforms\nbatch = train_loader(x)\nt = train_transforms(x)",
        "import data\ntrain_x = data.train_dataset(x)",
        "def fit_line(a):\n    return a\nfit_line(x)",  # its own text says that it trains nothing
        f"{STEP}\ntrainer = Engine(update)",
        f"{STEP}\nupdate = torch.compile(update)",
        f"{STEP}\ntrainer = Engine(update)\ntrainer.add_event_handler(1, log)",
    ],
)
def test_it_does_not_look_like_training(source: str) -> None:
    assert training_cells("x = labels = device = 1", source) == []
