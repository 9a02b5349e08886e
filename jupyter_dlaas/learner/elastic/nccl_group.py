"""All-reduce on GPUs: an NCCL communicator for one group, which can be aborted.

When a learner is lost, the NCCL kernels of the others wait forever, and NCCL reports nothing. So waiting for an
all-reduce polls, and a learner that finds the group lost aborts the communicator, which ends its kernels.

Imported with `process_group`. A communicator is created only in a gang that trains on GPUs.
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
    """A CUDA error of this learner's own GPU. The loss of another learner is a RuntimeError instead."""


@contextmanager
def aloud() -> Iterator[None]:
    """Raise DeviceFailed for a CUDA error that surfaces inside this context."""
    try:
        yield
    except RuntimeError as error:
        if "CUDA error" in str(error):
            raise DeviceFailed(str(error)) from error
        raise


def is_able() -> bool:
    """Return whether this torch has NCCL, can abort a communicator, and reports GPU bus ids. torch 2.15 does."""
    knows_place = hasattr(getattr(torch._C, "_CudaDeviceProperties", None), "pci_bus_id")
    return dist.is_nccl_available() and hasattr(dist.ProcessGroupNCCL, "abort") and knows_place


class Half(Protocol):
    """The part of a group that performs collectives on the models' device."""

    kind: Any
    """A value of torch's `ProcessGroup.BackendType`."""
    device: torch.device
    backend: Any

    def finish(self, work: Any, is_cut: Callable[[], bool]) -> None:
        """Wait until a collective is complete. Raises RuntimeError if the group is lost or was cut."""

    def cut(self) -> None:
        """Abort the communicator soon, without waiting. Callable from any thread."""

    def collectives_started(self) -> int:
        """Return the number of collectives started."""


class Nccl:
    """The NCCL communicator of a group. All learners create it at once. Raises RuntimeError."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        self.kind = dist.ProcessGroup.BackendType.NCCL
        self.device = device
        self._is_over = threading.Event()
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _GIVE_UP  # The limit for aborting. Without a watchdog nothing else uses it.
        torch.cuda.set_device(device)  # for this thread
        self.backend: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        self.backend.eager_connect_single_device(device)

    def finish(self, work: Any, is_cut: Callable[[], bool]) -> None:
        """Wait until a collective is complete. Raises RuntimeError if the group is lost or was cut."""
        with aloud():
            while not is_cut() and not work.is_completed():
                time.sleep(_LOOK_S)
        if is_cut():
            # The kernels write into the gradients until the communicator is aborted.
            self._is_over.wait(_GIVE_UP.total_seconds())
            raise RuntimeError("the process group was aborted")
        with aloud():
            work.wait()  # complete; raises its error, if any

    def cut(self) -> None:
        """Abort the communicator soon, without waiting. Callable from any thread."""
        threading.Thread(target=self._give_up, name="dlaas-nccl", daemon=True).start()

    def _give_up(self) -> None:
        with suppress(RuntimeError):
            self.backend.abort()
        self._is_over.set()

    def collectives_started(self) -> int:
        """Return the number of collectives started."""
        return int(self.backend._get_sequence_number_for_group())


def without_watchdog() -> None:
    """Disable torch's NCCL watchdog. Call before the first communicator, and before threads read the environment.

    The watchdog ends the whole process when a peer is lost. With this setting there is none, and `Nccl.finish` polls
    instead (torch, `ProcessGroupNCCL`: "in blockingWait mode, we don't need to enable the watchdog thread").
    """
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"


def have_a_gpu_each(store: Any, rank: int, size: int, device: torch.device) -> bool:
    """Return whether each learner of a group has a GPU of its own. NCCL rejects shared GPUs and parts of one."""
    found: Any = torch.cuda.get_device_properties(device)
    store.set(f"gpu-{rank}", f"{boot_id()} {found.pci_domain_id}:{found.pci_bus_id}:{found.pci_device_id}")
    return len({store.get(f"gpu-{other}") for other in range(size)}) == size
