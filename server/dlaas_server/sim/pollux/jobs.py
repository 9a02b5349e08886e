"""Pollux' workloads in virtual time: jobs that run by measured profiles under some rule, in steps of a minute.

A job is seen at the first step at or after its submission; any change of where it runs costs 30 s, in which it holds
its GPUs. Rules of the simulator that comes with the paper (see `traces/README.md`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from typing import Final, Protocol

from dlaas_server.sim.pollux.goodput import Limits, Model, fit
from dlaas_server.sim.pollux.profiles import Profile
from dlaas_server.sim.trace.trace import TraceJob

__all__ = ["CHANGE_S", "STEP_S", "Allocation", "Cluster", "PolluxJob", "PolluxRule"]

STEP_S: Final = 60
CHANGE_S: Final = 30
Allocation = tuple[int, ...]
"""Node of each GPU; GPUs of one node are adjacent."""


@dataclass(slots=True, eq=False)
class PolluxJob:
    """Training in the simulation. `batch` None: it chooses its own batch, for the best goodput."""

    index: int
    trace: TraceJob
    profile: Profile
    batch: int | None
    placement: tuple[int, ...] = ()
    """GPUs on each of its nodes."""
    local: int = 0
    passes: int = 0
    """Passes without synchronising before each step."""
    delay_s: float = 0.0
    progress: float = 0.0
    epoch: int = 0
    start_s: float | None = None
    end_s: float | None = None
    held_s: float = 0.0
    held_gpu_s: float = 0.0
    restarts: int = 0
    stops: int = 0
    """Number of times that it lost all its GPUs."""
    measured: dict[tuple[int, int, int], tuple[float, float]] = field(default_factory=dict)
    noise: tuple[float, float] | None = None
    model: Model | None = None

    @property
    def gpus(self) -> int:
        """Return the number of GPUs that it holds."""
        return sum(self.placement)

    @property
    def limits(self) -> Limits:
        """Return the limits of its batch."""
        profile = self.profile
        return Limits(profile.batch_least, profile.batch_most, profile.local_least, profile.local_most)

    @property
    def left(self) -> float:
        """Return the remaining progress of its declared epochs."""
        return self.profile.progress(self.profile.epochs) - self.progress

    def move(self, placement: tuple[int, ...]) -> None:
        """Run on these GPUs from now on; wait if there are none."""
        if placement:
            self.restarts += self.placement != () or self.start_s is not None
            self.placement = placement
            self.delay_s = CHANGE_S
            self._choose_batch()
        else:
            self.stops += 1
            self.placement, self.local = (), 0

    def _choose_batch(self) -> None:
        profile, gpus = self.profile, self.gpus
        batch = self.batch
        if batch is None and (self.model is None or self.noise is None):
            batch = max(profile.batch_least, profile.local_least * gpus)
        if batch is None:
            assert self.model is not None
            assert self.noise is not None
            _, local, passes = self.model.best([len(self.placement)], [gpus], self.noise, self.limits)
            self.local, self.passes = int(local[0]), int(passes[0])
        else:
            per_gpu = ceil(batch / gpus - 1e-8)
            self.passes = ceil(per_gpu / profile.local_most - 1e-8) - 1
            if gpus == 1 and batch > profile.batch_least:
                self.passes = max(1, self.passes)
            self.local = ceil(per_gpu / (self.passes + 1) - 1e-8)
        self.local = min(self.local, int(profile.batch_most / (gpus * (self.passes + 1))))

    def run(self, now_s: float, seconds: float) -> None:
        """Advance the time."""
        if not self.placement:
            return
        if self.start_s is None:
            self.start_s = now_s
        begin_s, waits_s = now_s, min(self.delay_s, seconds)
        self.delay_s -= waits_s
        now_s, seconds = now_s + waits_s, seconds - waits_s
        while seconds > 0 and self.end_s is None:
            goodput = self._goodput()
            ahead = self.profile.progress(self.epoch + 1)
            if self.progress + goodput * seconds < ahead:
                self.progress += goodput * seconds
                now_s, seconds = now_s + seconds, 0
            else:
                took_s = round((ahead - self.progress) / goodput)
                self.epoch, self.progress = self.epoch + 1, ahead
                now_s, seconds = now_s + took_s, seconds - took_s
                if self.epoch >= self.profile.epochs:
                    self.end_s = now_s
            self._choose_batch()
        self.held_s += now_s - begin_s
        self.held_gpu_s += (now_s - begin_s) * self.gpus

    def _goodput(self) -> float:
        """Return its true progress per second on its GPUs, and record what it observes."""
        profile, gpus = self.profile, self.gpus
        batch = gpus * self.local * (self.passes + 1)
        step_s, sync_s = profile.times(self.placement, self.local)
        square, variance = self.noise = profile.noise(batch, self.epoch)
        gain = (variance + square) / (variance * profile.batch_least / batch + square)
        seen = (len(self.placement), gpus, self.local)
        if self.batch is None and seen not in self.measured:
            self.measured[seen] = (step_s, sync_s)
            self.model = fit(self.measured)
        return gain / (step_s + (step_s - sync_s) * self.passes)


class PolluxRule(Protocol):
    """Rule that assigns GPUs to jobs."""

    def batch(self, job: TraceJob) -> int | None:
        """Return the fixed batch of a job; None if it chooses its own."""
        ...

    def allocate(
        self, now_s: float, jobs: Sequence[PolluxJob], held: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """Return the GPUs of each unfinished job, by index; missing jobs wait. `held`: present GPUs."""
        ...


@dataclass(slots=True)
class Cluster:
    """Simulation of a workload on equal nodes, under a rule."""

    nodes: int
    gpus: int
    jobs: Sequence[PolluxJob]
    rule: PolluxRule
    now_s: float = 0.0
    held: dict[int, Allocation] = field(default_factory=dict)
    timeline: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, GPUs in use, jobs waiting) after each step."""
    decided_s: list[float] = field(default_factory=list)
    """CPU seconds of each decision."""
    _next: int = 0
    _active: list[PolluxJob] = field(default_factory=list)

    def play(self) -> None:
        """Run until all jobs have ended."""
        while self._active or self._next < len(self.jobs):
            self._step()

    def _step(self) -> None:
        for job in self._active:
            job.run(self.now_s, STEP_S)
        self.now_s += STEP_S
        while self._next < len(self.jobs) and self.jobs[self._next].trace.submit_s <= self.now_s:
            self._active.append(self.jobs[self._next])
            self._next += 1
        self._active = [job for job in self._active if job.end_s is None]
        self.held = {job.index: self.held[job.index] for job in self._active if job.index in self.held}
        if self._active:
            begin_s = time.thread_time()
            wanted = self.rule.allocate(self.now_s, self._active, self.held)
            self.decided_s.append(time.thread_time() - begin_s)
            self._check(wanted)
            for job in self._active:
                there = wanted.get(job.index, ())
                if there != self.held.get(job.index, ()):
                    job.move(tuple(len(list(same)) for _, same in groupby(there)))
            self.held = {index: there for index, there in wanted.items() if there}
        used = sum(map(len, self.held.values()))
        self.timeline.append((self.now_s, used, len(self._active) - len(self.held)))

    def _check(self, wanted: Mapping[int, Allocation]) -> None:
        used: dict[int, int] = {}
        for there in wanted.values():
            for node in there:
                used[node] = used.get(node, 0) + 1
        assert all(count <= self.gpus for count in used.values()), f"a node was given twice: {used}"
