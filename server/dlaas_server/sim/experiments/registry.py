"""Experiments with a known outcome, one command each: our results beside the reference."""

from __future__ import annotations

import csv
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.autoscaling.paper import autoscaling
from dlaas_server.sim.experiments.fairness import fairness
from dlaas_server.sim.experiments.fragmentation import fragmentation
from dlaas_server.sim.experiments.peers import pollux, tiresias
from dlaas_server.sim.experiments.queues import fair_share, slices
from dlaas_server.sim.muri.experiment import muri
from dlaas_server.sim.replay.event_loop import Replay, Rule, replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.replay.report import figures
from dlaas_server.sim.rules.packspread import PackSpread
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec, Task, Trace
from jupyter_dlaas.wire.protocol import Placement

__all__ = [
    "EXPERIMENTS",
    "GangOutcome",
    "PackSpreadCase",
    "gang_outcome",
    "is_stuck",
    "pack_spread_cases",
    "tetris_outcome",
]

TRACES: Final = Path(__file__).parent.parent / "traces"


Shown = tuple[float, int, int, int, float, float]
"""Mean and largest queue (jobs), mean wait (s), makespan (s), utilisation, share of time blocked by fragmentation."""


@dataclass(frozen=True, slots=True)
class PackSpreadCase:
    """Line of the reference."""

    load: str
    is_pack: bool
    skips: bool
    reference: Shown

    def by_rules(self) -> Shown:
        """Return our result under the reference's own rules, which must be the same."""
        return self._replayed(PackSpread(pack_spread_nodes(), self.is_pack, self.skips))

    def by_core(self) -> Shown:
        """Return our result with placement by the production core."""
        placement = Placement.PACK if self.is_pack else Placement.SPREAD
        return self._replayed(
            ByCore(pack_spread_nodes(), Policy(order="fifo-skip" if self.skips else "fifo"), placement)
        )

    def _replayed(self, rule: Rule) -> Shown:
        return _shown(replay(read_trace(TRACES / f"ffdl_pack_spread_load{self.load}.csv"), 400, rule))


def pack_spread_nodes() -> tuple[NodeSpec, ...]:
    """Return 100 nodes x (4 GPUs, 32 CPUs, 128 GB)."""
    return tuple(NodeSpec(name=f"n{i:03}", gpus=4, cpus=32, mem_gb=128) for i in range(100))


def pack_spread_cases() -> list[PackSpreadCase]:
    """Compare PACK with SPREAD: 4,000 jobs on 100 x 4 GPUs, at each load, with and without backfill."""
    with (TRACES / "ffdl_pack_spread_baseline.csv").open(newline="", encoding="utf-8") as file:
        return [
            PackSpreadCase(
                row["load"],
                row["placement"] == "pack",
                row["queue"] == "backfill-skip",
                (
                    float(row["avg_queued_jobs"]),
                    int(row["max_queued_jobs"]),
                    int(row["wait_avg_s"]),
                    int(row["makespan_s"]),
                    float(row["gpu_utilization"]),
                    float(row["time_fraction_blocked_by_fragmentation"]),
                ),
            )
            for row in csv.DictReader(file)
        ]


def _shown(result: Replay) -> Shown:
    """Return the value rounded as in the reference."""
    found = figures(result)
    return (
        round(found.queued_avg, 2),
        found.queued_max,
        round(found.start_avg_s),
        round(found.makespan_s),
        round(found.utilisation, 4),
        round(found.fragmentation, 3),
    )


def pack_spread(seed: int) -> str:
    """Return the table of PACK against SPREAD."""
    lines = [
        "PACK against SPREAD: 4,000 jobs, 100 nodes x 4 GPUs. Mean (largest) queue, mean wait, utilisation,",
        "share of time blocked by fragmentation. `core`: placed by the production core.",
        f"{'load':<6}{'placement':<11}{'order':<7}{'':<11}{'queue':>14}{'wait':>10}{'used':>9}{'blocked':>9}",
    ]
    for case in pack_spread_cases():
        placement, order = "pack" if case.is_pack else "spread", "skip" if case.skips else "fifo"
        label = f"{case.load:<6}{placement:<11}{order:<7}"
        for name, shown in (("reference", case.reference), ("replayed", case.by_rules()), ("core", case.by_core())):
            queue = f"{shown[0]} ({shown[1]})"
            lines.append(f"{label:<24}{name:<11}{queue:>14}{shown[2]:>8} s{shown[4]:>9.1%}{shown[5]:>9.1%}")
            label = ""
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class GangOutcome:
    """Gangs: end of all jobs and largest numbers at once. Learner by learner: number of orders that deadlock."""

    makespan_s: float
    running_max: int
    waiting_max: int
    partial_holds: int
    orders: int
    deadlocks: int


def gang_outcome(seed: int, orders: int = 10_000) -> GangOutcome:
    """Place 4 jobs x 4 learners on 8 GPUs: as gangs by the core, and learner by learner in random orders."""
    trace, chance = read_trace(TRACES / "gang_8gpu_4x4.csv"), random.Random(seed)  # noqa: S311  # no secret
    nodes = tuple(NodeSpec(name=f"n{i}", gpus=4) for i in range(2))
    result = replay(trace, 8, ByCore(nodes))
    per_gang = trace.jobs[0].gpus
    return GangOutcome(
        makespan_s=result.end_s,
        running_max=max(busy for _, busy, _ in result.timeline) // per_gang,
        waiting_max=result.queued_max,
        partial_holds=sum(busy % per_gang != 0 for _, busy, _ in result.timeline),
        orders=orders,
        deadlocks=sum(is_stuck(trace, 8, chance) for _ in range(orders)),
    )


def is_stuck(trace: Trace, gpus: int, chance: random.Random) -> bool:
    """Return whether learners that are placed one at a time, in a random order, end in a deadlock.

    Each takes one GPU as soon as one is free and keeps it until its whole job has run.
    """
    waiting = [job.id for job in trace.jobs for _ in range(job.learners)]
    chance.shuffle(waiting)
    needs, held = {job.id: job.learners for job in trace.jobs}, Counter[str]()
    while waiting:
        free = gpus - held.total()
        held.update(waiting[:free])
        waiting = waiting[free:]
        whole = [job for job in held if held[job] == needs[job]]
        if not whole and waiting:
            return True
        for job in whole:
            del held[job]
    return False


def gang(seed: int) -> str:
    """Return the table of gangs against learner-by-learner placement."""
    found = gang_outcome(seed)
    stuck = found.deadlocks / found.orders
    return "\n".join(
        [
            "Gangs: 4 jobs x 4 learners on 8 GPUs, 60 s each",
            f"{'':<34}{'reference':>10}{'core':>10}",
            f"{'jobs that run at once':<34}{2:>10}{found.running_max:>10}",
            f"{'jobs that wait meanwhile':<34}{2:>10}{found.waiting_max:>10}",
            f"{'times a gang is held in part':<34}{0:>10}{found.partial_holds:>10}",
            f"{'all end after':<34}{'120 s':>10}{f'{found.makespan_s:g} s':>10}",
            f"Without gangs, learner by learner in {found.orders:,} random orders (seed {seed}): {stuck:.1%} deadlock",
        ]
    )


def tetris_nodes() -> tuple[NodeSpec, ...]:
    """Return 20 nodes x (16 CPUs, 64 GB, 400 MB/s of disk, 1000 Mbit/s of network)."""
    return tuple(NodeSpec(name=f"n{i:02}", gpus=0, cpus=16, mem_gb=64, disk_mbps=400, net_mbps=1000) for i in range(20))


def tetris_outcome(order: str, layout: Layout) -> tuple[float, float]:
    """Return makespan and mean completion time of jobs, in seconds; a job is complete when its last task is."""
    policy = Policy(order=order, preempts=False)
    result = replay(read_trace(TRACES / "tetris_40x30.csv"), 0, ByCore(tetris_nodes(), policy, layout))
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    for done in result.done:
        assert isinstance(done.job.work, Task)
        job = done.job.work.job
        begins[job] = min(begins.get(job, done.job.submit_s), done.job.submit_s)
        ends[job] = max(ends.get(job, 0.0), done.end_s)
    return result.end_s, sum(ends[job] - begins[job] for job in ends) / len(ends)


def tetris(seed: int) -> str:
    """Return the table of Tetris against FIFO."""
    lines = [
        "Tetris: 40 jobs x 30 tasks, 20 nodes with CPUs, memory, disk and network; no preemption",
        f"{'':<52}{'makespan':>10}{'mean JCT':>10}",
    ]
    with (TRACES / "tetris_baseline.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            lines.append(f"{'reference: ' + row['policy']:<52.52}{row['makespan_s']:>8} s{row['avg_jct_s']:>8} s")
    for order, layout in (("fifo-skip", Layout.TETRIS), ("srtf", Layout.PACK), ("srtf", Layout.TETRIS)):
        makespan_s, jct_s = tetris_outcome(order, layout)
        lines.append(f"{f'core: {order}, {layout}':<52}{makespan_s:>8.0f} s{jct_s:>8.0f} s")
    return "\n".join(lines)


EXPERIMENTS: Final = {
    "pack-spread": pack_spread,
    "gang": gang,
    "tetris": tetris,
    "fragmentation": fragmentation,
    "fairness": fairness,
    "fair-share": fair_share,
    "slices": slices,
    "autoscaling": autoscaling,
    "muri": muri,
    "tiresias": tiresias,
    "pollux": pollux,
}
"""Name on the command line -> function that prints it, given a seed."""
