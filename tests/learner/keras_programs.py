"""Run by test_keras_objects.py as a process of its own, with one backend of Keras: halts and results of its objects."""

from __future__ import annotations

import copy
import importlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_dlaas.learner.process.changed_names import ObjectContents
from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.transfer import pushed_objects, results, rng_state
from jupyter_dlaas.transfer.result_restore import restore
from tests.learner.in_process import run_with_halts

keras: Any = importlib.import_module("keras")
HEAD = """
import keras, numpy as np
import jupyter_dlaas as dlaas
keras.utils.set_random_seed(0)
X = np.random.RandomState(0).rand(24, 4).astype("float32"); Y = X.sum(1, keepdims=True)
"""
LOOP = """
run = dlaas.run()
for epoch in run.epochs(2):
    for x, y in run.batches((X, Y), 8):
        model.train_on_batch(x, y)
weights = [one.tolist() for one in model.get_weights()] + [int(model.optimizer.iterations)]
"""
MODELS = {
    "built": "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])",
    "built at the first step": "model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])",
    "with dropout": "from keras import layers as L\nmodel = keras.Sequential([L.Dense(3), L.Dropout(0.5), L.Dense(1)])",
}
X = np.ones((8, 4), "float32")


class Trainer:
    """An object of the user's that holds a model and its optimiser."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer, self.steps = model, optimizer, 0


def objects() -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    return {"model": model, "optimizer": optimizer, "mean": keras.metrics.Mean(), "trainer": Trainer(model, optimizer)}


def step(model: Any, optimizer: Any, mean: Any) -> None:
    optimizer.apply([keras.ops.ones(one.shape) * one for one in model.trainable_variables], model.trainable_variables)
    mean.update_state(float(np.sum(model.get_weights()[0])))


def state(model: Any, optimizer: Any, mean: Any) -> Any:
    variables = [np.array(one).tolist() for one in optimizer.variables]
    return [one.tolist() for one in model.get_weights()], variables, float(mean.result())


def test_halts() -> None:
    for name, make in MODELS.items():
        program = f"{HEAD}{make}\nmodel.compile('adam', 'mse')\n{LOOP}"
        folder = Path(tempfile.mkdtemp())
        plain = run_with_halts(folder / "plain", program)["weights"]
        assert run_with_halts(folder / "halted", program, (3,))["weights"] == plain, name


def test_results() -> None:
    for names in (("model", "optimizer", "mean"), ("model", "trainer", "mean")):
        there, job = objects(), objects()
        three = ("model", "optimizer", "mean")
        for _ in range(3):
            step(*(job[name] for name in three))
        with tempfile.TemporaryDirectory() as folder:
            stored, errors = results.store(Path(folder), names, job)
            assert (stored, errors) == ([*names], {})
            found: dict[str, Any] = {}
            for name in names:
                data = (Path(folder) / f"{name}.bin").read_bytes()
                group = results.load_graph(name, data)
                found |= restore(group, {one: there[one] for one in group}).values
        for name in names:
            assert found[name] is there[name], name
        assert there["trainer"].optimizer is there["optimizer"]
        for space in (job, there):
            step(*(space[name] for name in three))
        assert state(*(there[name] for name in three)) == state(*(job[name] for name in three))


def test_compiled() -> None:
    def compiled() -> Any:
        model = objects()["model"]
        model.compile("adam", "mse")
        return model

    there, job = compiled(), compiled()
    job.fit(X, X[:, :1], epochs=2, verbose=0)
    found = restore(results.load_graph("m", results.dump(job)), {"m": there})
    assert found.values["m"] is there
    assert int(there.optimizer.iterations) == int(job.optimizer.iterations) > 0
    for one in (there, job):
        one.fit(X, X[:, :1], epochs=1, verbose=0, shuffle=False)
    assert np.array_equal(there.get_weights()[0], job.get_weights()[0])


def test_new_optimizer() -> None:
    job = objects()
    step(job["model"], job["optimizer"], job["mean"])
    there = objects()["model"]
    loaded = copy.copy(results.load(results.dump({"model": job["model"], "optimizer": job["optimizer"]})))
    found = restore(loaded, {"model": there}).values
    for space in (job, found):
        step(space["model"], space["optimizer"], job["mean"])
    assert np.array_equal(there.get_weights()[0], job["model"].get_weights()[0])


class Nested(keras.Model):  # type: ignore[misc]
    """A model with layers in fields, in lists and inside other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(2)
        self.blocks = [keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.1)]) for _ in range(2)]
        self.wrapped = keras.layers.Bidirectional(keras.layers.LSTM(2))
        self.head = {"out": keras.layers.Dense(1), "again": self.first}


def test_layers() -> None:
    nested = Nested()
    assert {*map(id, keras_objects.layers_in(nested))} == {*map(id, nested._flatten_layers())}


def test_trained_variables() -> None:
    model = objects()["model"]
    model.compile("adam", "mse")
    assert keras_objects.trained_by(model.optimizer) == keras_objects.trained_by(objects()["mean"]) == []
    model.optimizer.build(model.trainable_variables)
    keras_objects.aspect_of(model)
    expected = [*map(id, model.trainable_variables)]
    assert [*map(id, keras_objects.trained_by(model.optimizer))] == expected
    del model.optimizer._trainable_variables  # as in a version of Keras without this private name
    assert [*map(id, keras_objects.trained_by(model.optimizer))] == expected


def test_fitted_again() -> None:
    """A model that comes from another process reads the samples of its next fit in the order of the original."""
    inputs = np.random.rand(40, 3).astype("float32")
    labels = inputs.sum(1, keepdims=True)
    job, there = (keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]) for _ in range(2))
    for model in (job, there):
        model.compile("sgd", "mse", metrics=["mae"])
    job.fit(inputs, labels, epochs=1, batch_size=8, verbose=0)
    streams, raw = rng_state.snapshot(), results.dump({"model": job})
    expected = job.fit(inputs, labels, epochs=2, batch_size=8, verbose=0).history

    bound, kept = results.load(raw)["model"], restore(results.load(raw), {"model": there}).values["model"]
    assert kept is there
    for model in (bound, kept):
        rng_state.put_back(streams)
        assert model.fit(inputs, labels, epochs=2, batch_size=8, verbose=0).history == expected
        assert "_symbolic_build" not in vars(model) or keras.backend.backend() == "tensorflow"  # which may not build

    histories, weights = [], job.get_weights()
    for model in (job, results.load(raw)["model"]):  # compiled again, both draw again
        model.set_weights(weights)
        model.compile("sgd", "mse", metrics=["mae"])
        rng_state.put_back(streams)
        histories.append(model.fit(inputs, labels, epochs=2, batch_size=8, verbose=0).history)
    assert histories[0] == histories[1] != expected


def test_generators() -> None:
    """Dropout and augmentation draw on, wherever the model or layer goes."""

    def made() -> Any:
        keras.utils.set_random_seed(0)
        parts = [keras.layers.GaussianNoise(0.1), keras.Sequential([keras.layers.Dropout(0.5)])]
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), *parts])

    job, there, noise = made(), made(), keras.layers.GaussianNoise(0.1)
    for layer in (job, noise):
        layer(X, training=True)
    raw = results.dump({"model": job, "noise": noise})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pushed.bin"
        pushed_objects.write_pushed(file, {"model": job, "noise": noise})
        pushed = dict(zip(("model", "noise"), pushed_objects.load_pushed(file, ("model", "noise")), strict=True))
    loaded = results.load(raw)
    kept = restore(results.load(raw), {"model": there}).values["model"]

    streams = rng_state.snapshot()

    def drawn(*layers: Any) -> list[Any]:
        rng_state.put_back(streams)  # with torch, Keras draws dropout from torch's global stream
        return [keras.ops.convert_to_numpy(layer(X, training=True)).tolist() for layer in layers]

    expected = drawn(job, noise)
    assert kept is there
    assert drawn(kept) == expected[:1]
    for found in (loaded, pushed):
        assert drawn(found["model"], found["noise"]) == expected


def fourth_power(expected: Any, found: Any) -> Any:
    return keras.ops.mean((expected - found) ** 4)


def nested() -> dict[str, Any]:
    """Return a model over a frozen one that is compiled by itself, as in a GAN, with its last layer."""
    keras.utils.set_random_seed(0)
    base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    base.compile(keras.optimizers.Adam(0.01), "mse")
    base.trainable = False
    inputs = keras.Input((4,))
    head = keras.layers.Dense(1)
    model = keras.Model(inputs, head(base(inputs)))
    model.compile("adam", "mse")
    return {"model": model, "base": base, "head": head, "held": {"bases": [base]}}


def trained(model: Any, base: Any, **_: Any) -> Any:
    base.train_on_batch(X, X[:, :2])
    base.trainable = True
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(X, X[:, :1])
    return [one.tolist() for one in model.get_weights()]


def pushed(**values: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pushed.bin"
        pushed_objects.write_pushed(file, values)
        return dict(zip(values, pushed_objects.load_pushed(file, [*values]), strict=True))


def test_nested() -> None:
    job = nested()
    job["base"].train_on_batch(X, X[:, :2])
    came, sent = results.load(results.dump(job)), pushed(**job)
    new = restore(results.load(results.dump(job)), {"model": nested()["model"]}).values
    for found in (came, sent, new):
        assert found["model"].layers[1] is found["base"] is found["held"]["bases"][0]
        assert found["model"].layers[-1] is found["head"]
        assert [layer.trainable for layer in (found["base"], *found["base"].layers)] == [False] * 3
    assert trained(**came) == trained(**sent) == trained(**job)


def test_unfrozen() -> None:
    """The notebook's model is frozen and compiled as the job's."""
    there, job = nested(), nested()
    job["head"].trainable = False
    trained(**job)
    found = restore(results.load(results.dump(job)), there)

    assert (found.values, found.notes) == (there, ())
    assert [layer.trainable for layer in (there["base"], there["head"])] == [True, False]
    assert isinstance(there["model"].optimizer, keras.optimizers.SGD)
    streams = rng_state.snapshot()
    histories = []
    for one in (job, there):
        rng_state.put_back(streams)
        histories.append(one["model"].fit(X, X[:, :1], epochs=2, verbose=0).history)
    assert histories[0] == histories[1]


def test_compiled_again() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    for optimizer, loss in (("sgd", fourth_power), ("adam", "mae"), (keras.optimizers.Adam(schedule), "mse")):
        there, job = (nested()["model"] for _ in range(2))
        job.compile(optimizer, loss)
        job.train_on_batch(X, X[:, :1])
        raw = results.dump(job)
        found = restore({"model": with_own(raw)}, {"model": there})
        assert (found.values["model"], found.notes) == (there, ()), found.reason
        assert there.train_on_batch(X, X[:, :1]) == job.train_on_batch(X, X[:, :1])


def with_own(raw: bytes) -> Any:
    with keras.saving.custom_object_scope({"fourth_power": fourth_power}):
        return results.load(raw)


def test_layers_in_common() -> None:
    inputs = keras.Input((4,))
    code = keras.layers.Dense(2)(inputs)
    encoder, whole = keras.Model(inputs, code), keras.Model(inputs, keras.layers.Dense(4)(code))
    with pytest.raises(pushed_objects.NotSendable, match="`whole` and `encoder` share layers"):
        pushed(encoder=encoder, whole=whole)
    encoder.trainable = False
    assert {*pushed(encoder=encoder, whole=1)} == {"encoder", "whole"}


class Broken(keras.layers.Layer):  # type: ignore[misc]
    """A layer like those that an interrupted fit on JAX leaves."""

    @property
    def variables(self) -> Any:
        raise RuntimeError("Array has been deleted")


def test_written_states() -> None:
    """The generators of layers are restored by the names of the variables."""

    def made() -> dict[str, Any]:
        keras.utils.set_random_seed(0)
        parts = [keras.layers.RandomFlip(), keras.layers.GaussianNoise(0.1)]
        return {"flip": keras.Sequential(parts), "parts": parts, "x": 1, "_hidden": parts[0]}

    here, main = made(), vars(sys.modules["__main__"])
    images = np.random.rand(2, 4, 4, 1).astype("float32")
    before = rng_state.written(here)
    contents = ObjectContents(here)
    here["flip"](images)
    after = rng_state.written(here)
    assert contents.changed(here) == ["flip", "parts"]
    assert before != after
    assert rng_state.written(here) == after
    assert [*json.loads(after)[rng_state.LAYERS]] == ["flip", "parts"]
    there = made()
    main |= there
    rng_state.put_written(after)
    assert rng_state.written(there) == after
    expected = keras.ops.convert_to_numpy(here["flip"](images))
    rng_state.put_written(after)
    assert np.array_equal(keras.ops.convert_to_numpy(there["flip"](images)), expected)
    here["broken"] = Broken()
    assert rng_state.written(here) == rng_state.written({**here, "broken": 1})
    main |= {"flip": 1, "parts": [1, 2]}
    rng_state.put_written(after)  # other objects have these names now


if __name__ == "__main__":
    sys.modules["tests.learner.keras_programs"] = sys.modules["__main__"]
    warnings.simplefilter("ignore")
    tests = (
        *(test_layers, test_trained_variables, test_halts, test_results, test_new_optimizer, test_compiled),
        *(test_fitted_again, test_generators, test_nested, test_unfrozen, test_compiled_again, test_layers_in_common),
        test_written_states,
    )
    for test in tests:
        test()
        print(test.__name__, flush=True)
