"""State on its way from one learner to another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jupyter_dlaas.learner import checkpoints
from jupyter_dlaas.learner.carrying import put_together, room_for, take_apart

LARGE = 300_000


def sent(state: Any) -> Any:
    """As it arrives: what has gaps as bytes, what was in them as it lies in memory."""
    rest, large = take_apart(state)
    arrived = checkpoints.from_bytes(checkpoints.to_bytes(rest))
    room = room_for(arrived)
    for here, there in zip(room, large, strict=True):
        here.view(-1).view(torch.uint8).copy_(there.view(-1).view(torch.uint8))
    return put_together(arrived, room)


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


def test_only_large_tensors_go_apart_and_those_that_train_keep_their_memory() -> None:
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
