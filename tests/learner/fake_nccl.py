"""NOT NCCL: gloo in its place, with its manners. Where there are no GPUs, this is how a gang on them is tried.

As with NCCL, a learner that waits for a lost one waits until the group is aborted; no error is reported by itself.
A program that is to be tried with it begins with `INSTALL`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from jupyter_dlaas.learner.elastic import nccl_group, process_group

_c10d: Final[Any] = dist
__all__ = ["INSTALL", "FakeNccl", "install"]

INSTALL: Final = f"""
import sys
sys.path.append({str(Path(__file__).parents[2])!r})
from tests.learner import fake_nccl
fake_nccl.install()
"""


class FakeNccl:
    """Adds up over gloo, and says nothing of those that are lost."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.kind = dist.ProcessGroup.BackendType.CUSTOM
        self.device = process_group.CPU
        self.backend: Any = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))
        self.backend._set_default_timeout(process_group.NEVER)
        self._peer = (rank + 1) % size

    def finish(self, work: Any, is_cut: Callable[[], bool]) -> None:
        """As `nccl.Nccl`: wait, look up now and then."""
        while not is_cut():
            if work.is_completed():
                try:
                    work.wait()
                except RuntimeError:
                    time.sleep(0.001)  # a kernel of NCCL's would still wait
                else:
                    return
            time.sleep(20e-6)
        raise RuntimeError("the process group was aborted")

    def cut(self) -> None:
        """As `nccl.Nccl`; what is under way here ends when its connections do."""
        try:
            self.backend.recv([torch.empty(1)], self._peer, 1).wait(timedelta(milliseconds=1))
        except RuntimeError:
            return

    def collectives_started(self) -> int:
        """As `nccl.Nccl`."""
        return int(self.backend._get_sequence_number_for_group())


def install() -> None:
    """From now on gradients on the CPU go this way, as those on GPUs go over NCCL."""

    def half(store: Any, rank: int, size: int, device: torch.device) -> nccl_group.Half:
        assert device == process_group.CPU
        return FakeNccl(_c10d.PrefixStore("fake", store), rank, size)

    process_group._half = half
