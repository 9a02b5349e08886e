"""The device of a batch. Imported only in a program that uses torch."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["to_device"]


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors moved to a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: to_device(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
