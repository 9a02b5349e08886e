"""Jobs that wait, by what they ask for: so many lines as there are shapes, however many jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.scheduling.gang_request import Ask, Key, length_level

__all__ = ["Group"]

_Entry = tuple[int, int, float, float, int, int, Ask]
"""The key, flat (it is compared in half the time), stamp, who. Outdated once the stamp is."""
_Line = list[_Entry]
"""A heap."""
FEW: Final = 1024
"""So many are sorted by length when somebody asks; if there are more, as they come."""


def _trim(line: _Line) -> None:
    """The first of this line is one that waits."""
    while line and line[0][5] != line[0][6].stamp:
        heappop(line)


@dataclass(slots=True, eq=False)
class Group:
    """Gangs of one shape and queue that wait: in one line, and by expected length once that is needed."""

    shape: Shape
    learners: int
    head: Ask | None = None
    key: Key | None = None
    is_shut: bool = False
    """Its head was tried, and nothing that could help happened since."""
    could_fit: bool | None = None
    """Whether it would have room if nobody ran: with a node out of service it may not. None: not looked at yet."""
    devices_min: int = field(init=False)
    """With fewer free devices than that, none of them has room."""
    _line: _Line = field(default_factory=list)
    _by_length: dict[int, _Line] | None = None
    """Level of the expected length -> those of that length, the same entries. None: few wait, and nobody asked yet."""

    def __post_init__(self) -> None:
        self.devices_min = 0 if self.shape.is_share else self.learners * self.shape.gpus

    def push(self, key: Key, ask: Ask) -> bool:
        """Put a job in line; True if it is one of `heads` now, or the first while nobody has asked for them."""
        entry = (*key, ask.stamp, ask)
        heappush(self._line, entry)
        if self.key is None or key < self.key:
            self.key, self.head = key, ask
        if self._by_length is None:
            if len(self._line) > FEW:  # in time: it takes long where many wait
                self._sort_by_length()
            return self.head is ask
        alike = self._by_length.setdefault(length_level(ask.estimate_s), [])
        _trim(alike)
        heappush(alike, entry)
        return alike[0] is entry

    def _sort_by_length(self) -> dict[int, _Line]:
        lines: dict[int, _Line] = {}
        for entry in self._line:
            lines.setdefault(length_level(entry[6].estimate_s), []).append(entry)
        for line in lines.values():
            heapify(line)
        self._by_length = lines
        return lines

    def heads(self) -> list[Ask]:
        """The first of each length, first in order first."""
        lines = self._sort_by_length() if self._by_length is None else self._by_length
        found: list[tuple[Key, Ask]] = []
        for line in lines.values():
            _trim(line)
            if line:
                found.append((line[0][:5], line[0][6]))
        found.sort()
        return [ask for _, ask in found]

    def refresh(self) -> None:
        """Find the head anew, after the old one went."""
        line = self._line
        while line:
            first = line[0]
            ask = first[6]
            if first[5] == ask.stamp:
                self.key, self.head = first[:5], ask
                return
            heappop(line)
            if self._by_length is not None:
                _trim(self._by_length.get(length_level(ask.estimate_s), []))
        self.key = self.head = self._by_length = None

    def waiting(self) -> Iterator[tuple[Key, Ask]]:
        """All of them, in no order."""
        return ((entry[:5], entry[6]) for entry in self._line if entry[5] == entry[6].stamp)
