"""Arrays that share memory share it in results, in pushed objects, and in the notebook that takes the results.

Tensors can be resized there, as before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import load_pushed, write_pushed
from jupyter_dlaas.transfer.result_restore import restore
from jupyter_dlaas.transfer.shared_objects import groups

Way = Callable[[dict[str, Any], Path], dict[str, Any]]


def stored(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Store named results and load them again, each name from its own file."""
    written, errors = results.store(folder, [*values], values)
    assert (written, errors) == ([*values], {})
    found: dict[str, Any] = {}
    for name in values:
        if name not in found:
            found |= results.load_graph(name, (folder / f"{name}.bin").read_bytes())
    return found


def pushed(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    write_pushed(folder / "pushed.bin", {"all": values})
    found: dict[str, Any] = load_pushed(folder / "pushed.bin", ["all"])
    return found


def kept(values: dict[str, Any], _folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint_files.from_bytes(checkpoint_files.to_bytes(values))
    return found


class Network:
    """A network as notebooks write it: one vector of parameters, and its parts as views."""

    def __init__(self) -> None:
        self.theta = np.arange(10.0)
        self.first, self.bias = self.theta[:6].reshape(2, 3), self.theta[6:]


def parameters() -> dict[str, Any]:
    theta = np.arange(10.0)
    return {"theta": theta, "first": theta[:6].reshape(2, 3), "bias": theta[6:]}


def table() -> dict[str, Any]:
    rows = np.arange(12.0).reshape(3, 4).T  # in Fortran's order
    return {"whole": rows, "rows": [rows[0], rows[-1]], "turned": rows[::-1], "column": rows[:, 1]}


def halves() -> dict[str, Any]:
    hidden = np.arange(20.0)
    return {"left": hidden[2:12], "right": hidden[8:18:2], "other type": hidden[8:10].view("i8")}


def of_tensor() -> dict[str, Any]:
    weight = torch.arange(6.0).requires_grad_()
    return {"weight": weight, "seen": weight.detach().numpy().reshape(2, 3), "last": weight.detach().numpy()[-2:]}


def of_array() -> dict[str, Any]:
    array = np.arange(6.0)
    return {"array": array, "tensor": torch.from_numpy(array)[2:]}


def arrays_in(value: Any) -> list[Any]:
    """Return the arrays, and those over the memory of tensors, in the order of the names."""
    if isinstance(value, torch.Tensor):
        return [value.detach().numpy()]
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else vars(value).values()
    return [array for part in parts for array in arrays_in(part)]


def sharing(value: Any) -> list[tuple[int, int]]:
    arrays = arrays_in(value)
    pairs = [(one, other) for one in range(len(arrays)) for other in range(one)]
    return [pair for pair in pairs if np.shares_memory(arrays[pair[0]], arrays[pair[1]])]


@pytest.mark.parametrize("way", [stored, pushed])
@pytest.mark.parametrize(
    "make", [parameters, lambda: {"net": Network()}, lambda: {"d": parameters()}, table, halves, of_tensor, of_array]
)
def test_arrays_that_share_memory_share_it_afterwards(
    make: Callable[[], dict[str, Any]], way: Way, tmp_path: Path
) -> None:
    values = make()

    found = way(values, tmp_path)

    assert sharing(found) == sharing(values) != []
    for one, other in zip(arrays_in(found), arrays_in(values), strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.dtype, one.flags.writeable) == (other.dtype, True)
    arrays_in(values)[0][...] = 7.0
    arrays_in(found)[0][...] = 7.0
    for one, other in zip(arrays_in(found), arrays_in(values), strict=True):
        np.testing.assert_array_equal(one, other)


@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 12), st.sampled_from([-2, -1, 1, 3])), min_size=2, max_size=6)
)
def test_any_views_of_an_array_stay_connected(slices: list[tuple[int, int, int]]) -> None:
    memory = np.arange(12.0)
    views = [memory[min(a, b) : max(a, b)][::step] for a, b, step in slices]

    found = results.load(results.dump(views))

    assert sharing(found) == sharing(views)
    for one, other in zip(found, views, strict=True):
        np.testing.assert_array_equal(one, other)


def test_parts_without_common_elements_are_stored_alone(tmp_path: Path) -> None:
    data = np.zeros((1000, 100))
    values = {"train": data[:10], "test": data[10:20], "far": data[100::300, :1], "apart": data[101::300, :1]}

    assert groups(values) == [("train",), ("test",), ("far", "apart")]
    stored(values, tmp_path)

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 25_000


def test_views_of_a_kept_array_become_views_of_it() -> None:
    before = parameters()
    loaded = results.load(results.dump(parameters() | {"part": Network(), "made": None}))
    loaded["theta"] += 1.0
    loaded["made"] = {"bias": loaded["bias"], "last": loaded["theta"][-1:]}

    found = restore(loaded, before, changed={"theta"}).values

    assert found["theta"] is before["theta"]
    for array in (found["first"], found["bias"], found["made"]["bias"], found["made"]["last"]):
        assert np.shares_memory(array, before["theta"])
    np.testing.assert_array_equal(before["bias"], [7.0, 8.0, 9.0, 10.0])
    assert np.shares_memory(found["part"].theta, found["part"].first)
    assert not np.shares_memory(found["part"].theta, before["theta"])


@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16, torch.complex64])
def test_array_over_weights_follows_the_kept_model(other: torch.dtype) -> None:
    model = torch.nn.Linear(3, 2)
    model.register_buffer("other", torch.zeros(2, dtype=other))
    values = {"model": model, "weights": model.weight.data.numpy()}
    loaded = results.load(results.dump(values))
    loaded["weights"][...] = 5.0

    found = restore(loaded, {"model": model}).values

    assert found["model"] is model
    assert model.weight.tolist() == [[5.0] * 3] * 2
    assert np.shares_memory(found["weights"], model.weight.detach().numpy())


@pytest.mark.parametrize("way", [stored, pushed, kept])
def test_loaded_tensors_can_be_resized(way: Way, tmp_path: Path) -> None:
    found = way({"buffer": torch.zeros(5), "empty": torch.empty(0), "rows": np.zeros(5)}, tmp_path)

    assert torch.add(torch.ones(9), 1.0, out=found["empty"]).tolist() == [2.0] * 9
    assert found["buffer"].resize_(9).shape == (9,)


def test_kept_tensors_can_be_resized_after_results_were_taken() -> None:
    model, rows = torch.nn.Linear(3, 2), np.zeros(4)
    loaded = results.load(results.dump({"model": model, "rows": rows}))

    assert restore(loaded, {"model": model, "rows": rows}).values["model"] is model
    assert model.bias.data.resize_(9).shape == (9,)
