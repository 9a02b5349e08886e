"""State on its way from one learner to another."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.checkpoint import checkpoint_files, user_state
from jupyter_dlaas.learner.checkpoint.namespace import Namespace
from jupyter_dlaas.learner.elastic.state_transfer import allocated_for, put_together, take_apart, to_bytes

LARGE = 300_000


def sent(state: Any) -> Any:
    """As it arrives: what has gaps as bytes, what was in them as it lies in memory."""
    rest, large = take_apart(state)
    arrived = checkpoint_files.from_bytes(to_bytes(rest))
    allocated = allocated_for(arrived)
    for here, there in zip(allocated, large, strict=True):
        here.view(-1).view(torch.uint8).copy_(there.view(-1).view(torch.uint8))
    return put_together(arrived, allocated)


def test_checkpoints_are_written_without_torch_checksums(tmp_path: Path) -> None:
    state: dict[str, Any] = {"weights": torch.arange(LARGE), "array": np.arange(LARGE), "text": "x"}
    data = checkpoint_files.to_bytes(state)
    checkpoint_files.save_by_torch(state, tmp_path / "file")
    torch.save(state, tmp_path / "own")

    for found in (checkpoint_files.from_bytes(data), torch.load(tmp_path / "file", weights_only=False)):
        assert torch.equal(found["weights"], state["weights"])
        assert np.array_equal(found["array"], state["array"])
        assert found["text"] == "x"
    assert len(data) < 1.01 * 16 * LARGE, "arrays as they lie in memory"
    with zipfile.ZipFile(tmp_path / "own") as own:
        assert own.testzip() is None


def test_a_model_and_its_optimiser_arrive_as_they_left() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.BatchNorm1d(700), torch.nn.Linear(700, 3))
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 700)).sum().backward()
    optimiser.step()
    state: dict[str, Any] = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "steps": (3, [torch.ones(2)]),
    }

    found = sent(state)

    assert found["model"]._metadata == state["model"]._metadata
    assert all(torch.equal(found["model"][name], one) for name, one in state["model"].items())
    torch.testing.assert_close(found["optimiser"], state["optimiser"], rtol=0, atol=0)
    torch.testing.assert_close(found["steps"], state["steps"], rtol=0, atol=0)


def test_large_tensors_are_sent_apart_and_keep_their_memory() -> None:
    weights, small = torch.zeros(LARGE), torch.zeros(3)
    state = {"weights": weights, "small": small}

    rest, large = take_apart(state)

    assert [one.data_ptr() for one in large] == [weights.data_ptr()]
    assert rest["small"] is small
    assert state["weights"] is weights, "what trains is not touched"


@pytest.mark.parametrize(
    "one",
    [
        torch.randn(1000, 600).t(),
        torch.randn(LARGE).to(torch.bfloat16),
        torch.randn(600, 1000).to_sparse(),
        torch.nn.Parameter(torch.randn(LARGE)),
        torch.arange(LARGE) % 2 == 0,
        torch.tensor(3.0).expand(LARGE),
        torch.randn(LARGE, dtype=torch.complex64),
    ],
    ids=["transposed", "bfloat16", "sparse", "parameter", "bool", "expanded", "complex"],
)
def test_any_tensor_arrives_with_its_shape_kind_and_values(one: torch.Tensor) -> None:
    found = sent({"one": [one]})["one"][0]

    assert (found.shape, found.dtype, found.layout) == (one.shape, one.dtype, one.layout)
    assert torch.equal(found.to_dense(), one.detach().to_dense())


def test_tensors_of_one_memory_share_it_where_they_arrive() -> None:
    whole = torch.arange(12.0)

    found = sent({"whole": whole, "part": whole[3:7], "turned": whole.view(3, 4).t(), "bits": whole.view(torch.int32)})
    found["whole"][4] = 99.0

    assert found["part"].tolist() == [3.0, 99.0, 5.0, 6.0]
    assert found["turned"][0].tolist() == [0.0, 99.0, 8.0]
    assert found["bits"].view(torch.float32)[4] == 99.0
    assert found["whole"].resize_(20).shape == whole.resize_(20).shape, "at both ends"


@given(*[st.dictionaries(st.sampled_from("abcd"), st.integers() | st.lists(st.integers(), max_size=2))] * 3)
def test_rehearsed_joiner_gets_changed_values_and_initial_others(
    before: dict[str, Any], rehearsed: dict[str, Any], theirs: dict[str, Any]
) -> None:
    script, other = (pickle.loads(pickle.dumps(before)) for _ in range(2))
    joining, source = Namespace(script, [Path("/none")], []), Namespace(other, [Path("/none")], [])
    lists = {name: value for name, value in script.items() if isinstance(value, list)}
    user_state.put_back(script, pickle.loads(pickle.dumps(rehearsed)))
    user_state.put_back(other, pickle.loads(pickle.dumps(theirs)))

    joining.put_back(joining.load(source.store(None).data), reverts=True, seed=0)

    assert {name: script[name] for name in before | theirs} == before | theirs
    assert all(
        script[name] is one for name, one in lists.items() if all(is_list(name, by) for by in (rehearsed, theirs))
    )


def is_list(name: str, given: dict[str, Any]) -> bool:
    return isinstance(given.get(name, []), list)
