"""Devices on which a result's tensors are loaded: real files, in a process whose torch reports GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.tensor_devices import ResultPlacement

IN_A_JOB, IN_A_KERNEL = "job", ""
Moves = list[str]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return a result file whose tensors were on the third GPU of a job."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _: "cuda:2")
        return results.dump({"weights": torch.arange(3.0), "lr": 0.1})


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Moves]:
    """Return what makes this process one with GPUs; that returns the list of devices to which tensors will be moved."""

    def make(where: str, gpus: int, *, used: bool, full: bool = False) -> Moves:
        moves: Moves = []

        def move(storage: Any, location: str) -> Any:
            moves.append(location)
            if full:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return storage

        monkeypatch.delenv("DLAAS_JOB", raising=False)
        if where:
            monkeypatch.setenv("DLAAS_JOB", where)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.serialization, "default_restore_location", move)
        return moves

    return make


@pytest.mark.parametrize(
    ("where", "gpus", "used", "expected", "reason"),
    [
        (IN_A_JOB, 4, False, ["cuda:2"], ""),
        (IN_A_JOB, 1, True, ["cuda:0"], ""),
        (IN_A_JOB, 0, False, [], ""),
        (IN_A_KERNEL, 4, True, ["cuda:2"], ""),
        (IN_A_KERNEL, 4, False, [], "this process has not used the GPU"),
        (IN_A_KERNEL, 0, False, [], ""),
    ],
)
def test_tensors_return_to_the_gpu_where_one_is_in_use(
    stored: bytes, process: Callable[..., Moves], where: str, gpus: int, used: bool, expected: Moves, reason: str
) -> None:
    moves, placement = process(where, gpus, used=used), ResultPlacement()
    found = results.load(stored, placement=placement)

    assert (moves, placement.reason) == (expected, reason)
    assert (found["weights"].tolist(), found["lr"]) == ([0.0, 1.0, 2.0], 0.1)


def test_full_gpu_leaves_the_result_on_the_cpu(stored: bytes, process: Callable[..., Moves]) -> None:
    moves, placement = process(IN_A_KERNEL, 4, used=True, full=True), ResultPlacement()
    found = results.load(stored, placement=placement)

    assert (moves, placement.reason) == (["cuda:2"], "the memory of the GPU is full")
    assert found["weights"].tolist() == [0.0, 1.0, 2.0]
