"""Digests of arrays and tensors, by which a checkpoint detects changes."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Budget", "as_bytes", "digest", "is_lazy", "own_memory"]

_FULL_BYTES: Final = 1 << 26
"""Size above which an array is compared by a part of each memory page."""
_PAGE: Final = 4096
_SAMPLE: Final = 32


@dataclass(slots=True)
class Budget:
    """Remaining bytes of arrays that are compared in full."""

    full_bytes: int = 1 << 29


def own_memory(tensor: Any) -> Any:
    """Return a copy of a view, which would otherwise store all of the larger tensor."""
    is_view = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return tensor.clone() if is_view else tensor


def is_lazy(value: Any) -> bool:
    """Return whether a parameter has no shape before the first batch."""
    return hasattr(type(value), "materialize")


def as_bytes(tensor: Any) -> Any:
    """Return a tensor's numbers as an array of bytes."""
    torch: Any = sys.modules["torch"]
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def digest(array: Any, budget: Budget) -> bytes:
    """Return a checksum of an array: of all of it, or of a part of each memory page if it is large."""
    numpy: Any = sys.modules["numpy"]
    data = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    if len(data) > min(_FULL_BYTES, budget.full_bytes):
        whole = len(data) // _PAGE * _PAGE
        pages = numpy.ascontiguousarray(data[:whole].reshape(-1, _PAGE)[:, :_SAMPLE])
        return hashlib.blake2b(data[whole:].tobytes(), digest_size=16, key=hashlib.blake2b(pages).digest()).digest()
    budget.full_bytes -= len(data)
    return hashlib.blake2b(data, digest_size=16).digest()
