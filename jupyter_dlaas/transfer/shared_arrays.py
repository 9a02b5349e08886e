"""NumPy arrays that share memory with other arrays or with tensors, in results and pushed objects.

Pickle copies the content of each array, also of a view. A vector of all parameters and the matrices that are views of
it would be separate afterwards: the next training would update the vector and compute with the former matrices. So
arrays whose memory overlaps are stored as views of one block, or of the tensor's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.transfer.object_traversal import is_a, walk

__all__ = ["SharedMemory", "array_of", "existing_memory", "keep_views", "shared_between"]

_SPARSE: Final = 4
_SMALL_BYTES: Final = 1 << 16
"""Maximum size of a block: some times the size of the arrays in it, or this many bytes. Columns may lie far apart."""
_OBJECTS_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class _Span:
    """Memory of an array, or of the storage of a tensor on the CPU: the addresses from `begin` to `end`."""

    begin: int
    end: int
    value: Any


class SharedMemory:
    """Arrays and tensors that a pickler meets, and the reductions of the arrays that share memory.

    What shares memory is known only at the end, so the objects are pickled again until the record is complete.
    """

    def __init__(self) -> None:
        self.spans: dict[int, _Span] = {}
        """By the identity of the object, which the span keeps alive."""
        self._reductions: dict[int, tuple[Any, ...]] = {}
        self._is_applied = False

    def reduce(self, value: Any) -> tuple[Any, ...] | None:
        """Note an array or tensor. Return the reduction of an array that shares memory; None for all other objects."""
        if id(value) not in self.spans and (span := _span_of(value)) is not None:
            self.spans[id(value)] = span
        return self._reductions.get(id(value))

    def is_complete(self) -> bool:
        """Return whether what was pickled shares the memory that it shared; if not, it must be pickled once more."""
        if not self._is_applied:
            self._is_applied = True
            for group in _overlapping(self.spans.values()):
                self._reductions |= _views(group)
            return not self._reductions
        return True


def shared_between(memories: Mapping[str, SharedMemory]) -> dict[str, frozenset[int]]:
    """Return the numbers of the blocks of memory, by name, in which each name has an array or tensor."""
    names = {id(span): name for name, memory in memories.items() for span in memory.spans.values()}
    spans = [span for memory in memories.values() for span in memory.spans.values()]
    found: dict[str, set[int]] = {name: set() for name in memories}
    for number, group in enumerate(_overlapping(spans)):
        for span in group:
            found[names[id(span)]].add(number)
    return {name: frozenset(numbers) for name, numbers in found.items()}


def array_of(tensor: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
    """Return an array over the memory of a flat tensor."""
    numpy: Any = sys.modules["numpy"]
    return numpy.ndarray(shape, dtype, _bytes_of(tensor), offset, strides)


def existing_memory(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[_Span, Any]]:
    """Return the memory of loaded arrays and tensors, each with the existing one in its place.

    `pairs`: existing objects with the loaded ones whose content they take over.
    """
    return [memory for old, new in pairs if (memory := _existing_memory(old, new)) is not None]


def keep_views(value: Any, memo: dict[int, Any], memories: Sequence[tuple[_Span, Any]]) -> None:
    """Add the arrays in a value to the memo of `copy.deepcopy`, which would separate them.

    Views of a loaded array or tensor become views of the existing one in its place (`existing_memory`). All other
    arrays stay as they are: they refer to no other object.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    for _, part in walk({"": value}, _OBJECTS_MAX):
        if type(part) is numpy.ndarray and not _is_of_objects(part) and id(part) not in memo:
            memo[id(part)] = next((view for one in memories if (view := _over(*one, part)) is not None), part)


def _existing_memory(old: Any, new: Any) -> tuple[_Span, Any] | None:
    """Return the memory of a loaded array or tensor, and the existing one, if these are alike."""
    spans = _span_of(old), _span_of(new)
    if spans[0] is None or spans[1] is None or spans[0].end - spans[0].begin != spans[1].end - spans[1].begin:
        return None
    if not hasattr(old, "untyped_storage"):
        return (spans[1], old) if old.flags.c_contiguous and new.flags.c_contiguous else None
    return spans[1], old


def _over(span: _Span, existing: Any, part: Any) -> Any:
    """Return the view of existing memory that corresponds to a view of the loaded one; None if it is none."""
    numpy: Any = sys.modules["numpy"]
    begin, end = _bounds(part) if part.nbytes else (0, 0)
    if not span.begin <= begin < end <= span.end:
        return None
    buffer = _bytes_of(existing) if hasattr(existing, "untyped_storage") else existing
    return numpy.ndarray(part.shape, part.dtype, buffer, _address(part) - span.begin, part.strides)


# -- memory


def _span_of(value: Any) -> _Span | None:
    """Return the memory of an array of numbers, or of a tensor on the CPU; None for other values and empty memory."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(value) is numpy.ndarray:
        if _is_of_objects(value) or not value.nbytes or not value.flags.writeable:
            return None
        return _Span(*_bounds(value), value)
    if torch is None or not is_a(value, torch.Tensor):
        return None
    try:
        storage = value.untyped_storage()
        begin, size = storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage
        return None
    return _Span(begin, begin + size, value) if begin and size and storage.device.type == "cpu" else None


def _is_of_objects(array: Any) -> bool:
    return bool(array.dtype.hasobject)


def _address(array: Any) -> int:
    """Return the address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def _bounds(array: Any) -> tuple[int, int]:
    """Return the lowest address of an array that is not empty, and the one behind its last byte."""
    steps = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
    begin = _address(array)
    below, above = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    return begin + below, begin + above + int(array.itemsize)


def _bytes_of(tensor: Any) -> Any:
    """Return an array over the whole memory of a tensor of any dtype."""
    torch: Any = sys.modules["torch"]
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy()


def _root(array: Any) -> Any:
    """Return the array that a view was made from."""
    kind = type(array)
    while type(array.base) is kind:
        array = array.base
    return array


def _overlapping(spans: Iterable[_Span]) -> Iterator[list[_Span]]:
    """Yield the groups of two and more objects whose memory overlaps, if an array is among them."""
    numpy: Any = sys.modules.get("numpy")
    groups: list[list[_Span]] = []
    end = 0
    for span in sorted(spans, key=lambda one: one.begin):
        if span.begin >= end:
            groups.append([])
        groups[-1].append(span)
        end = max(end, span.end)
    for group in groups:
        if len(group) > 1 and any(type(one.value) is numpy.ndarray for one in group):
            yield group


# -- reductions


def _views(group: Sequence[_Span]) -> dict[int, tuple[Any, ...]]:
    """Return the reductions of the arrays of a group, by their identity."""
    numpy: Any = sys.modules["numpy"]
    arrays = [one for one in group if type(one.value) is numpy.ndarray]
    tensors = [one for one in group if type(one.value) is not numpy.ndarray]
    if tensors:
        return _views_of_tensor(arrays, max(tensors, key=lambda one: one.end - one.begin))
    block = _block(arrays, min(one.begin for one in arrays), max(one.end for one in arrays))
    if block is None:
        return {}
    begin, buffer = block
    return {
        id(one.value): (
            numpy.ndarray,
            (one.value.shape, one.value.dtype, buffer, _address(one.value) - begin, one.value.strides),
        )
        for one in arrays
        if one.value is not buffer
    }


def _block(arrays: Sequence[_Span], begin: int, end: int) -> tuple[int, Any] | None:
    """Return the address of a block that contains all these arrays, and the block.

    Return None if the block would be too large, or if the memory does not belong to an array (as that of a file).
    """
    numpy: Any = sys.modules["numpy"]
    whole = next((one for one in arrays if (one.begin, one.end) == (begin, end) and one.value.flags.c_contiguous), None)
    if whole is not None:
        return begin, whole.value
    root = _root(arrays[0].value)
    flat = root if root.flags.c_contiguous else root.T
    is_dense = end - begin <= max(_SPARSE * sum(one.value.nbytes for one in arrays), _SMALL_BYTES)
    is_one = all(_root(one.value) is root for one in arrays)
    if not is_dense or not is_one or not flat.flags.c_contiguous:
        return None
    return begin, numpy.ndarray((end - begin,), "u1", flat, begin - _bounds(root)[0])


def _views_of_tensor(arrays: Sequence[_Span], owner: _Span) -> dict[int, tuple[Any, ...]]:
    torch: Any = sys.modules["torch"]
    # torch.save stores one dtype of a storage
    flat = torch.empty(0, dtype=owner.value.dtype, device="cpu").set_(owner.value.untyped_storage())
    return {
        id(one.value): (
            stored.array_of,
            (flat, one.value.shape, one.value.dtype, _address(one.value) - owner.begin, one.value.strides),
        )
        for one in arrays
        if owner.begin <= one.begin and one.end <= owner.end
    }
