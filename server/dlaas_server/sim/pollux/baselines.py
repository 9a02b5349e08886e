"""Other schedulers' rules on Pollux' workloads, as in the simulator that comes with the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from dlaas_server.sim.pollux.jobs import Allocation, PolluxJob
from dlaas_server.sim.trace.trace import Pollux, TraceJob

__all__ = ["Optimus", "Tiresias"]

DEMOTED_GPU_S: Final = 16 * 3600


def _roomiest(free: dict[int, int], gpus: int) -> Allocation:
    """Return GPUs from the node with the most free ones, then from the next."""
    there: list[int] = []
    while len(there) < gpus:
        node = max(free, key=lambda n: (free[n], -n))
        take = min(free[node], gpus - len(there))
        there += [node] * take
        free[node] -= take
    return tuple(there)


def _free(nodes: int, gpus: int, held: Mapping[int, Allocation]) -> dict[int, int]:
    free = dict.fromkeys(range(nodes), gpus)
    for there in held.values():
        for node in there:
            free[node] -= 1
    return free


def _tuned(job: TraceJob) -> int:
    assert isinstance(job.work, Pollux), f"{job.id} is no job of Pollux' workloads"
    return job.work.batch_size_tuned


@dataclass(slots=True)
class Tiresias:
    """Rule of least attained service in two queues, with tuned numbers of GPUs and batches."""

    nodes: int
    gpus: int
    queues: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    ran_s: dict[int, float] = field(default_factory=dict)
    checked_s: float = 0.0

    def batch(self, job: TraceJob) -> int | None:
        """Return the tuned batch."""
        return _tuned(job)

    def allocate(
        self, now_s: float, jobs: Sequence[PolluxJob], held: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """First queue first; who does not fit is passed over."""
        asked = {job.index: job.trace.gpus for job in jobs}
        first, second = ([index for index in queue if index in asked] for queue in self.queues)
        first += [index for index in asked if index not in self.ran_s]
        for index in asked:
            self.ran_s.setdefault(index, 0.0)
            if index in held:
                self.ran_s[index] += now_s - self.checked_s
                if index in first and self.ran_s[index] * asked[index] >= DEMOTED_GPU_S:
                    first.remove(index)
                    second.append(index)
        self.checked_s, self.queues = now_s, (first, second)
        left, running = self.nodes * self.gpus, []
        for index in (*first, *second):
            if asked[index] <= left:
                left -= asked[index]
                running.append(index)
        kept = {index: held[index] for index in running if index in held}
        free = _free(self.nodes, self.gpus, kept)
        return {index: kept.get(index) or _roomiest(free, asked[index]) for index in running}


@dataclass(slots=True)
class Optimus:
    """One GPU each, then one at a time to whom it saves the most seconds; remaining work and speed are known."""

    nodes: int
    gpus: int

    def batch(self, job: TraceJob) -> int | None:
        """Return the tuned batch."""
        return _tuned(job)

    def allocate(
        self, now_s: float, jobs: Sequence[PolluxJob], held: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """Choose sizes first. Jobs that keep their size keep their placement; the others are placed by rising size."""
        left = self.nodes * self.gpus
        sizes: dict[int, int] = {}
        gains: dict[int, float] = {}
        by_index = {job.index: job for job in jobs}
        for job in jobs:
            sizes[job.index] = min(1, left)
            left -= sizes[job.index]
            gains[job.index] = self._gain(job, 1) if sizes[job.index] and left else 0.0
        while left and max(gains.values()) > 0:
            index = max(gains, key=lambda i: gains[i])
            sizes[index] += 1
            left -= 1
            gains[index] = self._gain(by_index[index], sizes[index]) if left else 0.0
        kept = {index: there for index, there in held.items() if len(there) == sizes[index]}
        free = _free(self.nodes, self.gpus, kept)
        placed = dict(kept)
        for index in sorted(sizes, key=lambda i: sizes[i]):
            if sizes[index] and index not in kept:
                placed[index] = _roomiest(free, sizes[index])
        return placed

    def _gain(self, job: PolluxJob, gpus: int) -> float:
        """Return the seconds that one more GPU saves."""
        profile, batch = job.profile, _tuned(job.trace)
        most = 1 if profile.name == "ncf" else batch // profile.local_least
        if gpus + 1 > most:
            return 0.0
        last = profile.epochs - 1
        left = 1.0 if last <= job.epoch else profile.iterations(batch, last) - profile.iterations(batch, job.epoch)
        return (self._step_s(job, gpus) - self._step_s(job, gpus + 1)) * left

    def _step_s(self, job: PolluxJob, gpus: int) -> float:
        profile, batch = job.profile, _tuned(job.trace)
        placement = (4,) * (gpus // 4) + ((gpus % 4,) if gpus % 4 else ())
        per_gpu = ceil(batch / gpus - 1e-8)
        passes = ceil(per_gpu / profile.local_most - 1e-8) - 1
        if gpus == 1:
            passes = max(1, passes)
        local = min(ceil(per_gpu / (passes + 1) - 1e-8), int(profile.batch_most / (gpus * (passes + 1))))
        step_s, sync_s = profile.times(placement, local)
        return step_s + (step_s - sync_s) * passes
