"""FGD and BestFit by the rules of the reference's simulator: a score per node in whole points, the first of the best.

FGD: 100 x sigmoid(shrinkage of the fragments, in devices), rounded down. What is usual is known beforehand: the most
popular pods of the list that make 95 % of it, by CPUs and GPUs. BestFit: what is left, CPUs and GPUs half each, as
shares of the largest node.
Source: Weng et al., USENIX ATC 2023; hkust-adsl/kubernetes-scheduler-simulator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import exp
from typing import Final

from dlaas_server.core.model.resources import WHOLE, Shape
from dlaas_server.core.placement.fragmentation import State, Usual, free_milli, ways
from dlaas_server.sim.replay.production import GB
from dlaas_server.sim.trace.trace import NodeSpec

__all__ = ["FILLERS", "Scored", "best_fit", "fgd"]

POPULAR: Final = 0.95
NO_ROOM: Final = -1

Score = Callable[[State, State], int]
"""Of a node before and after: the higher the better, 0 at least."""


@dataclass(slots=True)
class _Line:
    """The nodes as one shape sees them."""

    scores: list[int]
    best: list[tuple[int, int]] = field(default_factory=list)
    """Heap of scores (the highest first) with their nodes; what is not in `scores` any more is outdated."""
    seen: int = -1
    """So many changes are counted in; -1: it knows nothing yet."""


@dataclass(slots=True)
class Scored:
    """Seats each pod on the first node with the highest score."""

    specs: Sequence[NodeSpec]
    score: Score
    nodes: list[State] = field(init=False)
    _milli: list[int] = field(init=False)
    """Thousandths of devices that are free on each."""
    _changed: list[int] = field(init=False, default_factory=list)
    """Nodes in the order in which they were given to somebody."""
    _lines: dict[Shape, _Line] = field(init=False, default_factory=dict)
    _known: dict[Shape, dict[State, tuple[int, State | None]]] = field(init=False, default_factory=dict)
    """Shape -> state of a node -> its score and its next state."""

    def __post_init__(self) -> None:
        self.nodes = [(s.cpus, round(s.mem_gb * GB), ((s.kind, s.gpus, ()),)) for s in self.specs]
        self._milli = [free_milli(state) for state in self.nodes]

    def put(self, shape: Shape) -> bool:
        """Seat one pod."""
        known, line = self._known.setdefault(shape, {}), self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = _Line([NO_ROOM] * len(self.nodes))
        scores, best = line.scores, line.best
        least, milli = shape.cpus - 1e-9, shape.gpus * shape.milli
        for i in range(len(self.nodes)) if line.seen < 0 else set(self._changed[line.seen :]):
            state = self.nodes[i]
            if state[0] < least or self._milli[i] < milli:  # most have no room: no more is looked at
                scores[i] = NO_ROOM
                continue
            found = known.get(state)
            if found is None:
                found = known[state] = self._scored(shape, state)
            if found[0] != scores[i]:
                scores[i] = found[0]
                heappush(best, (-found[0], i))
        line.seen = len(self._changed)
        while best and scores[best[0][1]] != -best[0][0]:
            heappop(best)
        if not best or scores[best[0][1]] == NO_ROOM:
            return False
        at = best[0][1]
        after = known[self.nodes[at]][1]
        assert after is not None
        self.nodes[at] = after
        self._milli[at] = free_milli(after)
        self._changed.append(at)
        return True

    def _scored(self, shape: Shape, state: State) -> tuple[int, State | None]:
        best, after = NO_ROOM, None
        for _, _, left in ways(state, shape):
            score = self.score(state, left)
            if score > best:
                best, after = score, left
        return best, after

    def states(self) -> Iterable[State]:
        """What is free on each node."""
        return self.nodes


def fgd(specs: Sequence[NodeSpec], shapes: Iterable[Shape]) -> Scored:
    """Fragmentation gradient descent for a list of pods."""
    counts = Counter(replace(shape, memory_bytes=0) for shape in shapes)
    usual, told = Usual(), 0
    for shape, count in counts.most_common():
        if told >= POPULAR * counts.total():
            break
        usual.note(shape, count)
        told += count

    def score(before: State, after: State) -> int:
        return int(100 / (1 + exp((usual.lost(after) - usual.lost(before)) / WHOLE)))

    return Scored(specs, score)


def best_fit(specs: Sequence[NodeSpec], shapes: Iterable[Shape]) -> Scored:
    """The node with the least left, CPUs and GPUs together."""
    cpus = max((spec.cpus for spec in specs), default=0) or 1.0
    milli = WHOLE * max((spec.gpus for spec in specs), default=0) or 1

    def score(before: State, after: State) -> int:
        return int(100 * (1 - 0.5 * after[0] / cpus - 0.5 * free_milli(after) / milli))

    return Scored(specs, score)


FILLERS: Final[Mapping[str, Callable[[Sequence[NodeSpec], Iterable[Shape]], Scored]]] = {
    "fgd": fgd,
    "bestfit": best_fit,
}
"""Name on the command line -> the rule for a pool of these nodes and a list of pods that ask for this."""
