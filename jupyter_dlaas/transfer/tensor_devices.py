"""Devices of tensors that another process stored: pushed objects in a job, results in a later job or in a kernel."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

__all__ = ["ResultPlacement", "local_device", "place", "resizable"]

_RESIZED_BYTES: Final = 1 << 26
"""The maximum size of a storage that is copied so that it can be resized: copies take time."""


def resizable(storage: Any) -> Any:
    """Return a storage that can be resized, by `resize_` or `out=…`; what torch.load has read cannot."""
    return storage.clone() if storage.nbytes() <= _RESIZED_BYTES else storage


def local_device(kind: str, index: int | None) -> str:
    """Return the device of this process that corresponds to one of another process; the CPU if there is none."""
    torch = importlib.import_module("torch")
    if kind == "cuda" and torch.cuda.is_available():
        if index is None:
            return "cuda"
        return f"cuda:{index if index < torch.cuda.device_count() else torch.cuda.current_device()}"
    if kind == "mps" and torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def place(storage: Any, location: str) -> Any:
    """Implement `map_location` of torch.load: move a storage to the corresponding device."""
    kind, _, index = location.partition(":")
    where = local_device(kind, int(index) if index else None)
    return (
        resizable(storage)
        if where == "cpu"
        else importlib.import_module("torch").serialization.default_restore_location(storage, where)
    )


class ResultPlacement:
    """Placement of a result's tensors: where they were in the job, if this process uses such a device.

    A job always does. A kernel does once it has used its GPU; before that, loading a result would take GPU memory
    that no cell has asked for. If the GPU's memory is full, all tensors stay on the CPU.
    """

    def __init__(self) -> None:
        self.reason = ""
        """Why tensors of a GPU are on the CPU although a GPU is visible; empty if none are."""
        self.uses_gpu = False

    def load(self, read: Callable[[Callable[[Any, str], Any]], Any]) -> Any:
        """Return what `read` makes with a `map_location` for torch.load. May call it twice."""
        try:
            return read(self._place)
        except RuntimeError as error:
            if not self.uses_gpu or "out of memory" not in str(error):
                raise
        self.release()
        self.uses_gpu, self.reason = False, "the memory of the GPU is full"
        return read(lambda storage, _: resizable(storage))

    def _place(self, storage: Any, location: str) -> Any:
        if location.partition(":")[0] != "cuda":
            return place(storage, location)
        torch = importlib.import_module("torch")
        if torch.cuda.is_available() and "DLAAS_JOB" not in os.environ and not torch.cuda.is_initialized():
            self.reason = "this process has not used the GPU"
            return resizable(storage)
        self.uses_gpu = torch.cuda.is_available()
        return place(storage, location)

    def release(self) -> None:
        """Return GPU memory that only loading has used, because existing objects have received the values."""
        if self.uses_gpu:
            importlib.import_module("torch").cuda.empty_cache()
