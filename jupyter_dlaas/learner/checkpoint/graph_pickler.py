"""Pickler of an object graph: objects that existed before the loop are written as their paths.

Tensors of shared memory are written as views of it, arrays as views of their owners, locks as new ones.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from jupyter_dlaas import stored
from jupyter_dlaas.objects.array_digests import bytes_of
from jupyter_dlaas.objects.special_objects import reduce_special
from jupyter_dlaas.transfer.code_by_value import reduce_code

__all__ = ["ID_OF", "PART", "Memory", "make_memory", "make_typed_memory", "new_pickler", "reduce_memory"]

ID_OF: Final = "id of "
"""Begin of what a pickle holds in place of an object's address, which differs in each process."""
PART: Final = "part "
"""Begin of what a pickle holds in place of a part of the running program."""
_VIEWED: Final = 4
_VIEWED_BYTES: Final = 1 << 16
"""The size of an array that is stored with a view of it: at most some times the view, or this many bytes."""


class Known(Protocol):
    """An object that existed before the loop."""

    path: str


def new_pickler(
    base: type[pickle.Pickler],
    file: Any,
    of: Mapping[int, Known],
    wholes: frozenset[int],
    parts: Mapping[int, str],
) -> pickle.Pickler:
    """Return a pickler that writes existing objects as their paths, and tensors of shared memory as views of it."""
    memories: dict[tuple[str, int], Memory] = {}

    class Pickler(base):  # type: ignore[valid-type, misc]  # chosen at run time
        def persistent_id(self, obj: Any) -> str | None:
            if type(obj) is int and obj in of and obj not in wholes:
                return ID_OF + of[obj].path  # the key of a dictionary by `id(…)`
            if id(obj) in parts:
                return PART + parts[id(obj)]
            entry = of.get(id(obj))
            return entry.path if entry is not None and id(obj) not in wholes else None

        def reducer_override(self, obj: Any) -> Any:
            memory = reduce_memory(obj, memories)
            if memory is not NotImplemented:
                return memory
            if type(obj).__module__.startswith("cupy.random."):
                raise TypeError("CuPy cannot return the position of a random stream")
            weak = reduce_special(obj)
            if weak is not NotImplemented:
                return weak
            view = _as_view(obj, of)
            if view is not None:
                return view
            made_again = _MADE_AGAIN.get(type(obj))
            if made_again is not None:
                return made_again, ()
            reduced = reduce_code(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    return Pickler(file, protocol=5)


def _as_view(value: Any, of: Mapping[int, Known]) -> tuple[Any, ...] | None:
    """Reduce an array to a view of the array whose memory it shares, if that one is stored or small."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray or value.dtype.hasobject:
        return None
    root = value
    while type(root.base) is numpy.ndarray:
        root = root.base
    is_kept = id(root) in of or root.nbytes <= max(_VIEWED * value.nbytes, _VIEWED_BYTES)
    if root is value or not is_kept or not root.flags.c_contiguous or root.dtype.hasobject:
        return None
    begin = value.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return numpy.ndarray, (value.shape, value.dtype, root, begin, value.strides)


_MADE_AGAIN: Final[Mapping[type, Callable[[], Any]]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
}
"""Locks are recreated unlocked: no lock is held at the head of a loop."""


class Memory:
    """Memory that tensors share."""

    def __init__(self, untyped: Any = None) -> None:
        self.untyped = untyped

    def content(self) -> tuple[str, bytes]:
        torch: Any = sys.modules["torch"]
        flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(self.untyped.cpu())
        return self.untyped.device.type, bytes_of(flat).tobytes()

    def __setstate__(self, content: tuple[str, bytes]) -> None:
        torch: Any = importlib.import_module("torch")
        kind, data = content
        flat = torch.empty(len(data), dtype=torch.uint8, device="cpu")  # not memory of Python: the loop may resize it
        ctypes.memmove(flat.data_ptr(), data, len(data))
        is_there = kind == "cpu" or (kind == "cuda" and torch.cuda.is_available())
        self.untyped = flat.to(kind if is_there else "cpu").untyped_storage()


def reduce_memory(value: Any, memories: dict[tuple[str, int], Memory]) -> Any:
    """Reduce what tensors refer to, and the memory within; return NotImplemented for all other values.

    `memories`: the memory stored so far, by device and address, so that it is stored once.
    """
    if isinstance(value, Memory):
        return stored.memory, value.content()
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.storage.TypedStorage):
        return NotImplemented
    untyped = value._untyped_storage
    key = (str(untyped.device), untyped.data_ptr())
    made = memories.setdefault(key, Memory(untyped)) if key[1] else Memory(untyped)
    return stored.typed_memory, (made, value.dtype)


def make_memory(device: str, data: bytes) -> Memory:
    """Rebuild memory from a checkpoint, on its former device if available, otherwise on the CPU."""
    made = Memory()
    made.__setstate__((device, data))
    return made


def make_typed_memory(made: Memory, dtype: Any) -> Any:
    """Build torch's view of memory for one dtype."""
    torch: Any = sys.modules["torch"]
    return torch.storage.TypedStorage(wrap_storage=made.untyped, dtype=dtype, _internal=True)
