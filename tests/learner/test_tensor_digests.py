"""Checksums of tensors: those of equal arrays, and others for each change that they are to notice."""

from __future__ import annotations

import pytest
import torch

from jupyter_dlaas.objects.array_digests import Budget, digest, tensor_digest

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
