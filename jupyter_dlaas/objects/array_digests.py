"""Digests of arrays and tensors, by which a process detects changes. Other processes have other digests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Budget", "bytes_of", "digest", "is_lazy", "own_memory", "tensor_digest"]

_FULL_BYTES: Final = 1 << 26
"""Size above which an array is compared by a part of each memory page."""
_PAGE: Final = 4096
_CHUNK: Final = 1 << 18
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


class _Bytes:
    """The bytes of a tensor in the form that NumPy accepts."""

    def __init__(self, tensor: Any, address: int, size: int) -> None:
        self.tensor = tensor
        """Keeps the memory as long as the array is used."""
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}


def bytes_of(tensor: Any) -> Any:
    """Return a read-only array over the bytes of a contiguous tensor on the CPU, until that is resized.

    Memory that `tensor.numpy()` has returned cannot be resized any more, neither by `resize_` nor by `out=…`. Raises
    TypeError for tensors without memory of their own.
    """
    numpy: Any = sys.modules["numpy"]
    size, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    if not size:
        return numpy.empty(0, numpy.uint8)
    if not address or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise TypeError(f"a {type(tensor).__name__} has no contiguous memory on the CPU")
    return numpy.asarray(_Bytes(tensor, address, size))


def digest(array: Any, budget: Budget) -> int:
    """Return a checksum of an array: of all of it, or of a part of each memory page if it is large."""
    numpy: Any = sys.modules["numpy"]
    data = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    if len(data) > min(_FULL_BYTES, budget.full_bytes):
        whole = len(data) // _PAGE * _PAGE
        return _of_pages(numpy.ascontiguousarray(data[:whole].reshape(-1, _PAGE)[:, :_SAMPLE]), data[whole:].tobytes())
    budget.full_bytes -= len(data)
    return _checksum(data)


def tensor_digest(tensor: Any, budget: Budget) -> int:
    """Return the checksum of a tensor. A large one on a GPU stays there: only what is compared is copied."""
    torch: Any = sys.modules["torch"]
    tensor = tensor.detach()
    if tensor.numel() * tensor.element_size() <= min(_FULL_BYTES, budget.full_bytes) or not tensor.is_contiguous():
        flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        return digest(bytes_of(flat), budget)
    data = tensor.reshape(-1).view(torch.uint8)
    whole = len(data) // _PAGE * _PAGE
    pages = data[:whole].view(-1, _PAGE)[:, :_SAMPLE].contiguous()
    pages, rest = pages.cpu(), data[whole:].cpu()
    return _of_pages(bytes_of(pages).reshape(-1, _SAMPLE), bytes_of(rest).tobytes())


def _of_pages(parts: Any, rest: bytes) -> int:
    """Return a checksum of the parts of whole pages, and of the bytes after the last one."""
    return hash((_checksum(parts.reshape(-1)), rest))


def _checksum(data: Any) -> int:
    """Return a checksum of bytes by Python's own hash, five times as fast as BLAKE2: SipHash, of 64 bits."""
    return hash(tuple(hash(data[start : start + _CHUNK].tobytes()) for start in range(0, len(data), _CHUNK)))
