"""Detection of training cells: shapes met in public notebooks."""

from __future__ import annotations

import json

import pytest

from jupyter_dlaas.suggest.notebook_report import check

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
        "for i in range(9):\n    x += -learning_rate * theta / y",
        "while x < 9:\n    for w, dw in pairs:\n        w -= self.lr * dw",
        "for i in range(9):\n    W[i] = W[i] - lr * (dW + reg * W[i])",
        "import cupy as cp\nfor i in range(9):\n    error = x @ theta - y\n    theta -= 0.1 * (x.T @ error) / len(x)",
        "import mlx.core as mx\nfor i in range(9):\n    theta = theta - 0.1 * mx.mean((theta - y) * x)",
        "for i in range(9):\n    x -= alpha * np.dot(y.T, theta)",
        "for i in range(9):\n    x -= 1e-3 * grad_x",
        "for i in range(9):\n    x -= 0.5 * y.T @ (np.outer(x, y) * (1 - theta ** 2))",
        "study.optimize(lambda trial: objective(trial, 3), n_trials=9)",
        "def learn(q):\n    for i in range(9):\n        q[x][y] += alpha * (i + q[i][0] - q[x][y])\nlearn(y)",
        "for i in range(9):\n    q[x, y] = q[x, y] + 0.1 * (theta + rate * q[y].max() - q[x, y])",
        "for i in range(9):\n    q[x, y] = (1 - alpha) * q[x, y] + alpha * (theta + q[y].max())",
        "for i in range(9):\n    q[x] += alpha * td_error",
        "def descend(w):\n    for i in range(9):\n        w -= 2 * lr * gradient_of(w)\n    return w\nw = descend(x)",
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
        "for i in range(9):\n    lr *= 0.9\n    x += lr",
        "for i in range(9):\n    x = y - lr * i",
        "x -= lr * y",
        "for i in range(9):\n    x -= 0.1 * (y @ x)",  # a step of a simulation
        "for i in range(9):\n    x += 0.5 * np.sum(y * y)",
        "for i in range(9):\n    x -= alpha * y",
        "for i in range(9):\n    x -= 0.1 * theta @ y",
        "for i in range(9):\n    average += alpha * (x - average)",
        "for i in range(9):\n    x[i] += 0.5 * (x[i - 1] - x[i - 2])",
        "for i in range(9):\n    x[i] = alpha * y[i] + (1 - alpha) * x[i - 1]",
        "q[x] += alpha * (y - q[x])",
        "best = scipy.optimize(theta)\nquery.optimize(x, steps=9)",
        "x -= 0.1 * (y.T @ x)",
        f"{STEP}\nupdate = torch.compile(update)",
        f"{STEP}\ntrainer = Engine(update)\ntrainer.add_event_handler(1, log)",
    ],
)
def test_it_does_not_look_like_training(source: str) -> None:
    assert training_cells("x = labels = device = 1", source) == []


STEPPER = "from mylib import Stepper\ns = Stepper(net, loss, opt)"
IGNITE = "from ignite.engine import create_supervised_evaluator, create_supervised_trainer"
KERAS_MODEL = """
@keras.saving.register_keras_serializable()
class VAE(keras.Model):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.encoder(data)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
"""
LIGHTNING = """
class Net(L.LightningModule):
    def training_step(self, batch, index):
        loss = self(batch)
        self.manual_backward(loss)
"""
TRAINER = """
class Trainer:
    def __init__(self, net):
        self.net = net
    def fit(self):
        self.net().backward()
        self.opt.step()
"""


@pytest.mark.parametrize(
    ("made", "trains"),
    [
        (STEPPER, "s.train(20)"),
        (STEPPER, "s.set_loaders(a, b)\ns.train(2 * 10)"),
        (STEPPER, "s.train(n_epochs=n)"),
        (STEPPER, "losses = s.train(n)"),
        ("from mylib import Experiment\ne = Experiment(config)", "e.run(epochs=5)"),
        ("from mylib import Runner\nr = Runner.from_config(config)", "r.train()\nrunner = r\nrunner.train()"),
        (f"{IGNITE}\nengine = create_supervised_trainer(net, opt, loss)", "engine.run(loader)"),
        (f"{IGNITE}\ntrainer = create_supervised_trainer(net, opt, loss)", "trainer.run(loader, max_epochs=5)"),
        (
            "from numpyro.infer import SVI\ninference = SVI(net, guide, opt, loss)",
            "found = inference.run(key, 1000, data)",
        ),
        ("from numpyro.infer import MCMC, NUTS\nmcmc = MCMC(NUTS(net), num_samples=9)", "mcmc.run(key, data)"),
        ("from pyro.infer import SVI\nsvi = SVI(net, guide, opt, loss=loss)", "for i in range(9):\n    svi.step(data)"),
        ("import spacy\nnlp = spacy.blank('en')", "for i in range(9):\n    nlp.update(docs, sgd=opt, losses=losses)"),
        ("import keras_tuner\ntuner = keras_tuner.RandomSearch(build, 'val')", "tuner.search(data, epochs=3)"),
        ("from skorch import NeuralNet\nskorched = NeuralNet(net)", "skorched.fit(data, None)"),
        ("from stable_baselines3 import PPO\nppo = PPO('MlpPolicy', env)", "ppo.learn(total_timesteps=9)"),
        ("import lightgbm as lgb\nd = lgb.Dataset(data)", "booster = lgb.train({}, d)"),
        ("from fastai.vision.all import *\nlearn = vision_learner(loader, net)", "learn.fit_one_cycle(3)"),
        (KERAS_MODEL + "vae = VAE(net)\nvae.compile(opt)", "vae.fit(data, epochs=3)"),
        (LIGHTNING + "module = Net()", "L.Trainer(max_epochs=1).fit(module, loader)"),
        (TRAINER + "t = Trainer(net)", "t.fit()"),
    ],
)
def test_library_object_trains_at_its_call_not_its_creation(made: str, trains: str) -> None:
    names = "net = loss = opt = a = b = n = config = loader = guide = key = data = docs = losses = build = env = L = 1"

    assert training_cells(f"import keras\nimport tensorflow as tf\n{names}", made, trains) == [3]


@pytest.mark.parametrize(
    "source",
    [
        "net.train(True)",
        "net.train(False)",
        "net.train(mode)",
        "net.train(mode=flag)",
        "net.train(is_training)",
        "net.train(1)",
        f"{IGNITE}\nevaluator = create_supervised_evaluator(net)\nevaluator.run(loader, epoch_length=3)",
        "import subprocess\nsubprocess.run(['ls'])",
        "app.run(port=3)",
        "values.update(extra)",
        "environment.step(action)",
        "pretrained = load()\npretrained.train()",
        "from library import Searcher\nsearcher = Searcher()\nsearcher.search(query)",
    ],
)
def test_a_mode_an_evaluation_or_a_program_is_no_training(source: str) -> None:
    names = "net = mode = flag = is_training = loader = app = values = extra = environment = action = load = query = 1"

    assert training_cells(names, source) == []


@pytest.mark.parametrize(
    ("head", "is_named"),
    [("-o gan", True), ("-o loss,gan", True), ("--outputs=gan", True), ("", False), ("-o loss", False)],
)
def test_check_reports_an_unloadable_keras_model(head: str, *, is_named: bool) -> None:
    above = (
        "import keras\nclass GAN(keras.Model):\n    def __init__(self, critic):\n        super().__init__()\n"
        "gan = GAN(keras.Sequential([]))"
    )
    cells = [{"cell_type": "code", "source": one} for one in (above, f"%%train gan {head}\nloss = gan.fit(1)")]
    (found,) = check(json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}).encode(), "a.ipynb").cells

    assert found.errors == ()
    assert any("-o gan: Keras cannot recreate a `GAN`" in one.text for one in found.warnings) is is_named


@pytest.mark.parametrize(
    ("above", "is_named"), [("x = 1", True), ("%%train b -o modl\nmodl = 1\nmodl.fit(1)", False), ("%run a.py", False)]
)
def test_an_output_that_nothing_binds_is_named_by_check(above: str, *, is_named: bool) -> None:
    sources = (above, "%%train a -o modl\nmodel = 1\nmodel.fit(1)")
    cells = [{"cell_type": "code", "source": source} for source in sources]
    found = check(json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}).encode(), "a.ipynb").cells[-1]

    assert [one.code for one in found.errors] == (["output_unbound"] if is_named else [])


COLLECTOR = """
class Collector:
    def __init__(self, model, loader): self.model, self.loader = model, loader
    {}
class Trainer:
    def train(self, loader):
        for x in loader: loss(x).backward(); optimizer.step()
"""
READS = [
    ("def train(self, loader): return [x for x in loader]", "c.train(loader)"),
    (
        "def train(self, loader):\n        self.model.train()\n        for x in loader: self.n = len(x)",
        "c.train(loader)",
    ),
    ("def train(self, epochs): return self.count(epochs)\n    def count(self, n): return n", "c.train(epochs=3)"),
    ("def fit(self, xs): return sum(xs) / len(xs)", "mean = c.fit(xs)"),
    ("def training_step(self): return self.loader[0]", "c.training_step()"),
]
TRAINS = [
    ("def train(self, loader): return self.one(loader)\n    def one(self, x): self.opt.step()", "c.train(loader)"),
    ("def train(self, loader): return self.model.fit(loader)", "c.train(loader)"),
    ("def train(self, xs, lr=0.1):\n        for x in xs: self.w -= lr * x", "c.train(xs)"),
    ("def train(self, loader): return super().train(loader)", "c.train(loader)"),
    ("def train(self, loader): return train_on(self.model, loader)", "c.train(loader)"),
    ("def train(self, xs):\n        for p in xs: p.data -= p.grad", "c.train(xs)"),
    ("def fit(self, xs):\n        for x in xs: self.centers = x", "c.fit(xs)"),
    ("pass\ndef other(self, xs): optimizer.step()\nCollector.train = other", "c.train(xs)"),
]


@pytest.mark.parametrize(("method", "call"), READS)
def test_own_methods_that_only_read_are_no_training(method: str, call: str) -> None:
    assert training_cells(COLLECTOR.format(method), "c = Collector(model, loader)", call) == []


@pytest.mark.parametrize(("method", "call"), TRAINS)
def test_own_methods_that_may_train_are_training(method: str, call: str) -> None:
    assert 3 in training_cells(COLLECTOR.format(method), "c = Collector(model, loader)", call)


def test_own_functions_that_only_read_are_no_training() -> None:
    assert (
        training_cells("def train_epoch(model, loader): return [model(x) for x in loader]", "train_epoch(m, xs)") == []
    )
