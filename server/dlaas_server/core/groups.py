"""Jobs that wait, by what they ask for: so many lines as there are shapes, however many jobs."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from dlaas_server.core.asks import Ask, Key, level
from dlaas_server.core.place import Shape

__all__ = ["Group"]


@dataclass(slots=True, eq=False)
class Group:
    """Gangs of one shape and queue that wait, by expected length."""

    shape: Shape
    learners: int
    lines: dict[int, list[tuple[Key, int, Ask]]] = field(default_factory=dict)
    """Level of the expected length -> heap of (key, stamp, ask)."""
    head: Ask | None = None
    key: Key | None = None
    is_shut: bool = False
    """Its head was tried, and nothing that could help happened since."""

    def push(self, key: Key, ask: Ask) -> bool:
        """Put a job in line; True if it is the first of its line now."""
        line = 0 if ask.estimate_s is None else level(ask.estimate_s)
        waiting = self.lines.setdefault(line, [])
        heapq.heappush(waiting, (key, ask.stamp, ask))
        if self.key is None or key < self.key:
            self.key, self.head = key, ask
        return waiting[0][2] is ask

    def heads(self) -> list[Ask]:
        """The first of each line, first in order first."""
        found: list[tuple[Key, Ask]] = []
        for line in self.lines.values():
            while line and line[0][1] != line[0][2].stamp:
                heapq.heappop(line)
            if line:
                found.append((line[0][0], line[0][2]))
        found.sort()
        return [ask for _, ask in found]

    def refresh(self) -> None:
        """Find the head anew, after the old one went."""
        best, head = None, None
        for line in self.lines.values():
            while line and line[0][1] != line[0][2].stamp:
                heapq.heappop(line)
            if line and (best is None or line[0][0] < best):
                best, _, head = line[0]
        self.key, self.head = best, head
