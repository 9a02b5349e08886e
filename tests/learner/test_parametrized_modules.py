"""Modules with parametrized tensors, which torch refuses to pickle, return from jobs and are pushed to them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from jupyter_dlaas.learner.checkpoint.namespace import Namespace
from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import load_pushed, write_pushed
from jupyter_dlaas.transfer.result_restore import restore


class Symmetric(nn.Module):
    """Parametrization of a user's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T


class Doubled(nn.Linear):
    """Layer with a state of its own."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"was_stored": True}


def two_parametrized_tensors() -> nn.Module:
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", nn.Tanh())
    parametrize.register_parametrization(layer, "bias", nn.Softplus())
    return layer


MODULES: list[Callable[[], nn.Module]] = [
    lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    lambda: parametrizations.spectral_norm(nn.Linear(3, 3)),
    lambda: parametrizations.orthogonal(nn.Linear(3, 3)),
    lambda: parametrizations.weight_norm(Doubled(3, 3)),
    two_parametrized_tensors,
]


def stored(module: nn.Module, folder: Path) -> nn.Module:
    found: nn.Module = results.load(results.dump(module))
    return found


def pushed(module: nn.Module, folder: Path) -> nn.Module:
    write_pushed(folder / "pushed.bin", {"module": module})
    found: nn.Module = load_pushed(folder / "pushed.bin", ["module"])
    return found


@pytest.mark.parametrize("way", [stored, pushed])
@pytest.mark.parametrize("make", MODULES)
def test_parametrized_module_is_the_same_afterwards(
    make: Callable[[], nn.Module], way: Callable[[nn.Module, Path], nn.Module], tmp_path: Path
) -> None:
    module = nn.Sequential(make(), nn.Linear(3, 1))
    module[0].requires_grad_(requires_grad=False)

    found = way(module, tmp_path)

    x = torch.randn(2, 3)
    layer: Any = found.get_submodule("0")
    assert type(layer).__name__ == type(module[0]).__name__
    assert [*found.state_dict()] == [*module.state_dict()]
    assert getattr(layer, "was_stored", False) is isinstance(layer, Doubled)
    assert [one.requires_grad for one in found.parameters()] == [one.requires_grad for one in module.parameters()]
    for _ in range(2):  # spectral_norm advances its power iteration in training
        assert torch.equal(found(x), module(x))
    for name in [*layer.parametrizations]:
        parametrize.remove_parametrizations(layer, name)
    assert type(layer) is parametrize.type_before_parametrizations(module[0])


@pytest.mark.parametrize("make", MODULES)
def test_parametrized_model_of_the_notebook_keeps_its_identity(make: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(make(), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    job = results.load(results.dump({"model": model, "optimizer": optimizer}))
    x = torch.ones(1, 3)
    job["model"](x).sum().backward()
    job["optimizer"].step()

    found = restore(job, {"model": model, "optimizer": optimizer})

    assert found.values["model"] is model
    assert found.values["optimizer"] is optimizer
    assert torch.equal(model.eval()(x), job["model"].eval()(x))


LAYERS: list[tuple[type[nn.Linear], Callable[[nn.Module], nn.Module]]] = [
    (nn.Linear, parametrizations.weight_norm),
    (nn.Linear, parametrizations.spectral_norm),
    (nn.Linear, parametrizations.orthogonal),
    (Doubled, parametrizations.weight_norm),
]


@pytest.mark.parametrize(("kind", "change"), LAYERS)
def test_layer_that_a_loop_parametrizes_is_kept_in_checkpoints(
    kind: type[nn.Linear], change: Callable[[nn.Module], nn.Module]
) -> None:
    restarted = {"model": nn.Sequential(kind(3, 3))}
    trained = copy.deepcopy(restarted)
    before, after = (Namespace(one, [Path("/none")], []) for one in (trained, restarted))
    change(trained["model"][0])
    model, layer, x = restarted["model"], restarted["model"][0], torch.randn(2, 3)

    stored = before.store(None)
    after.put_back(after.load(stored.data), reverts=True, seed=0)

    assert not stored.left_out
    assert (restarted["model"], model[0]) == (model, layer)
    for _ in range(2):
        assert torch.equal(model(x), trained["model"](x))
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is kind


def test_parametrization_of_another_layer_does_not_fit() -> None:
    old, new = (nn.Sequential(make()) for make in MODULES[:2])

    found = restore({"model": new}, {"model": old})

    assert found.values["model"] is new
    assert found.reason


def test_traced_graph_module_is_pushed(tmp_path: Path) -> None:
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))

    found = pushed(module, tmp_path)

    assert torch.equal(found(torch.ones(1, 3)), module(torch.ones(1, 3)))
