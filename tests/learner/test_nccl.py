"""NCCL's half of a group, as far as it can be looked at without a GPU. How it is used: test_groups, test_live."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch.distributed as dist

from jupyter_dlaas.learner.elastic import nccl_group, process_group

_c10d: Final[Any] = dist


@pytest.mark.skipif("not __import__('torch').distributed.is_nccl_available()", reason="needs a GPU build of PyTorch")
def test_torch_supports_aborting_a_communicator() -> None:
    assert nccl_group.is_able()
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = nccl_group._GIVE_UP
    assert options._timeout == nccl_group._GIVE_UP
    for name in ("eager_connect_single_device", "_get_sequence_number_for_group", "allreduce", "broadcast"):
        assert callable(getattr(dist.ProcessGroupNCCL, name))


def test_a_gang_on_cpus_has_no_half_on_devices() -> None:
    assert process_group._half(_c10d.HashStore(), 0, 1, process_group.CPU) is None
    assert not process_group.is_apart(process_group.single_learner_group())


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("CUDA error: an illegal memory access was encountered", nccl_group.DeviceFailed),
        ("NCCL error: remote process exited", RuntimeError),
    ],
)
def test_gpu_error_of_the_program_is_no_lost_learner(said: str, heard: type[Exception]) -> None:
    with pytest.raises(heard, match=said) as found, nccl_group.aloud():
        raise RuntimeError(said)
    assert isinstance(found.value, RuntimeError) is (heard is RuntimeError)
