"""Sums over GPUs: a communicator of NCCL's for one group, which can be given up.

A learner that is lost leaves the kernels of the others waiting for ever: NCCL tells nobody. So the wait for a sum looks
up now and then, and who hears that the group is lost gives the communicator up, which ends its kernels.

Loaded with `groups`; a communicator is made only in a gang that trains on GPUs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from jupyter_dlaas.runtime.system.process import boot_id

__all__ = ["DeviceFailed", "Half", "Nccl", "aloud", "have_a_gpu_each", "is_able", "without_watchdog"]

_LOOK_S: Final = 20e-6
_GIVE_UP: Final = timedelta(seconds=20)


class DeviceFailed(Exception):
    """This learner's own GPU failed in what the program did before: not a loss of others, which is a RuntimeError."""


@contextmanager
def aloud() -> Iterator[None]:
    """Whoever waits for a GPU hears of what failed on it before. Raises DeviceFailed."""
    try:
        yield
    except RuntimeError as error:
        if "CUDA error" in str(error):
            raise DeviceFailed(str(error)) from error
        raise


def is_able() -> bool:
    """Whether this torch is built with NCCL, can give a communicator up, and tells where a GPU is: 2.15 can."""
    knows_place = hasattr(getattr(torch._C, "_CudaDeviceProperties", None), "pci_bus_id")
    return dist.is_nccl_available() and hasattr(dist.ProcessGroupNCCL, "abort") and knows_place


class Half(Protocol):
    """The part of a group that adds up where the models are."""

    kind: Any
    """Of torch's `ProcessGroup.BackendType`."""
    device: torch.device
    backend: Any

    def finish(self, work: Any, is_cut: Callable[[], bool]) -> None:
        """Wait until all have done something together. Raises RuntimeError when the group is lost, or was cut."""

    def cut(self) -> None:
        """Give it up: nothing of it is under way any more soon after. From any thread; waits for nothing."""

    def talks(self) -> int:
        """How many talks were begun."""


class Nccl:
    """NCCL's communicator among the learners of a group, made by all of them at once. Raises RuntimeError."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        self.kind = dist.ProcessGroup.BackendType.NCCL
        self.device = device
        self._is_over = threading.Event()
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _GIVE_UP  # so long giving up may take; nothing else heeds it without a watchdog
        torch.cuda.set_device(device)  # of this thread
        self.backend: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        self.backend.eager_connect_single_device(device)

    def finish(self, work: Any, is_cut: Callable[[], bool]) -> None:
        """Wait until all have done something together. Raises RuntimeError when the group is lost, or was cut."""
        with aloud():
            while not is_cut() and not work.is_completed():
                time.sleep(_LOOK_S)
        if is_cut():
            # Its kernels still write into the gradients, until it is given up.
            self._is_over.wait(_GIVE_UP.total_seconds())
            raise RuntimeError("the group was cut")
        with aloud():
            work.wait()  # it is there: raises what went wrong

    def cut(self) -> None:
        """Give it up: nothing of it is under way any more soon after. From any thread; waits for nothing."""
        threading.Thread(target=self._give_up, name="dlaas-nccl", daemon=True).start()

    def _give_up(self) -> None:
        with suppress(RuntimeError):
            self.backend.abort()
        self._is_over.set()

    def talks(self) -> int:
        """How many talks were begun."""
        return int(self.backend._get_sequence_number_for_group())


def without_watchdog() -> None:
    """To be called before the first communicator, and before threads that read the environment.

    torch's watchdog ends the whole process when a peer is lost. With this setting there is none, and nobody reads the
    records of what was begun; `Nccl.finish` looks itself (torch, `ProcessGroupNCCL`: "in blockingWait mode, we don't
    need to enable the watchdog thread").
    """
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"


def have_a_gpu_each(store: Any, rank: int, size: int, device: torch.device) -> bool:
    """Whether no two learners of a group are on one GPU, or parts of one: NCCL refuses these."""
    found: Any = torch.cuda.get_device_properties(device)
    store.set(f"gpu-{rank}", f"{boot_id()} {found.pci_domain_id}:{found.pci_bus_id}:{found.pci_device_id}")
    return len({store.get(f"gpu-{other}") for other in range(size)}) == size
