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
from math import exp
from typing import Final

from dlaas_server.core.fragments import State, Usual, free_milli, ways
from dlaas_server.core.shapes import WHOLE, Shape
from dlaas_server.sim.production import GB
from dlaas_server.sim.trace import NodeSpec

__all__ = ["FILLERS", "Scored", "best_fit", "fgd"]

POPULAR: Final = 0.95
NO_ROOM: Final = -1

Score = Callable[[State, State], int]
"""Of a node before and after: the higher the better, 0 at least."""


@dataclass(slots=True)
class Scored:
    """Seats each pod on the first node with the highest score."""

    specs: Sequence[NodeSpec]
    score: Score
    nodes: list[State] = field(init=False)
    _changed: list[int] = field(init=False, default_factory=list)
    """Nodes in the order in which they were given to somebody."""
    _scores: dict[Shape, tuple[list[int], list[State | None], int]] = field(init=False, default_factory=dict)
    """Shape -> score and next state of each node, and how many changes are counted in."""
    _known: dict[tuple[Shape, State], tuple[int, State | None]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = [(s.cpus, round(s.mem_gb * GB), ((s.kind, s.gpus, ()),)) for s in self.specs]

    def put(self, shape: Shape) -> bool:
        """Seat one pod."""
        count = len(self.nodes)
        scores, nexts, seen = self._scores.get(shape, ([NO_ROOM] * count, [None] * count, -1))
        for i in range(count) if seen < 0 else set(self._changed[seen:]):
            scores[i], nexts[i] = self._scored(shape, self.nodes[i])
        self._scores[shape] = (scores, nexts, len(self._changed))
        best = max(range(count), key=scores.__getitem__)
        after = nexts[best]
        if after is None:
            return False
        self.nodes[best] = after
        self._changed.append(best)
        return True

    def _scored(self, shape: Shape, state: State) -> tuple[int, State | None]:
        known = self._known.get((shape, state))
        if known is None:
            best, after = NO_ROOM, None
            for _, _, left in ways(state, shape):
                score = self.score(state, left)
                if score > best:
                    best, after = score, left
            known = self._known[shape, state] = (best, after)
        return known

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
