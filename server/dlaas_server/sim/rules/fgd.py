"""FGD and BestFit by the rules of the reference simulator: an integer score per node; the first best node wins.

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
"""Score of a node before and after: the higher the better, at least 0."""


@dataclass(slots=True)
class _Line:
    """Scores of the nodes for one shape."""

    scores: list[int]
    best: list[tuple[int, int]] = field(default_factory=list)
    """Heap of scores (highest first) with their nodes; entries that differ from `scores` are outdated."""
    seen: int = -1
    """Number of changes included; -1: none computed yet."""


@dataclass(slots=True)
class Scored:
    """Placement of each pod on the first node with the highest score."""

    specs: Sequence[NodeSpec]
    score: Score
    nodes: list[State] = field(init=False)
    _milli: list[int] = field(init=False)
    """Free thousandths of devices on each node."""
    _changed: list[int] = field(init=False, default_factory=list)
    """Nodes in the order in which they received pods."""
    _lines: dict[Shape, _Line] = field(init=False, default_factory=dict)
    _known: dict[Shape, dict[State, tuple[int, State | None]]] = field(init=False, default_factory=dict)
    """Shape -> state of a node -> its score and its next state."""

    def __post_init__(self) -> None:
        self.nodes = [(s.cpus, round(s.mem_gb * GB), ((s.kind, s.gpus, ()),)) for s in self.specs]
        self._milli = [free_milli(state) for state in self.nodes]

    def put(self, shape: Shape) -> bool:
        """Place one pod."""
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
        """Return the free capacity of each node."""
        return self.nodes


def fgd(specs: Sequence[NodeSpec], shapes: Iterable[Shape]) -> Scored:
    """Return fragmentation gradient descent for a list of pods."""
    counts = Counter(replace(shape, memory_bytes=0) for shape in shapes)
    usual, counted = Usual(), 0
    for shape, count in counts.most_common():
        if counted >= POPULAR * counts.total():
            break
        usual.note(shape, count)
        counted += count

    def score(before: State, after: State) -> int:
        return int(100 / (1 + exp((usual.lost(after) - usual.lost(before)) / WHOLE)))

    return Scored(specs, score)


def best_fit(specs: Sequence[NodeSpec], shapes: Iterable[Shape]) -> Scored:
    """Score a node by the least remaining capacity, CPUs and GPUs together."""
    cpus = max((spec.cpus for spec in specs), default=0) or 1.0
    milli = WHOLE * max((spec.gpus for spec in specs), default=0) or 1

    def score(before: State, after: State) -> int:
        return int(100 * (1 - 0.5 * after[0] / cpus - 0.5 * free_milli(after) / milli))

    return Scored(specs, score)


FILLERS: Final[Mapping[str, Callable[[Sequence[NodeSpec], Iterable[Shape]], Scored]]] = {
    "fgd": fgd,
    "bestfit": best_fit,
}
"""Name on the command line -> rule for a pool of these nodes and a list of pods with these requests."""
