"""Experiments on sharing: queues that lend and reclaim, and jobs that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from dlaas_server.core.scheduling.ordering import Slices
from dlaas_server.core.scheduling.scheduler import Policy, Scheduler, Share
from dlaas_server.sim.replay.event_loop import Decision, Rule, Run, replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec, Trace, TraceJob

__all__ = ["FairShare", "Turns", "earlier", "fair_share_outcome", "slices_outcome"]

TRACES: Final = Path(__file__).parent.parent / "traces"
GUARANTEED: Final = {"A": 60, "B": 40}
"""Guaranteed devices out of 100, as in the reference."""
RESTART_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShare:
    """Result of two queues; shares of time and of devices are between 0 and 1."""

    honoured: float
    """Share of the time in which a queue has its guarantee, while it wants all of it."""
    reclaim_max_s: float
    """Longest continuous time that a queue wanted its guarantee and did not have it."""
    borrowed: float
    """Share of the devices that one queue leaves idle and the other borrows, while the other wants more."""
    preemptions: int
    jct_avg_s: float


@dataclass(slots=True)
class _Queues:
    """Rule that records devices and demand of each queue after each decision."""

    rule: Rule
    steps: list[tuple[float, dict[str, int], dict[str, int]]] = field(default_factory=list)
    """(time, devices in use, devices wanted by waiting jobs), by queue."""
    _held: dict[str, int] = field(default_factory=dict)
    _wanted: dict[str, int] = field(default_factory=dict)

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Return the rule's decision."""
        decision = self.rule.decide(now_s, ended, arrived)
        for runs, held, wanted in ((ended, -1, 0), (arrived, 0, 1), (decision.stops, -1, 1), (decision.starts, 1, -1)):
            for run in runs:
                queue = run.job.queue
                self._held[queue] = self._held.get(queue, 0) + held * run.gpus
                self._wanted[queue] = self._wanted.get(queue, 0) + wanted * run.gpus
        self.steps.append((now_s, dict(self._held), dict(self._wanted)))
        return decision


def fair_share_outcome(order: str, trace: Trace | None = None, *, preempts: bool = True) -> FairShare:
    """Return the result of two queues on 100 devices, 60 and 40 of them guaranteed, that borrow from each other."""
    jobs = read_trace(TRACES / "fairshare_two_queues.csv") if trace is None else trace
    nodes = tuple(NodeSpec(name=f"n{i:02}", gpus=4) for i in range(25))
    shares = {name: Share(guaranteed=count) for name, count in GUARANTEED.items()}
    policy = Policy(order=order, shares=shares, preempts=preempts)
    watched = _Queues(ByCore(nodes, policy, restart_s=RESTART_S))
    result = replay(jobs, 100, watched, restart_s=RESTART_S)
    wanting_s = having_s = idle_s = lent_s = longest_s = 0.0
    lacking_s = dict.fromkeys(GUARANTEED, 0.0)
    for (at_s, held, wanted), (next_s, _, _) in pairwise(watched.steps):
        for queue, count in GUARANTEED.items():
            has, wants = held.get(queue, 0), held.get(queue, 0) + wanted.get(queue, 0)
            lacks = wants >= count > has
            wanting_s += (next_s - at_s) * (wants >= count)
            having_s += (next_s - at_s) * (wants >= count and not lacks)
            lacking_s[queue] = lacking_s[queue] + next_s - at_s if lacks else 0.0
            longest_s = max(longest_s, lacking_s[queue])
            other = next(name for name in GUARANTEED if name != queue)
            spare = GUARANTEED[other] - held.get(other, 0) - wanted.get(other, 0)
            if spare > 0 and wants - count > 0:
                idle_s += (next_s - at_s) * min(spare, wants - count)
                lent_s += (next_s - at_s) * min(spare, max(has - count, 0))
    return FairShare(
        honoured=having_s / wanting_s if wanting_s else 1.0,
        reclaim_max_s=longest_s,
        borrowed=lent_s / idle_s if idle_s else 1.0,
        preemptions=sum(done.preemptions for done in result.done),
        jct_avg_s=sum(done.jct_s for done in result.done) / len(result.done),
    )


def earlier(trace: Trace, queue: str, by_s: float) -> Trace:
    """Return the trace with the jobs of one queue submitted earlier: while all devices are lent and no job ends."""
    jobs = (replace(job, submit_s=job.submit_s - by_s) if job.queue == queue else job for job in trace.jobs)
    return replace(trace, jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Result of jobs that take turns."""

    last_start_s: float
    """Time at which the last of them runs for the first time."""
    spread_s: float
    """Largest difference of run times while no job has ended."""
    makespan_s: float
    switches: int
    overhead: float
    """Share of device time that goes into stopping and restoring."""


@dataclass(slots=True)
class _Served:
    """Rule that records the differences of run times."""

    rule: Rule
    runs: list[Run] = field(default_factory=list)
    has_ended: bool = False
    spread_s: float = 0.0

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Return the rule's decision."""
        self.runs += arrived
        if not self.has_ended:
            served = [run.executed_at(now_s) for run in self.runs]
            self.spread_s = max(self.spread_s, max(served) - min(served))
        self.has_ended = self.has_ended or bool(ended)
        return self.rule.decide(now_s, ended, arrived)


def slices_outcome(order: str, slice_s: float = 60.0, restart_s: float = 1.0) -> Turns:
    """Return the result of 12 jobs of 20 minutes on 4 GPUs: in turns, or by another order."""
    jobs = tuple(TraceJob(id=f"j{n:02}", submit_s=0, duration_s=1200) for n in range(12))
    core = ByCore((NodeSpec(name="n", gpus=4),), Policy(order=order, ran_factor=1.0), restart_s=restart_s)
    if order == "time-slice":
        core.scheduler = Scheduler(core.scheduler.capacity, core.policy, Slices(slice_s=slice_s))
    watched = _Served(core)
    result = replay(Trace(name="slices", format="slices", jobs=jobs), 4, watched, restart_s=restart_s)
    switches = sum(done.preemptions for done in result.done)
    return Turns(
        last_start_s=max(done.start_s for done in result.done),
        spread_s=watched.spread_s,
        makespan_s=result.end_s,
        switches=switches,
        overhead=switches * restart_s / (4 * result.end_s),
    )


def fair_share(seed: int) -> str:
    """Return the table of two queues that lend and reclaim."""
    lines = [
        "Fair share: 600 jobs of two queues on 100 GPUs, 60 guaranteed to A and 40 to B, idle ones are lent",
        f"{'':<34}{'guarantee held':>15}{'longest lack':>14}{'lent of idle':>14}{'stopped':>9}{'mean JCT':>11}",
    ]
    lines.append(f"{'wanted':<34}{'100 %':>15}{'a checkpoint':>14}{'100 %':>14}")
    as_it_is = read_trace(TRACES / "fairshare_two_queues.csv")
    for when, trace in (("", as_it_is), (", B 15 min earlier", earlier(as_it_is, "B", 900))):
        for name, order, preempts in (
            ("fair", "fair", True),
            ("fair, none stopped", "fair", False),
            ("fifo-skip", "fifo-skip", True),
        ):
            got = fair_share_outcome(order, trace, preempts=preempts)
            lines.append(
                f"{name + when:<38}{got.honoured:>11.1%}{f'{got.reclaim_max_s:,.0f} s':>14}{got.borrowed:>14.1%}"
                f"{got.preemptions:>9}{f'{got.jct_avg_s:,.0f} s':>11}"
            )
    return "\n".join(lines)


def slices(seed: int) -> str:
    """Return the table of jobs that take turns."""
    lines = [
        "Slices: 12 jobs of 20 min on 4 GPUs, a switch costs 1 s",
        f"{'':<34}{'all have begun':>15}{'apart at most':>15}{'switches':>10}{'makespan':>11}{'overhead':>10}",
        f"{'wanted (Gandiva)':<34}{'2 slices':>15}{'1 to 2 slices':>15}{'':>10}{'':>11}{'≤ 2 %':>10}",
    ]
    for name, order, slice_s in (("time-slice, 60 s", "time-slice", 60.0), ("fifo", "fifo", 0.0)):
        got = slices_outcome(order, slice_s)
        lines.append(
            f"{name:<34}{f'{got.last_start_s:,.0f} s':>15}{f'{got.spread_s:,.0f} s':>15}{got.switches:>10}"
            f"{f'{got.makespan_s:,.0f} s':>11}{got.overhead:>10.2%}"
        )
    return "\n".join(lines)
