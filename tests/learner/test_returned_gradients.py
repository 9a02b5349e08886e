"""Weights come back with the gradients of the job's last step, as a cell of the notebook would leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.result_restore import restore

SETUP = """
import torch
from torch import nn
torch.manual_seed(0)
X = torch.ones(3, 2)
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = [torch.ones(2, requires_grad=True)]
words = nn.Embedding(9, 2, sparse=True)
"""
STEP = "model(X).sum().backward(); optimizer.step()"
CELLS = {
    "last step": ("", STEP, ("model", "optimizer")),
    "model alone": ("", STEP, ("model",)),
    "of the notebook": ("model(X).sum().backward()", "optimizer.zero_grad()", ("model",)),
    "added to": ("model(X).sum().backward()", STEP, ("model",)),
    "with a graph": (
        "",
        "weight = model[0].weight; weight.grad = torch.autograd.grad(model(X).sum(), weight, create_graph=True)[0]",
        ("model",),
    ),
    "plain weights": ("", "(X @ weights[0]).sum().backward()", ("weights",)),
    "sparse": ("", "words(torch.tensor([1, 3])).sum().backward()", ("words",)),
    "unfrozen": ("model[0].requires_grad_(False)", f"model.requires_grad_(True); {STEP}", ("model",)),
    "with a hook": ("model[0].weight.register_hook(abs)", STEP, ("model",)),
    "new model": (
        "model.best = []",
        f"model.best = [nn.Linear(2, 1)]; model.best[0](X).sum().backward(); {STEP}",
        ("model",),
    ),
}


def after_a_job(above: str, cell: str, folder: Path, *names: str) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Run a training cell as a job does; return the notebook with its results, the job, and the results' file."""
    here: dict[str, Any] = {}
    there: dict[str, Any] = {}
    for space in (here, there):
        exec(f"{SETUP}{above}", space)
    exec(cell, there)
    assert results.store(folder, names, there) == ([*names], {})
    data = (folder / f"{names[0]}.bin").read_bytes()
    found = restore(results.load_graph(names[0], data), {name: here[name] for name in names}, changed={*names})
    assert found.kept == {*names}
    return here | found.values, there, data


def gradients_in(value: Any) -> list[Any]:
    weights = value.parameters() if isinstance(value, nn.Module) else value
    found = [None if one.grad is None else one.grad.to_dense().tolist() for one in weights]
    return found + [gradients_in(one) for one in getattr(value, "best", ())]


@pytest.mark.parametrize("name", CELLS)
def test_gradients_are_those_of_the_job(name: str, tmp_path: Path) -> None:
    above, cell, names = CELLS[name]
    here, there, _ = after_a_job(above, cell, tmp_path, *names)

    assert gradients_in(here[names[0]]) == gradients_in(there[names[0]])
    assert any(gradients_in(here[names[0]])) is (name != "of the notebook")


def test_next_step_uses_the_gradients_of_the_job(tmp_path: Path) -> None:
    here, there, _ = after_a_job("", "model(X).sum().backward()", tmp_path, "model", "optimizer")
    for space in (here, there):
        exec("optimizer.step()", space)

    assert torch.equal(here["model"][0].weight, there["model"][0].weight)


def test_a_returned_gradient_is_that_of_its_weight(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    there: dict[str, Any] = {}
    exec(f"{SETUP}{STEP}\nslope = model[0].weight.grad", there)
    results.store(tmp_path, ("model", "slope"), there)
    loaded = results.load_graph("slope", (tmp_path / "slope.bin").read_bytes())
    found = restore(loaded, {"model": model, "slope": None}).values

    assert found["model"] is model
    assert found["slope"] is model[0].weight.grad


def test_large_gradients_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_GRADIENT_BYTES_MAX", 4)
    here, there, data = after_a_job("model(X).sum().backward()", STEP, tmp_path, "model")

    assert results.has_gradients(data) is False
    assert gradients_in(here["model"]) == [None] * 4
    assert torch.equal(here["model"][0].weight, there["model"][0].weight)


def test_files_say_whether_they_have_gradients(tmp_path: Path) -> None:
    assert results.has_gradients(after_a_job("", STEP, tmp_path, "model")[2]) is True
    assert results.has_gradients(after_a_job("", "model.eval()", tmp_path, "model")[2]) is None
