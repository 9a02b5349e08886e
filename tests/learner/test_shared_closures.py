"""Functions that share a variable share it in results and in pushed objects, and refer to the notebook's model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import load_pushed, write_pushed
from jupyter_dlaas.transfer.result_restore import restore
from jupyter_dlaas.transfer.shared_objects import groups

DEFINITIONS = """
def make_counter():
    count = 0
    def add():
        nonlocal count
        count += 1
        return add
    def read():
        return count
    def unbound():
        return late
    if count:
        late = 1
    return add, read, unbound

def make_hook(seen):
    def hook(module, inputs, output):
        seen.append(output)
    return hook

def make_step(model):
    steps = 0
    def step():
        nonlocal steps
        steps += 1
        return model
    return step
"""


@pytest.fixture(autouse=True)
def notebook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Define the functions as a notebook does: their module is `__main__`."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(DEFINITIONS, space)
    return space


def stored(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = results.load(results.dump(values))
    return found


def pushed(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    write_pushed(folder / "pushed.bin", {"all": values})
    found: dict[str, Any] = load_pushed(folder / "pushed.bin", ["all"])
    return found


@pytest.mark.parametrize("way", [stored, pushed])
def test_functions_share_their_variables(
    notebook: dict[str, Any], way: Callable[[dict[str, Any], Path], dict[str, Any]], tmp_path: Path
) -> None:
    add, read, unbound = notebook["make_counter"]()
    add()

    found = way({"add": add, "read": read, "unbound": unbound}, tmp_path)

    assert found["add"]() is found["add"], "it refers to itself"
    assert (found["read"](), read()) == (2, 1)
    with pytest.raises(NameError):
        found["unbound"]()
    assert groups({"add": add, "other": [1], "read": read}) == [("add", "read"), ("other",)]


def test_closures_refer_to_the_kept_model(notebook: dict[str, Any]) -> None:
    model = torch.nn.Linear(2, 1)
    step = notebook["make_step"](model)
    loaded = results.load(results.dump({"model": model, "step": step, "held": [step]}))
    loaded["step"]()

    found = restore(loaded, {"model": model, "step": step}).values

    assert found["model"] is model
    assert found["step"]() is model
    assert found["held"][0] is found["step"]
    assert found["step"].__closure__[1].cell_contents == 2


def test_closures_of_the_notebook_itself_stay_unchanged(notebook: dict[str, Any]) -> None:
    model, seen = torch.nn.Linear(2, 1), list[torch.Tensor]()
    step = notebook["make_step"](model)
    loaded = results.load(results.dump({"model": model, "step": step, "held": [step]}))
    model.register_forward_hook(notebook["make_hook"](seen))

    found = restore(loaded, {"model": model}).values
    found["step"]()(torch.ones(2))

    assert len(seen) == 1
