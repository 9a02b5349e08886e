"""Warnings about earlier trainings: they name what was trained, and are absent if that was another object."""

from __future__ import annotations

import pytest

from tests.notebook.cases import codes, job

TORCH = "import torch\nfrom torch import nn\nloader = [(torch.ones(2, 2), torch.ones(2, 1))]\ndevice = 'cpu'"
LOOP = """
for x, y in loader:
    {opt}.zero_grad()
    loss = ({model}(x.to(device)) - y).square().mean()
    loss.backward()
    {opt}.step()
    torch.cuda.empty_cache()
"""
NET = "{model} = nn.Linear(2, 1).to(device)\n{opt} = torch.optim.SGD({model}.parameters(), lr=0.1)"
FUNCTION = (
    "def train(model, opt, loader, epochs):\n    for _ in range(epochs):\n        for x, y in loader:\n"
    "            model(x).mean().backward()\n            opt.step()\n    return epochs"
)
INSIDE = (
    "def train(model, epochs):\n    opt = torch.optim.Adam(model.parameters())\n    for _ in range(epochs):\n"
    "        for x, y in loader:\n            model(x).mean().backward()\n            opt.step()"
)
TRAINER = (
    "class Trainer:\n    def __init__(self, model, opt, loader):\n"
    "        self.model, self.opt, self.loader = model, opt, loader\n"
    "    def run(self, n):\n        for x, y in self.loader:\n"
    "            self.model(x).mean().backward()\n            self.opt.step()"
)
READER = (
    "class Reader:\n    def __init__(self, model, loader):\n        self.model, self.loader = model, loader\n"
    "    def train(self, loader):\n        return [self.model(x) for x, y in loader]"
)
KERAS = "import keras\nimport numpy as np\nX = np.ones((8, 2))\ny = np.ones(8)\ninput_shape = X.shape[1:]"
DENSE = (
    "{0} = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(1)])\n"
    "{0}.compile(loss='mse')\nh{0} = {0}.fit(X, y)"
)
JAX = (
    "import jax, optax\nimport jax.numpy as jnp\ntx = optax.sgd(0.1)\nX = jnp.ones(3)\n"
    "def loss(p): return ((p - X) ** 2).sum()"
)
OPTAX = """
for _ in range(3):
    u, {s} = tx.update(jax.grad(loss)({p}), {s})
    {p} = optax.apply_updates({p}, u)
"""
SKLEARN = "from sklearn.linear_model import LogisticRegression\nX = [[1.0], [2.0]]\ny = [0, 1]"


def nets(*names: str) -> list[str]:
    return [TORCH, *(NET.format(model=one, opt=f"{one}_sgd") for one in names)]


def loop(name: str) -> str:
    return LOOP.format(model=name, opt=f"{name}_sgd")


def names_warned_of(cells: list[str], train: str) -> list[tuple[str, ...]]:
    made = job(*cells, train=train)
    assert made.errors == (), made.errors
    return [one.names for one in made.warnings if one.code == "earlier_training"]


@pytest.mark.parametrize(
    ("cells", "train"),
    [
        pytest.param([*nets("a", "b"), loop("a")], loop("b"), id="two loops over one loader"),
        pytest.param([*nets("a"), loop("a")], f"{nets('b')[1]}{loop('b')}", id="a model of the training cell"),
        pytest.param(
            [*nets("a", "b"), FUNCTION, "n = train(a, a_sgd, loader, 2)"], "train(b, b_sgd, loader, 2)", id="fn"
        ),
        pytest.param([*nets("a", "b"), INSIDE, "train(a, 2)"], "train(b, 2)", id="optimiser in a function"),
        pytest.param(
            [*nets("a", "b"), TRAINER, "one = Trainer(a, a_sgd, loader)\none.run(2)"],
            "other = Trainer(b, b_sgd, loader)\nother.run(2)",
            id="own trainers",
        ),
        pytest.param(
            [*nets("a", "b"), "import engine", "n = engine.train(a, a_sgd, loader)"],
            "n = engine.train(b, b_sgd, loader)",
            id="imported function",
        ),
        pytest.param(
            [*nets("a"), "import engine", "parts = engine.train_test_split(a)\nengine.evaluate(a, loader)"],
            "print(parts, a)",
            id="imported function that trains nothing",
        ),
        pytest.param(
            [*nets("a"), READER, "one = Reader(a, loader)\none.train(loader)"],
            f"one.train(loader)\n{loop('a')}",
            id="own method that only reads",
        ),
        pytest.param([KERAS, DENSE.format("m")], DENSE.format("other"), id="keras"),
        pytest.param([KERAS, DENSE.format("m")], DENSE.format("m"), id="keras, made again"),
        pytest.param(
            [JAX, "p = jnp.zeros(3)\ns = tx.init(p)", OPTAX.format(p="p", s="s")],
            f"q = jnp.ones(3)\nt = tx.init(q)\n{OPTAX.format(p='q', s='t')}",
            id="optax",
        ),
        pytest.param(
            [SKLEARN, "first = LogisticRegression()\nfirst.fit(X, y)"],
            "best = LogisticRegression()\nbest.fit(X, y)",
            id="sk",
        ),
    ],
)
def test_a_training_of_another_object_is_not_mentioned(cells: list[str], train: str) -> None:
    assert names_warned_of(cells, train) == []


@pytest.mark.parametrize(
    ("cells", "train", "names"),
    [
        pytest.param([*nets("a"), loop("a")], loop("a"), ("a", "a_sgd"), id="loop"),
        pytest.param(
            [*nets("a"), FUNCTION, "n = train(a, a_sgd, loader, 2)"],
            "train(a, a_sgd, loader, 2)",
            ("a", "a_sgd"),
            id="fn",
        ),
        pytest.param([*nets("a"), INSIDE, "train(a, 2)"], "train(a, 2)", ("a",), id="optimiser in a function"),
        pytest.param(
            [*nets("a"), TRAINER, "one = Trainer(a, a_sgd, loader)", "one.run(2)"], "one.run(2)", ("one",), id="own"
        ),
        pytest.param(
            [*nets("a"), FUNCTION, "n = train(a, torch.optim.Adam(a.parameters()), loader, 2)"],
            "train(a, torch.optim.Adam(a.parameters()), loader, 2)",
            ("a",),
            id="optimiser made in the call",
        ),
        pytest.param(
            [*nets("a"), "from engine import train", "n = train(a, a_sgd, loader)"],
            "n = train(a, a_sgd, loader)",
            ("a", "a_sgd"),
            id="imported function",
        ),
        pytest.param(
            [*nets("a"), "import engine", "losses = [engine.run_epoch(loader, a, a_sgd) for _ in range(3)]"],
            "engine.run_epoch(loader, a, a_sgd)",
            ("a", "a_sgd"),
            id="function of a module",
        ),
        pytest.param([KERAS, DENSE.format("m")], "m.fit(X, y)", ("m",), id="keras"),
        pytest.param(
            [JAX, "p = jnp.zeros(3)\ns = tx.init(p)", OPTAX.format(p="p", s="s")],
            OPTAX.format(p="p", s="s"),
            ("p", "s"),
            id="optax",
        ),
    ],
)
def test_training_of_the_same_object_names_its_own_changes(
    cells: list[str], train: str, names: tuple[str, ...]
) -> None:
    assert names_warned_of(cells, train) == [names]


def test_side_effects_of_another_training_are_reported() -> None:
    inside = INSIDE.replace("            opt.step()", "            opt.step()\n            losses.append(1.0)")
    made = job(*nets("a", "b"), "losses = []", inside, "train(a, 2)", train="train(b, 2)\nprint(losses)")

    messages = [one.message for one in made.warnings if one.code == "earlier_training"]
    assert len(messages) == 1
    assert messages[0].startswith("cell [6], line 1 changed `losses` while training something else. The job omits that")
    assert "Use --push losses to send the current value, or --with-cell 6 to run" in messages[0]


def test_repeated_training_is_reported_with_its_needed_result() -> None:
    made = job(KERAS, DENSE.format("m"), train="m.fit(X, y)\nprint(hm)")

    assert [one.message for one in made.warnings] == [
        (
            "cell [2], line 3 trains again in the job, which needs its `hm`, `m`. "
            "To send the current value instead: --push hm,m."
        )
    ]


@pytest.mark.parametrize(("own", "is_reported"), [("pass", False), ("def train(self): Client().train(self)", True)])
def test_mode_of_a_model_is_no_training_of_another_class(own: str, is_reported: bool) -> None:
    client = "class Client:\n    def train(self, net):\n        opt = SGD(net.parameters())\n        opt.step()"
    setup = f"import torch\nfrom torch.optim import SGD\nclass Net(torch.nn.Module):\n    {own}\n{client}"
    made = job(setup, "net = Net()", "net.train()", train="Client().train(net)")

    assert ("earlier_training" in codes(made)) is is_reported
