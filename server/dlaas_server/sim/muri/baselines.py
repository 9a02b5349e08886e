"""Rules that Muri is compared with: shortest first, and least attained service, each job on GPUs of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from dlaas_server.sim.muri.jobs import Plan, Seat, StagedJob

__all__ = ["Attained", "FirstFit", "Shortest"]

LIMITS_GPU_S: Final = (3250, 7200)


@dataclass(slots=True)
class FirstFit:
    """Placement on an empty pool: up to a node's GPUs on one node, more on idle nodes and one for the rest.

    First fit in the order of nodes, as Philly's YARN does in the published simulator.
    """

    nodes: int
    width: int
    free: list[int] = field(init=False)
    _fails: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.free = [self.width] * self.nodes

    def take(self, gpus: int) -> tuple[int, ...] | None:
        """Return the node of each GPU; None if the gang does not fit."""
        if gpus in self._fails:
            return None
        whole, rest = divmod(gpus, self.width) if gpus > self.width else (0, gpus)
        idle = [node for node, free in enumerate(self.free) if free == self.width][:whole] if whole else []
        last = next((n for n, free in enumerate(self.free) if free >= rest and n not in idle), None) if rest else 0
        if len(idle) < whole or last is None:
            self._fails.add(gpus)
            return None
        there = tuple([node for node in idle for _ in range(self.width)] + [last] * rest)
        for node in there:
            self.free[node] -= 1
        return there


def alone(job: StagedJob, there: tuple[int, ...]) -> Seat:
    """Return a seat that is not shared."""
    return Seat(job, (job,), job.stages.alone_s, job.startup_s, there)


@dataclass(slots=True)
class Shortest:
    """Rule that sorts all jobs at each event and places them in that order, skipping those that do not fit."""

    nodes: int
    width: int
    key: Callable[[StagedJob], float]
    queue: list[StagedJob] = field(default_factory=list)

    def decide(self, now_s: float, ended: Sequence[StagedJob], arrived: Sequence[StagedJob]) -> Plan:
        """Return the jobs, shortest first."""
        gone = set(ended)
        self.queue = sorted([*(job for job in self.queue if job not in gone), *arrived], key=self.key)
        fit, seats = FirstFit(self.nodes, self.width), []
        for job in self.queue:
            there = fit.take(job.gpus)
            if there is not None:
                seats.append(alone(job, there))
        return Plan(seats, self.nodes * self.width - sum(fit.free))


@dataclass(slots=True)
class Attained:
    """Rule of Tiresias: three queues by attained GPU-seconds; only the number of free GPUs counts."""

    nodes: int
    width: int
    queues: tuple[list[StagedJob], ...] = field(default_factory=lambda: ([], [], []))

    def decide(self, now_s: float, ended: Sequence[StagedJob], arrived: Sequence[StagedJob]) -> Plan:
        """Return the jobs, first queue first; within a queue, waiting jobs come behind running ones."""
        for queue in self.queues:
            queue[:] = [job for job in queue if job not in ended]
        self.queues[0].extend(arrived)
        self._demote()
        left, seats = self.nodes * self.width, list[Seat]()
        wake_s = inf
        for place, queue in enumerate(self.queues):
            waiting = []
            for job in [*queue]:
                if job.gpus > left:
                    waiting.append(job)
                    queue.remove(job)
                    continue
                left -= job.gpus
                seats.append(alone(job, ()))
                if place < len(LIMITS_GPU_S):
                    wake_s = min(wake_s, ceil(LIMITS_GPU_S[place] / job.gpus) - job.executed_s + now_s)
            queue.extend(waiting)
        return Plan(seats, self.nodes * self.width - left, wake_s)

    def _demote(self) -> None:
        """Move jobs to their queues, one queue at a time, in order of submission."""
        due = [
            (job, place)
            for place, queue in enumerate(self.queues[:-1])
            for job in queue
            if job.seat is not None and job.executed_s * job.gpus >= LIMITS_GPU_S[place]
        ]
        for job, place in sorted(due, key=lambda one: one[0].trace.submit_s):
            self.queues[place].remove(job)
            self.queues[place + 1].append(job)
