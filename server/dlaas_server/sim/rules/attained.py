"""Tiresias' rules by attained service, as in its simulator: `dlas`, `dlas-gpu`, `dlas-gpu-gittins` and `gittins`.

Three queues with limits of 3250 and 7200 (seconds, or GPU-seconds). In each queue the jobs that run stand before those
that wait. Two quirks of the original are kept: the time of the next demotion is reckoned with seconds against a limit
in GPU-seconds, and `gittins` gives first to the lowest index.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from itertools import accumulate
from typing import Final

from dlaas_server.sim.replay.event_loop import Decision, Run

__all__ = ["Attained", "Gittins", "GittinsIndex"]

LIMITS: Final = (3250, 7200)
DELTA: Final = 3250
"""Look-ahead of the Gittins index in GPU-seconds."""
Key = tuple[float, float, int]


def _rounded(value: float, digits: int) -> float:
    """Round halves up, as the Python 2 of the original does."""
    return float(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP))


class GittinsIndex:
    """Gittins index by attained service, learnt from the GPU-seconds of past jobs.

    Index = P/E x 10^6 of the next quantum: P that the job ends in it, E the service it is expected to use of it.
    Source: Tiresias, section 3.3, with the roundings of its simulator (E is cut to whole seconds).
    """

    def __init__(self, gpu_seconds: Sequence[int]) -> None:
        self._data = sorted(gpu_seconds)
        sums = [0, *accumulate(self._data)]
        self._index = [self._learn(value - 1, sums) for value in self._data]

    def _learn(self, attained: int, sums: Sequence[int]) -> float:
        data, count = self._data, len(self._data)
        first, ahead = bisect_right(data, attained), attained + DELTA
        last = count - 1 if ahead > data[-1] - 1 else bisect_right(data, ahead)
        ends = _rounded((last - first) / (count - first), 5)
        expected = (sums[last] - sums[first] + DELTA * (count - last)) // (count - first)
        return _rounded(ends * 1_000_000 / expected, 4)

    def at(self, attained: float) -> float:
        """Return the index of a job with this attained service; 0 beyond the largest one seen."""
        return 0.0 if attained >= self._data[-1] else self._index[bisect_right(self._data, attained)]


@dataclass(slots=True)
class _Queue:
    """Queue: running jobs in order, and waiting jobs by GPU count, each with a key that orders them."""

    running: list[Run] = field(default_factory=list)
    late: list[Run] = field(default_factory=list)
    """Jobs that were just demoted: they run, but come behind waiting jobs."""
    waiting: dict[int, list[tuple[Key, Run]]] = field(default_factory=dict)
    front: int = 0
    back: int = 0

    def push(self, run: Run, rank: float, *, in_front: bool = False) -> None:
        if in_front:
            self.front -= 1
        else:
            self.back += 1
        label = self.front if in_front else self.back
        # Without ranks only the label counts; with them: highest rank, then earliest submission, then as they stood.
        key = (0.0, 0.0, label) if rank < 0 else (-rank, run.job.submit_s, label)
        heapq.heappush(self.waiting.setdefault(run.gpus, []), (key, run))

    def first(self, free: int) -> tuple[Key, Run] | None:
        return min((heap[0] for gpus, heap in self.waiting.items() if gpus <= free and heap), default=None)


class Attained:
    """Rules `dlas`, `dlas-gpu` (limits in GPU-seconds), `dlas-gpu-gittins` (queues sorted by the Gittins index)."""

    def __init__(self, gpus: int, *, is_by_gpu: bool, index: GittinsIndex | None = None) -> None:
        self._gpus = gpus
        self._is_by_gpu = is_by_gpu
        self._index = index
        self._queues = tuple(_Queue() for _ in range(len(LIMITS) + 1))

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Demote jobs, serve the queues in order, and return the time at which the next job reaches its limit."""
        if ended:
            for queue in self._queues:
                queue.running = [run for run in queue.running if run.since_s is not None]
        self._demote(now_s)
        for run in arrived:
            self._queues[0].push(run, self._rank(run, now_s))
        free = self._gpus
        starts: list[Run] = []
        stops: list[Run] = []
        for queue in self._queues:
            free = self._walk(queue, free, now_s, starts, stops)
        return Decision(starts=starts, stops=stops, wake_s=self._next_jump_s(now_s))

    def _service(self, run: Run, now_s: float) -> float:
        return run.executed_at(now_s) * (run.gpus if self._is_by_gpu else 1)

    def _rank(self, run: Run, now_s: float) -> float:
        return -1.0 if self._index is None else self._index.at(self._service(run, now_s))

    def _demote(self, now_s: float) -> None:
        """Move jobs beyond their limit to the end of the next queue, in order of submission."""
        due: list[tuple[int, int, Run]] = []
        for level, limit in enumerate(LIMITS):
            for run in self._queues[level].running:
                if self._service(run, now_s) >= limit:
                    due.append((run.index, level, run))
        for _, level, run in sorted(due):
            self._queues[level].running.remove(run)
            self._queues[level + 1].late.append(run)

    def _walk(self, queue: _Queue, free: int, now_s: float, starts: list[Run], stops: list[Run]) -> int:
        if self._index is None and not queue.late:
            total = sum([run.gpus for run in queue.running])
            if total <= free:  # all stay, and all stand before those that wait
                return self._fill(queue, free - total, queue.running, starts)
        order = self._order(queue, now_s)
        kept: list[Run] = []
        lost: list[tuple[Run, bool, float]] = []
        head = queue.first(free)
        for key, run in order:
            while head is not None and head[0] < key:
                free, head = self._take(queue, head[1], free, kept, starts)
            if run.gpus > free:
                lost.append((run, key[2] < queue.front, -key[0]))
                continue
            free -= run.gpus
            kept.append(run)
            if head is not None and head[1].gpus > free:
                head = queue.first(free)
        free = self._fill(queue, free, kept, starts)
        queue.running, queue.late = kept, []
        for run, was_in_front, rank in reversed([entry for entry in lost if entry[1]]):
            queue.push(run, rank if self._index else -1.0, in_front=was_in_front)
        for run, was_in_front, rank in lost:
            if not was_in_front:
                queue.push(run, rank if self._index else -1.0)
        stops += [run for run, _, _ in lost]
        return free

    def _fill(self, queue: _Queue, free: int, kept: list[Run], starts: list[Run]) -> int:
        head = queue.first(free)
        while head is not None:
            free, head = self._take(queue, head[1], free, kept, starts)
        return free

    def _order(self, queue: _Queue, now_s: float) -> list[tuple[Key, Run]]:
        """Return the running jobs, with keys that order them before or behind waiting jobs."""
        count = len(queue.running)
        labels = [queue.front - count + i for i in range(count)] + [queue.back + 1 + i for i in range(len(queue.late))]
        runs = queue.running + queue.late
        if self._index is None:
            return [((0.0, 0.0, label), run) for label, run in zip(labels, runs, strict=True)]
        keyed = [((-self._rank(r, now_s), r.job.submit_s, n), r) for n, r in zip(labels, runs, strict=True)]
        return sorted(keyed, key=lambda entry: entry[0])

    def _take(
        self, queue: _Queue, run: Run, free: int, kept: list[Run], starts: list[Run]
    ) -> tuple[int, tuple[Key, Run] | None]:
        heapq.heappop(queue.waiting[run.gpus])
        kept.append(run)
        starts.append(run)
        return free - run.gpus, queue.first(free - run.gpus)

    def _next_jump_s(self, now_s: float) -> float | None:
        jumps = [
            now_s + (limit - run.executed_at(now_s)) // (run.gpus if self._is_by_gpu else 1)
            for limit, queue in zip(LIMITS, self._queues, strict=False)
            for run in queue.running
        ]
        return min(jumps, default=None)


class Gittins:
    """Rule `gittins`: one list, sorted by the index at each event and at increasingly rare wake-ups, lowest first.

    For a job that waits the original takes seconds for GPU-seconds; its wake-ups come ever later.
    """

    def __init__(self, gpus: int, index: GittinsIndex) -> None:
        self._gpus = gpus
        self._index = index
        self._jobs: list[Run] = []
        self._unit_s: float = DELTA

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Sort all jobs by their index and give GPUs in that order."""
        if ended:
            gone = {run.index for run in ended}
            self._jobs = [run for run in self._jobs if run.index not in gone]
        self._jobs += arrived
        self._jobs.sort(key=lambda r: self._index.at(r.executed_at(now_s) * (r.gpus if r.since_s is not None else 1)))
        free, starts, stops = self._gpus, [], []
        for run in self._jobs:
            if run.gpus <= free:
                free -= run.gpus
                if run.since_s is None:
                    starts.append(run)
            elif run.since_s is not None:
                stops.append(run)
        self._unit_s += now_s
        return Decision(starts=starts, stops=stops, wake_s=self._unit_s)
