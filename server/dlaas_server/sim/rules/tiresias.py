"""Rules of Tiresias' simulator in its `count` mode: only the number of free GPUs counts.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, and the behaviour of the
simulator published with it, quirks included: an identical replay needs them, the product must not have them.
Whole seconds, gangs, no restart cost. Waiting jobs lie in one heap or queue per GPU count, so that an event costs what
runs and not what waits; a test holds the results against the original job by job.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlaas_server.sim.replay.event_loop import Decision, Run

__all__ = ["FirstIn", "Sorted"]

Key = tuple[float, int]


@dataclass(slots=True)
class FirstIn:
    """Rules `fifo`: the queue stops at the first job that does not fit; `fjf` (`skips`): it continues."""

    free: int
    skips: bool
    lines: dict[int, deque[Run]] = field(default_factory=dict)

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Start the jobs that fit, in order of submission."""
        self.free += sum(run.gpus for run in ended)
        for run in arrived:
            self.lines.setdefault(run.gpus, deque()).append(run)
        starts: list[Run] = []
        while self.free > 0:
            heads = [line[0] for gpus, line in self.lines.items() if line and (gpus <= self.free or not self.skips)]
            head = min(heads, key=lambda run: run.index, default=None)
            if head is None or head.gpus > self.free:
                break
            self.lines[head.gpus].popleft()
            self.free -= head.gpus
            starts.append(head)
        return Decision(starts=starts)


@dataclass(slots=True)
class _Waiting:
    """Waiting jobs, one heap per GPU count."""

    heaps: dict[int, list[tuple[Key, Run]]] = field(default_factory=dict)

    def add(self, key: Key, run: Run) -> None:
        heapq.heappush(self.heaps.setdefault(run.gpus, []), (key, run))

    def first(self, free: int) -> tuple[Key, Run] | None:
        """Return the first job that needs at most `free` GPUs."""
        return min((heap[0] for gpus, heap in self.heaps.items() if gpus <= free and heap), default=None)

    def pop(self, gpus: int) -> None:
        heapq.heappop(self.heaps[gpus])


def remaining_s(run: Run, now_s: float) -> float:
    """Return the remaining time (`shortest`)."""
    return run.end_s - now_s if run.since_s is not None else run.work_s


def remaining_gpu_s(run: Run, now_s: float) -> float:
    """Return the remaining time, times the GPUs (`shortest-gpu`)."""
    return remaining_s(run, now_s) * run.gpus


def size(run: Run, now_s: float) -> float:
    """Return the GPU count (`sjf`)."""
    return run.gpus


class Sorted:
    """Rules `sjf`, `shortest`, `shortest-gpu`: at each event all unfinished jobs are sorted and get GPUs in that order.

    The sort is stable over the order before. Keys of waiting jobs do not change and those of running jobs only fall, so
    the order is kept as (key, label): at each event the jobs that ran get new labels in their order of before, behind
    those that waited with the same key, and new jobs get labels behind all.
    """

    def __init__(self, gpus: int, key: Callable[[Run, float], float]) -> None:
        self._gpus = gpus
        self._key = key
        self._waiting = _Waiting()
        self._running: list[tuple[Key, Run]] = []
        self._label = 0
        self._then_s: float = -1

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Sort the jobs, give GPUs in that order, and stop jobs that got none."""
        ran = self._sorted_running(now_s)
        for run in arrived:
            self._label += 1
            self._waiting.add((self._key(run, now_s), self._label), run)
        return self._give(ran)

    def _sorted_running(self, now_s: float) -> list[tuple[Key, Run]]:
        ran = [(entry[0], entry[1]) for entry in self._running if entry[1].since_s is not None]
        if self._key is not size and now_s > self._then_s:
            key = self._key
            ranked = sorted([(key(run, now_s), place, run) for place, (_, run) in enumerate(ran)])
            ran = [((value, self._label + place), run) for place, (value, _, run) in enumerate(ranked, start=1)]
            self._label += len(ran)
        self._then_s = now_s
        return ran

    def _give(self, ran: list[tuple[Key, Run]]) -> Decision:
        free = self._gpus
        starts: list[Run] = []
        kept: list[tuple[Key, Run]] = []
        stops: list[tuple[Key, Run]] = []
        head = self._waiting.first(free)
        for place, entry in enumerate(ran):
            while head is not None and head[0] < entry[0]:
                free = self._take(head, free, kept, starts)
                head = self._waiting.first(free)
            if free <= 0:
                stops += ran[place:]
                break
            if entry[1].gpus > free:
                stops.append(entry)
                continue
            free -= entry[1].gpus
            kept.append(entry)
            if head is not None and head[1].gpus > free:
                head = self._waiting.first(free)
        while head is not None:
            free = self._take(head, free, kept, starts)
            head = self._waiting.first(free)
        for key, run in stops:
            self._waiting.add(key, run)
        self._running = kept
        return Decision(starts=starts, stops=[run for _, run in stops])

    def _take(self, head: tuple[Key, Run], free: int, kept: list[tuple[Key, Run]], starts: list[Run]) -> int:
        self._waiting.pop(head[1].gpus)
        kept.append(head)
        starts.append(head[1])
        return free - head[1].gpus
