"""Checksums of tensors: those of equal arrays, and others for each change that they are to notice."""

from __future__ import annotations

import pytest
import torch

from jupyter_dlaas.objects.array_digests import Budget, bytes_of, digest, tensor_digest

KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def found(tensor: torch.Tensor, full_bytes: int) -> int:
    return tensor_digest(tensor, Budget(full_bytes))


@pytest.mark.parametrize("full_bytes", [0, 1 << 20], ids=["by pages", "in full"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_tensor_and_array_have_the_same_digest(kind: torch.dtype, full_bytes: int) -> None:
    tensor = (torch.arange(5000) % 7).to(kind).reshape(50, 100)
    data = tensor.reshape(-1).view(torch.uint8).numpy()

    assert found(tensor, full_bytes) == digest(data, Budget(full_bytes))
    assert found(tensor.T.contiguous().T, full_bytes) == found(tensor, full_bytes), "as for its contiguous copy"


@pytest.mark.parametrize("at", [0, 1024, 4096, -1])
def test_digest_by_pages_notices_changes_of_pages_and_end(at: int) -> None:
    tensor = torch.zeros(5000)
    before = found(tensor, 0)
    tensor[at] = 1.0

    assert found(tensor, 0) != before


@pytest.mark.parametrize("full_bytes", [0, 1 << 20], ids=["by pages", "in full"])
def test_tensor_can_be_resized_after_its_digest(full_bytes: int) -> None:
    tensor, view = torch.zeros(5000), torch.zeros(9, 9)
    found(tensor, full_bytes)
    found(view.T[2], full_bytes)

    assert tensor.resize_(9000).shape == (9000,)
    assert torch.cat([tensor, tensor], out=view.resize_(0)).shape == (18_000,)


def test_bytes_are_those_of_contiguous_tensors_on_the_cpu() -> None:
    assert bytes_of(torch.tensor([1, 258], dtype=torch.int16)).tolist() == [1, 0, 2, 1]
    assert bytes_of(torch.empty(0)).shape == (0,)
    for other in (torch.zeros(2, 2).T[0], torch.zeros(2, device="meta")):
        with pytest.raises(TypeError, match="a Tensor has no contiguous memory on the CPU"):
            bytes_of(other)
