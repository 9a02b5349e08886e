"""Equivalence classes of waiting jobs: as many heaps as request shapes, however many jobs wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.scheduling.gang_request import GangRequest, Key, length_level

__all__ = ["Entry", "EquivalenceClass"]

Entry = tuple[int, int, float, float, int, int, GangRequest]
"""Key (flat: comparisons take half the time), version, job. Outdated once the job's version differs.

Entries sort by key, since the key ends with the job's number.
"""
_Heap = list[Entry]
"""Heap of entries."""
MAX_SORTED_ON_DEMAND: Final = 1024
"""Class size up to which jobs are sorted by length on demand; larger classes are kept sorted by length."""


def _trim(heap: _Heap) -> None:
    """Pop outdated entries, so that the first entry is a waiting job."""
    while heap and heap[0][5] != heap[0][6].version:
        heappop(heap)


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Waiting gangs of one shape, size and queue: in one heap, and in heaps by expected length once needed."""

    shape: Shape
    learners: int
    head: GangRequest | None = None
    key: Key | None = None
    is_blocked: bool = False
    """True if the head was tried and nothing that could help happened since."""
    could_fit: bool | None = None
    """True if the gang would fit if nothing ran, which a node out of service can prevent. None: not computed yet."""
    devices_min: int = field(init=False)
    """Number of free devices below which no gang of this class fits."""
    _heap: _Heap = field(default_factory=list)
    _by_length: dict[int, _Heap] | None = None
    """Level of the expected length -> heap of the same entries. None: the class is small, `heads` was not called."""

    def __post_init__(self) -> None:
        self.devices_min = 0 if self.shape.is_share else self.learners * self.shape.gpus

    def push(self, key: Key, request: GangRequest) -> bool:
        """Add a job. Return True if it is now one of `heads`, or the head while `heads` has not been called."""
        entry = (*key, request.version, request)
        heappush(self._heap, entry)
        if self.key is None or key < self.key:
            self.key, self.head = key, request
        if self._by_length is None:
            if len(self._heap) > MAX_SORTED_ON_DEMAND:  # in time: it takes long where many wait
                self._sort_by_length()
            return self.head is request
        alike = self._by_length.setdefault(length_level(request.estimate_s), [])
        _trim(alike)
        heappush(alike, entry)
        return alike[0] is entry

    def _sort_by_length(self) -> dict[int, _Heap]:
        lines: dict[int, _Heap] = {}
        for entry in self._heap:
            lines.setdefault(length_level(entry[6].estimate_s), []).append(entry)
        for line in lines.values():
            heapify(line)
        self._by_length = lines
        return lines

    def heads(self) -> list[GangRequest]:
        """Return the first job of each length level, in queue order."""
        lines = self._sort_by_length() if self._by_length is None else self._by_length
        found: _Heap = []
        for line in lines.values():
            if line and line[0][5] != line[0][6].version:
                _trim(line)
            if line:
                found.append(line[0])
        found.sort()
        return [entry[6] for entry in found]

    def refresh(self) -> None:
        """Recompute the head after the old one left."""
        line = self._heap
        while line:
            first = line[0]
            request = first[6]
            if first[5] == request.version:
                self.key, self.head = first[:5], request
                return
            heappop(line)
            if self._by_length is not None:
                _trim(self._by_length.get(length_level(request.estimate_s), []))
        self.key = self.head = self._by_length = None

    def waiting(self) -> list[Entry]:
        """Return the entries of all waiting jobs, unsorted."""
        return [entry for entry in self._heap if entry[5] == entry[6].version]
