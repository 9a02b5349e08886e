"""Jobs that wait, by what they ask for: so many lines as there are shapes, however many jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from dlaas_server.core.asks import Ask, Key, level
from dlaas_server.core.place import Shape

__all__ = ["Group"]

_Entry = tuple[int, int, float, float, int, int, Ask, "_Line"]
"""The key, flat (it is compared in half the time), stamp, who, the line of its length. Outdated once the stamp is."""
_Line = list[_Entry]
"""A heap."""


def _trim(line: _Line) -> None:
    """The first of this line is one that waits."""
    while line and line[0][5] != line[0][6].stamp:
        heappop(line)


@dataclass(slots=True, eq=False)
class Group:
    """Gangs of one shape and queue that wait: in one line, and by expected length."""

    shape: Shape
    learners: int
    head: Ask | None = None
    key: Key | None = None
    is_shut: bool = False
    """Its head was tried, and nothing that could help happened since."""
    devices_min: int = field(init=False)
    """With fewer free devices than that, none of them has room."""
    _line: _Line = field(default_factory=list)
    _by_length: dict[int, _Line] = field(default_factory=dict)
    """Level of the expected length -> those of that length, the same entries."""

    def __post_init__(self) -> None:
        self.devices_min = 0 if self.shape.is_share else self.learners * self.shape.gpus

    def push(self, key: Key, ask: Ask) -> bool:
        """Put a job in line; True if it is the first of its length now."""
        length = 0 if ask.estimate_s is None else level(ask.estimate_s)
        alike = self._by_length.get(length)
        if alike is None:
            alike = self._by_length[length] = []
        elif alike:
            _trim(alike)
        entry = (*key, ask.stamp, ask, alike)
        heappush(self._line, entry)
        heappush(alike, entry)
        if self.key is None or key < self.key:
            self.key, self.head = key, ask
        return alike[0] is entry

    def heads(self) -> list[Ask]:
        """The first of each length, first in order first."""
        found: list[tuple[Key, Ask]] = []
        for line in self._by_length.values():
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
            _trim(first[7])
        self.key = self.head = None

    def waiting(self) -> Iterator[tuple[Key, Ask]]:
        """All of them, in no order."""
        return ((entry[:5], entry[6]) for entry in self._line if entry[5] == entry[6].stamp)
