"""AntMan, as Muri's authors simulate it: jobs with guaranteed GPUs, and others that use the capacity left.

A guaranteed job shares its GPUs with no other guaranteed job and is never slowed; one that does not fit holds free GPUs
until the rest becomes free. Every other job starts at once on the GPUs with the least load, wherever they are, at the
speed that their guaranteed jobs leave. No job is preempted. In order of priority, then of submission.
Source: Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning", OSDI 2020, and the behaviour of the
simulator published with Muri, whose rule it says is not finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Final

from dlaas_server.sim.muri.jobs import Plan, Seat, StagedJob, Stages
from dlaas_server.sim.replay.event_loop import Unrunnable
from dlaas_server.sim.trace.trace import Muri

__all__ = ["AntMan", "slowed_s"]

HIGH: Final = 0.8
"""Load of a GPU above which it takes no further opportunistic job."""
LOAD: Final = (0.1, 0.9)
"""Loads of a guaranteed and of an opportunistic job."""
RUNS: Final = 0.01
"""Share of a guaranteed job's load that is added once it runs."""

Gpu = tuple[int, int]
"""Node, and index of the GPU on it."""


def is_guaranteed(job: StagedJob) -> bool:
    """Return whether the job has priority 0."""
    return isinstance(job.trace.work, Muri) and job.trace.work.priority == 0


def slowed_s(job: Stages, by: Stages) -> float:
    """Return the seconds per iteration of a job that uses a resource only while the guaranteed one does not.

    Raises Unrunnable if that one uses a single resource, all the time.
    """
    if by.used_s in (by.load_s, by.compute_s, by.sync_s):
        raise Unrunnable("a job with priority 0 uses one resource only: under muri:antman others would never run")
    iterations, compute_s, sync_s = 0, job.compute_s, job.sync_s
    others_s = by.compute_s + by.sync_s
    iterations += floor(job.load_s / others_s)
    over_s = job.load_s % others_s
    if over_s > 0:
        iterations += 1
        compute_s -= min(compute_s, by.sync_s, others_s - over_s)
    iterations += floor(compute_s / (by.load_s + by.sync_s))
    over_s = compute_s % (by.load_s + by.sync_s)
    if over_s > 0:
        iterations += 1
        if over_s < by.load_s:
            sync_s -= min(sync_s, by.load_s + by.compute_s - over_s)
    iterations += floor(sync_s / (by.load_s + by.compute_s))
    if sync_s % (by.load_s + by.compute_s) > by.load_s:
        iterations += 1
    return max(job.alone_s, iterations * by.alone_s)


@dataclass(slots=True)
class AntMan:
    """Rule of AntMan for equal nodes."""

    nodes: int
    width: int
    load: dict[Gpu, float] = field(init=False)
    owner: dict[Gpu, StagedJob] = field(default_factory=dict)
    """Guaranteed jobs, by GPU."""
    held: dict[StagedJob, list[Gpu]] = field(default_factory=dict)
    """GPUs held by jobs that run or wait for more."""
    waiting: list[StagedJob] = field(default_factory=list)
    running: list[StagedJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.load = {(node, gpu): 0.0 for node in range(self.nodes) for gpu in range(self.width)}

    def decide(self, now_s: float, ended: Sequence[StagedJob], arrived: Sequence[StagedJob]) -> Plan:
        """Give free GPUs to waiting jobs, guaranteed ones first."""
        for job in ended:
            self.running.remove(job)
            for gpu in self.held.pop(job):
                self.load[gpu] -= LOAD[not is_guaranteed(job)]
                if self.owner.get(gpu) is job:
                    del self.owner[gpu]
        self.waiting = sorted([*self.waiting, *arrived], key=_rank)
        begun = [job for job in self.waiting if (self._reserve(job) if is_guaranteed(job) else self._take(job))]
        started = set(begun)
        self.waiting = [job for job in self.waiting if job not in started]
        self.running = sorted([*self.running, *begun], key=_rank)
        runs = set(self.running)
        seats, busy = [], set[Gpu]()
        for job in self.running:
            period_s = job.stages.alone_s
            if not is_guaranteed(job):
                owners = {self.owner[gpu] for gpu in self.held[job] if gpu in self.owner} & runs
                period_s = max([period_s, *(slowed_s(job.stages, owner.stages) for owner in owners)])
            busy.update(self.held[job])
            seats.append(Seat(job, (job,), period_s, job.startup_s, tuple(node for node, _ in self.held[job])))
        return Plan(seats, len(busy))

    def _take(self, job: StagedJob) -> bool:
        """Return the GPUs with the least load, all or none."""
        gpus = sorted((gpu for gpu, load in self.load.items() if load < HIGH), key=lambda gpu: self.load[gpu])
        if len(gpus) < job.gpus:
            return False
        self.held[job] = gpus[: job.gpus]
        for gpu in self.held[job]:
            self.load[gpu] += LOAD[1]
        return True

    def _reserve(self, job: StagedJob) -> bool:
        """Hold the available GPUs. Return True once the whole gang is held."""
        held = self.held.setdefault(job, [])
        free = {
            node: [(node, g) for g in range(self.width) if (node, g) not in self.owner] for node in range(self.nodes)
        }
        whole, rest = divmod(job.gpus - len(held), self.width) if job.gpus > self.width else (0, job.gpus - len(held))
        gpus: list[Gpu] = []
        if whole:
            gpus += [gpu for node in [n for n in free if len(free[n]) == self.width][:whole] for gpu in free[node]]
        elif job.gpus <= self.width and held:
            gpus += free[held[0][0]][:rest]
        else:
            node = next((n for n in free if len(free[n]) >= rest), None)
            gpus += free[max(free, key=lambda n: (len(free[n]), -n)) if node is None else node][:rest]
        for gpu in gpus:
            self.owner[gpu] = job
            self.load[gpu] += LOAD[0] - RUNS
        held += gpus
        if len(held) < job.gpus:
            return False
        for gpu in held:
            self.load[gpu] += RUNS
        return True


def _rank(job: StagedJob) -> tuple[bool, float]:
    return not is_guaranteed(job), job.trace.submit_s
