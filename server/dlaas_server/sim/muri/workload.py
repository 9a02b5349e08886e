"""Muri's workloads from end to end: jobs with stages under a rule by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from dlaas_server.sim.muri.antman import AntMan
from dlaas_server.sim.muri.baselines import Attained, FirstFit, Shortest
from dlaas_server.sim.muri.grouping import MOST, grouped, kind_of, period_s
from dlaas_server.sim.muri.jobs import Plan, Seat, StagedJob, StagedPool, StagedRule, staged
from dlaas_server.sim.replay.event_loop import Done, Replay, Unrunnable
from dlaas_server.sim.trace.trace import NodeSpec, Trace

__all__ = ["RULES", "Interleaved", "play"]


@dataclass(slots=True)
class Interleaved:
    """Rule of Muri: the first jobs in order, up to four for each place in the pool, in groups that take turns."""

    nodes: int
    width: int
    knows_lengths: bool
    """True: Muri-S, shortest GPU time first; False: Muri-L, least attained GPU time first."""
    queue: list[StagedJob] = field(default_factory=list)

    def decide(self, now_s: float, ended: Sequence[StagedJob], arrived: Sequence[StagedJob]) -> Plan:
        """Choose, group, place: the largest gangs first."""
        gone = set(ended)
        self.queue = sorted([*(job for job in self.queue if job not in gone), *arrived], key=self._key)
        groups = {job: group for group in grouped(self._chosen(), self.nodes * self.width) for job in group}
        self.queue.sort(key=lambda job: -job.gpus)
        fit, seats = FirstFit(self.nodes, self.width), list[Seat]()
        there: dict[StagedJob, tuple[int, ...] | None] = {}
        for job in self.queue:
            group = groups.get(job)
            if group is None:
                continue
            if job not in there:
                there |= dict.fromkeys(group, fit.take(job.gpus))
            found = there[job]
            if found is not None:
                startup_s = sum(one.startup_s for one in group)
                seats.append(Seat(job, group, period_s(kind_of(group)), startup_s, found))
        return Plan(seats, self.nodes * self.width - sum(fit.free))

    def _key(self, job: StagedJob) -> float:
        if not self.knows_lengths:
            return job.executed_s * job.gpus
        if job.start_s is None:
            assert job.trace.duration_s is not None
            return job.trace.duration_s * job.gpus
        return job.left_s * job.gpus

    def _chosen(self) -> dict[int, list[StagedJob]]:
        """Return size -> jobs: each place that a gang finds in the empty pool stands for the next four of its size."""
        fit = FirstFit(self.nodes, self.width)
        lines: dict[int, list[StagedJob]] = {}
        for job in self.queue:
            lines.setdefault(job.gpus, []).append(job)
        counts = dict.fromkeys(lines, 0)
        places: dict[int, int] = dict.fromkeys(lines, 0)
        for job in self.queue:
            place = places[job.gpus]
            places[job.gpus] += 1
            if place >= counts[job.gpus] and fit.take(job.gpus) is not None:
                counts[job.gpus] = min(place + MOST, len(lines[job.gpus]))
        return {size: line[: counts[size]] for size, line in lines.items()}


def _remaining_s(job: StagedJob) -> float:
    return job.left_s


def _remaining_gpu_s(job: StagedJob) -> float:
    return job.left_s * job.gpus


RULES: Final[Mapping[str, Callable[[int, int], StagedRule]]] = {
    "muri:srtf": partial(Shortest, key=_remaining_s),
    "muri:srsf": partial(Shortest, key=_remaining_gpu_s),
    "muri:las": Attained,
    "muri:antman": AntMan,
    "muri:muri-s": partial(Interleaved, knows_lengths=True),
    "muri:muri-l": partial(Interleaved, knows_lengths=False),
}
"""Name -> rule for a number of nodes with a number of GPUs each."""


def play(trace: Trace, nodes: Sequence[NodeSpec], name: str) -> Replay:
    """Replay a trace with stages. Raises Unrunnable if it contains none, or the pool's nodes differ."""
    widths = {node.gpus for node in nodes}
    if len(widths) != 1 or max(widths) < 1:
        raise Unrunnable("Muri's rules hold for nodes with the same number of GPUs, as in --pool 8x8")
    jobs = [staged(job) for job in trace.jobs]
    pool = StagedPool(len(nodes) * max(widths), jobs, RULES[name](len(nodes), max(widths)))
    pool.play()
    done = []
    for job in jobs:
        assert job.start_s is not None
        done.append(Done(job=job.trace, start_s=job.start_s, end_s=job.end_s, preemptions=job.stops))
    spans = [(b[0] - a[0], a[1], a[2]) for a, b in zip(pool.timeline, pool.timeline[1:], strict=False)]
    return Replay(
        trace=trace,
        gpus=pool.gpus,
        done=tuple(done),
        events=len(pool.timeline),
        begin_s=trace.jobs[0].submit_s,
        end_s=max(one.end_s for one in done),
        busy_gpu_s=sum(span_s * busy for span_s, busy, _ in spans),
        queued_s=sum(span_s * waiting for span_s, _, waiting in spans),
        queued_max=max(waiting for _, _, waiting in pool.timeline),
        blocked_s=0.0,
        blocked_free_gpu_s=0.0,
        timeline=tuple(pool.timeline),
    )
