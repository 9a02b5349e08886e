"""Results that share objects are stored and loaded as one object graph; results that share nothing stay apart."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from jupyter_dlaas.transfer import results


def brought_back(folder: Path, values: Mapping[str, Any], *first: str) -> dict[str, Any]:
    """Store values and load the file of the name that is asked for first."""
    stored, errors = results.store(folder / "results", list(values), values)
    assert (stored, errors) == (list(values), {})
    (name, *_) = first or stored
    return results.load_graph(name, (folder / "results" / f"{name}.bin").read_bytes())


def weights_of(opt: Any) -> Any:
    return opt.param_groups[0]["params"][0]


class Trainer:
    """A class of the user's that holds a model and an optimiser."""

    def __init__(self, model: nn.Module, opt: torch.optim.Optimizer) -> None:
        self.model, self.opt, self.losses = model, opt, [1.0]


class Average:
    """An exponential moving average that holds a copy of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.source, self.copy = model, copy.deepcopy(model)


def model_and_optimiser() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    model = nn.Linear(2, 1)
    return {"model": model, "opt": torch.optim.Adam(model.parameters())}, (
        lambda got: weights_of(got["opt"]) is got["model"].weight
    )


def alias() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    model = nn.Linear(2, 1)
    return {"net": model, "model": model}, lambda got: got["net"] is got["model"]


def trainer() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    model = nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    one = Trainer(model, opt)
    return {"model": model, "trainer": one, "losses": one.losses}, (
        lambda got: (
            got["trainer"].model is got["model"]
            and weights_of(got["trainer"].opt) is got["model"].weight
            and got["trainer"].losses is got["losses"]
        )
    )


def scheduler() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    opt = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    return {"opt": opt, "plan": torch.optim.lr_scheduler.StepLR(opt, 3)}, (
        lambda got: got["plan"].optimizer is got["opt"]
    )


def moving_average() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    model = nn.Linear(2, 1)
    return {"average": Average(model), "model": model}, (
        lambda got: got["average"].source is got["model"] and got["average"].copy is not got["model"]
    )


def tied_weights() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    return {"one": one, "other": other}, lambda got: got["other"].weight is got["one"].weight


def two_models_one_optimiser() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    return {"one": one, "other": other, "opt": opt}, (
        lambda got: (
            {id(p) for p in got["opt"].param_groups[0]["params"]}
            == {id(p) for name in ("one", "other") for p in got[name].parameters()}
        )
    )


def list_of_models() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    return {"best": models[1], "models": models}, lambda got: got["models"][1] is got["best"]


def state_of_a_model() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    model = nn.Linear(2, 1)
    return {"model": model, "state": model.state_dict()}, (
        lambda got: got["state"]["weight"].data_ptr() == got["model"].weight.data_ptr()
    )


def parametrized_layers() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 1))
    return {"model": model, "opt": torch.optim.SGD(model.parameters(), lr=0.1)}, (
        lambda got: {id(p) for p in got["opt"].param_groups[0]["params"]} == {id(p) for p in got["model"].parameters()}
    )


def table_of_arrays() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    array = np.zeros(3)
    return {"array": array, "table": {"first": array}}, lambda got: got["table"]["first"] is got["array"]


def closure() -> tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]:
    model = nn.Linear(2, 1)
    return {"model": model, "weight": lambda: model.weight}, lambda got: got["weight"]() is got["model"].weight


def iter_of_lines() -> Iterator[str]:
    yield "a generator cannot be stored"


GRAPHS = [
    model_and_optimiser,
    alias,
    trainer,
    scheduler,
    moving_average,
    tied_weights,
    two_models_one_optimiser,
    list_of_models,
    state_of_a_model,
    parametrized_layers,
    table_of_arrays,
    closure,
]


@pytest.mark.parametrize("make", GRAPHS, ids=[one.__name__ for one in GRAPHS])
def test_values_sharing_objects_load_as_one_graph(
    make: Callable[[], tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]], tmp_path: Path
) -> None:
    values, is_one_graph = make()

    for name in values:
        got = brought_back(tmp_path, values, name)
        assert list(got) == list(values)
        assert is_one_graph(got)


def test_values_that_share_nothing_are_read_alone(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    values = {"model": model, "other": other, "history": [0.5, 0.25], "rate": 0.1, "kind": torch.float32, "name": "a"}

    for name in values:
        assert list(brought_back(tmp_path, values, name)) == [name]


def test_object_graph_is_stored_once(tmp_path: Path) -> None:
    model = nn.Linear(256, 256)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    for _ in range(2):  # a resumed job writes over what an earlier attempt left
        results.store(tmp_path, ["model", "opt", "n"], {"model": model, "opt": opt, "n": 1})

    paths = [tmp_path / f"{name}.bin" for name in ("model", "opt")]
    assert len({path.stat().st_ino for path in paths}) == 1
    assert [results.names_in(path.read_bytes()) for path in paths] == [("model", "opt")] * 2
    assert results.names_in((tmp_path / "n.bin").read_bytes()) == ()


def test_unstorable_value_does_not_block_its_graph(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    values = {"model": model, "opt": opt, "writer": [model, iter_of_lines()]}

    stored, errors = results.store(tmp_path, list(values), values)

    assert stored == ["model", "opt"]
    assert "cannot be stored (TypeError" in errors["writer"]
    got = results.load_graph("opt", (tmp_path / "opt.bin").read_bytes())
    assert weights_of(got["opt"]) is got["model"].weight


def test_result_file_of_an_earlier_version_is_read() -> None:
    assert results.load_graph("rows", results.dump([1, 2])) == {"rows": [1, 2]}
    assert results.names_in(results.dump([1, 2])) == ()


def test_a_scheduler_of_a_graph_steps_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    values, _ = scheduler()
    got = brought_back(tmp_path, values)

    got["opt"].step()
    got["plan"].step()

    assert [str(one.message) for one in recwarn] == []
