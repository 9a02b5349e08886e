"""Objects by value: written where they are, loaded in another process that has the same definitions, and used there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from jupyter_dlaas.transfer.pushed_objects import load_pushed, write_pushed

DEFINITIONS = "import os, sys, pathlib, warnings\nwarnings.simplefilter('error')\n"
WRITE = """
from jupyter_dlaas.transfer.pushed_objects import write_pushed
done = write_pushed(pathlib.Path(sys.argv[1]), {name: globals()[name] for name in NAMES})
print(done.main_names)
"""
LOAD = """
from jupyter_dlaas.transfer.pushed_objects import load_pushed
globals().update(zip(NAMES, load_pushed(pathlib.Path(sys.argv[1]), [*NAMES, "NAMES"])))
"""


def run(code: str, path: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def travel(tmp_path: Path, *, definitions: str, made: str, used: str, names: str, **variables: str) -> str:
    """Make objects in one process, use them in another; what the writing said the loading needs."""
    head = DEFINITIONS + dedent(definitions) + f"NAMES = {names.split()!r}\n"
    said = run(head + dedent(made) + "\nNAMES.append('NAMES')" + WRITE, tmp_path / "pushed.bin", **variables)
    run(head + LOAD + dedent(used), tmp_path / "pushed.bin", **variables)
    return said.strip().splitlines()[-1]


def test_pushed_training_continues_with_all_its_state(tmp_path: Path) -> None:
    said = travel(
        tmp_path,
        definitions="""
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            def forward(self, x):
                return self.body(x)
        def train(steps):
            for x, y in loader:
                opt.zero_grad()
                scaler.scale(((net(x) - y) ** 2).mean()).backward()
                scaler.step(opt)
                scaler.update()
                plan.step()
        def state():
            return torch.cat([p.detach().flatten() for p in net.parameters()]).tolist(), opt.param_groups[0]["lr"]
        """,
        made="""
        torch.manual_seed(0)
        data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        net = Net()
        opt = torch.optim.AdamW(net.parameters(), lr=0.1)
        plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.9 ** step)
        scaler = torch.amp.GradScaler("cpu")
        train(2)
        import copy
        kept = copy.deepcopy((net.state_dict(), opt.state_dict()))
        step = plan.last_epoch
        train(2)
        after = state()
        net.load_state_dict(kept[0]); opt.load_state_dict(kept[1]); plan.last_epoch = step
        opt.param_groups[0]["lr"] = 0.1 * 0.9 ** step
        """,
        used="""
        assert type(net) is Net and plan.optimizer is opt
        assert {id(p) for g in opt.param_groups for p in g["params"]} == {id(p) for p in net.parameters()}
        assert loader.dataset is data
        train(2)
        assert state() == after, (state(), after)
        """,
        names="data loader net opt plan scaler after",
    )

    assert said == "('Net',)"


@pytest.mark.parametrize("has_gradients", [True, False])
def test_gradients_of_pushed_tensors_are_sent_if_needed(tmp_path: Path, has_gradients: bool) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    model.weight.grad = torch.tensor([[3.0, 4.0]])  # an interrupted training left it
    path = write_pushed(
        tmp_path / "pushed.bin", {"model": model, "optimizer": optimizer}, has_gradients=has_gradients
    ).path

    there, other = load_pushed(path, ("model", "optimizer"))

    assert (None if there.weight.grad is None else there.weight.grad.tolist()) == (
        [[3.0, 4.0]] if has_gradients else None
    )
    assert there.bias.grad is None
    assert other.param_groups[0]["params"][0] is there.weight


def test_arrays_frames_and_estimators(tmp_path: Path) -> None:
    travel(
        tmp_path,
        definitions="""
        import numpy as np, pandas as pd
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, StandardScaler
        from sklearn.linear_model import SGDClassifier
        """,
        made="""
        x = np.random.default_rng(0).normal(size=(40, 3)); y = (x.sum(1) > 0).astype(int)
        view = x[:5]
        frame = pd.DataFrame({"a": [1.5, None], "b": ["x", "y"], "when": pd.to_datetime(["2024-01-01", "2024-01-02"])})
        series = frame["a"]
        model = make_pipeline(FunctionTransformer(lambda a: a * 2), StandardScaler(), SGDClassifier(random_state=0))
        model.fit(x, y)
        said = model.predict(x)
        odd = np.array([{"k": 1}, None], dtype=object)
        """,
        used="""
        assert (model.predict(x) == said).all()
        assert frame["b"].tolist() == ["x", "y"] and str(frame["when"].dtype).startswith("datetime64")
        assert series.iloc[0] == 1.5 and (view == x[:5]).all() and odd[0] == {"k": 1}
        """,
        names="x y view frame series model said odd",
    )


def test_gradient_boosting_models(tmp_path: Path) -> None:
    travel(
        tmp_path,
        definitions="import numpy as np, xgboost, lightgbm\n",
        made="""
        x = np.random.default_rng(0).normal(size=(60, 3)); y = (x.sum(1) > 0).astype(int)
        booster = xgboost.train({"verbosity": 0, "nthread": 1}, xgboost.DMatrix(x, y), 2)
        trees = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1, n_jobs=1).fit(x, y)
        said = booster.predict(xgboost.DMatrix(x)), trees.predict(x)
        """,
        used="""
        assert (booster.predict(xgboost.DMatrix(x)) == said[0]).all()
        assert (trees.predict(x) == said[1]).all()
        """,
        names="x booster trees said",
    )


def test_jax_arrays_trees_and_optimisers(tmp_path: Path) -> None:
    travel(
        tmp_path,
        definitions="""
        import jax, jax.numpy as jnp, optax
        from typing import NamedTuple
        class State(NamedTuple):
            params: dict
            opt: object
        """,
        made="""
        params = {"w": jnp.arange(3.0), "b": [jnp.ones(2), {"c": jnp.zeros(1)}]}
        rule = optax.adam(0.1)
        state = State(params, rule.init(params))
        key = jax.random.PRNGKey(3)
        number = jax.random.normal(key)
        """,
        used="""
        assert type(state) is State and state.params is params
        grads = jax.tree.map(jnp.ones_like, params)
        updates, later = rule.update(grads, state.opt, params)
        assert float(updates["w"][0]) < 0 and int(later[0].count) == 1
        assert jax.random.normal(key) == number
        """,
        names="params rule state key number",
        JAX_PLATFORMS="cpu",
    )


def test_keras_objects_are_pushed_with_their_state(tmp_path: Path) -> None:
    travel(
        tmp_path,
        definitions="""
        warnings.simplefilter("default")  # TensorFlow and Keras have some of their own
        import numpy as np, keras
        @keras.saving.register_keras_serializable("mine")
        class Twice(keras.layers.Layer):
            def call(self, x):
                return 2 * x
        """,
        made="""
        keras.utils.set_random_seed(0)
        x = np.ones((8, 2), "float32"); y = np.zeros((8, 1), "float32")
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), Twice(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model.fit(x, y, epochs=1, verbose=0)
        said = model.predict(x, verbose=0)
        optimizer, alone = model.optimizer, keras.optimizers.SGD(0.1, momentum=0.9)
        weight = keras.Variable([1.0])
        alone.apply([keras.ops.ones(1)], [weight])
        other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        other.optimizer = rest = keras.optimizers.SGD(0.3)  # Keras stores it with a compiled model only
        metric = keras.metrics.Mean()
        metric.update_state([3.0, 5.0])
        steps = int(optimizer.iterations.numpy())
        """,
        used="""
        assert np.allclose(model.predict(x, verbose=0), said)
        assert int(model.optimizer.iterations.numpy()) == steps > 0
        assert optimizer is model.optimizer
        assert float(metric.result()) == 4.0
        assert type(rest) is keras.optimizers.SGD and float(rest.learning_rate.numpy()) == np.float32(0.3)
        assert [np.asarray(one).tolist() for one in alone.variables] == [1, np.float32(0.1), [np.float32(-0.1)]]
        model.fit(x, y, epochs=1, verbose=0)
        """,
        names="x y model said steps optimizer alone metric other rest",
        KERAS_BACKEND="tensorflow",
    )


def test_functions_that_no_name_leads_to_travel_as_code(tmp_path: Path) -> None:
    said = travel(
        tmp_path,
        definitions="""
        import math
        from functools import partial
        offset = 10
        def helper(x):
            return x + offset
        class Box:
            pass
        """,
        made="""
        def counter(start):
            count = start
            def step(by=1, *, twice=False):
                nonlocal count
                count += by * (2 if twice else 1)
                return step if by == 0 else count
            step.note = "mine"
            return step
        tick = counter(5)
        tick()
        box = Box()
        box.hook = lambda x: math.floor(helper(x)) + offset
        box.cut = partial(box.hook, 1.5)
        box.module = math
        """,
        used="""
        assert tick() == 7 and tick(2, twice=True) == 11 and tick.note == "mine" and tick(0) is tick
        assert box.hook(1.5) == 21 and box.cut() == 21 and box.module is math
        """,
        names="tick box",
    )

    assert said == "('Box', 'helper', 'math', 'offset')"


@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="needs a GPU")
def test_tensors_of_a_gpu_are_back_on_the_jobs_gpu(tmp_path: Path) -> None:
    travel(
        tmp_path,
        definitions="import torch\n",
        made="""
        net = torch.nn.Linear(2, 2).cuda()
        opt = torch.optim.Adam(net.parameters())
        net(torch.ones(1, 2).cuda()).sum().backward()
        opt.step()
        here = torch.ones(1)
        """,
        used="""
        assert net.weight.is_cuda and all(s["exp_avg"].is_cuda for s in opt.state.values()) and not here.is_cuda
        net(torch.ones(1, 2).cuda()).sum().backward()
        opt.step()
        """,
        names="net opt here",
        CUDA_VISIBLE_DEVICES="0",
    )
