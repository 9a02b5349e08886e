"""A process group that raises no exception in a backward pass, for DistributedDataParallel's reducer.

Imported by `data_parallel` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from jupyter_dlaas.learner.elastic import process_group

if TYPE_CHECKING:
    from jupyter_dlaas.learner.elastic.data_parallel import Gang

__all__ = ["QuietGroup"]

_c10d: Final[Any] = dist


class QuietGroup(dist.ProcessGroup):
    """A wrapper of the gang's group that reports a loss to the gang instead of raising in the backward pass."""

    def __init__(self, group: Any, gang: Gang) -> None:
        super().__init__(group.rank(), group.size())
        self._group, self._gang = group, gang

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "gloo"

    def allreduce(self, tensors: Any, *_: Any) -> Any:
        work = None
        if not self._gang.is_stranded:
            try:
                work = self._group.allreduce(tensors)
            except RuntimeError:
                self._gang.lost()
        self._attempt = _Attempt(
            work, self._gang, tensors[0].device
        )  # keep a reference: older versions of torch only hold its C++ half
        return self._attempt


class _Attempt(_c10d._Work):  # type: ignore[misc]  # torch's own, untyped
    """The work of a collective in a group that may be lost meanwhile."""

    def __init__(self, work: Any, gang: Gang, device: torch.device) -> None:
        super().__init__()
        self._work, self._gang, self._device = work, gang, device

    def wait(self, *_: Any) -> bool:
        if self._work is not None:
            try:
                process_group.finish(self._gang._group, self._work, self._device)
            except RuntimeError:
                self._gang.lost()
        return True
