"""The scheduler in virtual time: against Tiresias, PACK/SPREAD, Tetris; and what a decision costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.experiments.fragmentation import FULL, SEEDS, filled_by, openb, published
from dlaas_server.sim.experiments.registry import TRACES, gang_outcome, pack_spread_nodes, tetris_outcome
from dlaas_server.sim.muri.experiment import NAMES, muri_cases
from dlaas_server.sim.replay.event_loop import Decision, Replay, Run, replay
from dlaas_server.sim.replay.gc_pause import collector_at_rest
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.replay.report import figures
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec
from tests.bench.decisions import cost, memory_mb, planned_s
from tests.bench.measuring import Bench
from tests.bench.table import Figure, Line, figure, ratio
from tests.sim.fidelity import PER_JOB, differing

FILES = Path(__file__).parents[2] / "traces"
LAS = {  # Tiresias' own simulator, dlas-gpu: mean JCT, p99 JCT, preemptions
    "philly_ee9e8c": (248_295.2, 3_007_185.0, 1640),
    "philly_103959": (95_298.0, 861_565.0, 1408),
    "philly_0e4a51": (376_387.9, 3_080_219.0, 1674),
}
GPUS = {"philly_ee9e8c": 128, "philly_103959": 24, "philly_0e4a51": 48}
RESTART_S = 60


def measure(bench: Bench) -> list[Line]:
    """All in one process; nothing is started."""
    lines = [line for name in LAS for line in _against_tiresias(name)]
    return [
        _fidelity(),
        *lines,
        *_pack_spread(),
        *_tetris(),
        *_fragmentation(),
        *_muri(),
        _gang(),
        *_speed(),
        *_decisions("shortest"),
        *_decisions("fifo-skip"),
        _memory(),
        *(_plan(queued, alike=alike) for alike in (True, False) for queued in (1_000, 10_000)),
    ]


def _pool(gpus: int, each: int = 8) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(name=f"n{i:05}", gpus=each) for i in range(gpus // each))


def _replayed(name: str, gpus: int, order: str, error: float, seed: int) -> Replay:
    rule = ByCore(_pool(gpus), Policy(order=order), restart_s=RESTART_S, estimate_error=error, seed=seed)
    with collector_at_rest():  # as the command does
        return replay(read_trace(FILES / f"{name}.csv"), gpus, rule, restart_s=RESTART_S)


def _once(value: float, unit: str) -> Figure:
    return Figure(value, value, value, 1, unit)


def _fidelity() -> Line:
    """Others' rules, job by job: the start and the end that their own simulator gave."""
    wrong, jobs = sum(len(differing(pair)) for pair in PER_JOB), sum(map(len, PER_JOB.values()))
    return Line(
        what=f"replay fidelity, {len(PER_JOB)} runs: jobs with another start or end",
        bar="0",
        measured=_once(wrong, f"of {jobs:,}"),
        beside="Tiresias' own simulator",
    )


def _against_tiresias(name: str) -> list[Line]:
    found = [figures(_replayed(name, GPUS[name], "shortest", 1.0, seed)) for seed in range(5)]
    rows = (
        ("mean JCT", "≤ 0.80 ×", [one.jct_avg_s for one in found], LAS[name][0], "s"),
        ("p99 JCT", "≤ 1.1 ×", [one.jct_p99_s for one in found], LAS[name][1], "s"),
        ("preemptions", "≤ 25 %", [float(one.preemptions) for one in found], LAS[name][2], ""),
    )
    lines = []
    for what, bar, values, theirs, unit in rows:
        mean = statistics.mean(values)
        lines.append(
            Line(
                what=f"{name}, shortest, σ = 1, 5 seeds: {what}",
                bar=bar,
                measured=Figure(mean, min(values), max(values), 5, unit),
                beside="Tiresias 2D-LAS",
                beside_figure=_once(theirs, unit),
                times=f"{mean / theirs:.3f} ×",
            )
        )
    return lines


def _pack_spread() -> list[Line]:
    trace = read_trace(TRACES / "ffdl_pack_spread_load0.9.csv")
    result = replay(trace, 400, ByCore(pack_spread_nodes(), restart_s=RESTART_S), restart_s=RESTART_S)
    largest = max(done.job.gpus for done in result.done)
    waits = [done.start_s - done.job.submit_s for done in result.done if done.job.gpus == largest]
    return [
        Line(
            what="PACK/SPREAD, load 0.9, default policy: mean queue",
            bar="≤ 4.6",
            measured=_once(figures(result).queued_avg, "jobs"),
            beside="PACK FIFO",
            beside_figure=_once(14.2, "jobs"),
        ),
        Line(
            what=f"… the largest ({largest} GPUs) start after, mean and most",
            bar="none starves",
            measured=Figure(statistics.mean(waits), min(waits), max(waits), len(waits), "s"),
        ),
    ]


def _tetris() -> list[Line]:
    makespan_s, jct_s = tetris_outcome("srtf", Layout.TETRIS)
    return [
        Line(
            what="Tetris, srtf: makespan",
            bar="≤ 4270 s",
            measured=_once(makespan_s, "s"),
            beside="fifo-skip",
            beside_figure=_once(4305, "s"),
        ),
        Line(
            what="Tetris, srtf: mean JCT of jobs",
            bar="≤ 1330 s",
            measured=_once(jct_s, "s"),
            beside="fifo-skip",
            beside_figure=_once(1421, "s"),
        ),
    ]


def _fragmentation() -> list[Line]:
    lines = []
    for workload in ("default", "multigpu20"):
        trace, nodes = openb(workload)
        for who, theirs, bar in (("core:fgd", "06-FGD", "≥ 95.2 %"), ("core:pack", "05-BestFit", "≥ 92.9 %")):
            runs = [filled_by(trace, nodes, who, seed) for seed in range(SEEDS)]
            full = [one.allocated for run in runs for one in run if one.arrived == FULL]
            lines.append(
                Line(
                    what=f"openb {workload}, {who.removeprefix('core:')}: GPUs allocated, all asked for",
                    bar=bar if workload == "default" else "",
                    measured=Figure(statistics.mean(full), min(full), max(full), SEEDS, "%"),
                    beside=f"({theirs[3:]}, published)",
                    beside_figure=_once(published(workload, theirs)[FULL], "%"),
                )
            )
    return lines


def _muri() -> list[Line]:
    """Trace 3 alone: trace 1 takes a minute per rule with groups."""
    lines = []
    for case in muri_cases("trace3"):
        if case.trace == "trace3":
            ours, theirs = _once(case.replayed()[0], "s"), _once(case.published[0], "s")
            lines.append(
                Line(
                    what=f"Muri's trace 3, 8 x 8 GPUs, {NAMES[case.policy]}: mean JCT",
                    bar="as published",
                    measured=ours,
                    beside="(its authors)",
                    beside_figure=theirs,
                    times=f"{ours.median / theirs.median:.4f} ×",
                )
            )
    return lines


def _gang() -> Line:
    found = gang_outcome(seed=0)
    beside = f"learner by learner: {found.deadlocks / found.orders:.0%} of {found.orders:,} orders deadlock"
    return Line(what="gangs held in part", bar="0", measured=_once(found.partial_holds, ""), beside=beside)


class _Everybody:
    """Starts all at once: what reading a trace and walking through it takes, on this machine."""

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        return Decision(arrived)


def _speed(runs: int = 5) -> list[Line]:
    lines = []
    for order, bar in (("fifo-skip", "≥ 50,000 jobs/s"), ("shortest", "≥ 3,000 jobs/s")):
        ours, bares = [], []
        for _ in range(runs):  # in turn: other tenants of a machine slow both
            begin = time.process_time()
            _replayed("philly_6214e9", 128, order, 0.0, 0)
            middle = time.process_time()
            with collector_at_rest():
                replay(read_trace(FILES / "philly_6214e9.csv"), 1_000_000, _Everybody())
            ours.append(41_226 / (middle - begin))
            bares.append(41_226 / (time.process_time() - middle))
        rate, bare = figure(ours, "jobs/s"), figure(bares, "jobs/s")
        lines.append(
            Line(
                what=f"simulator, 41,226 jobs, {order}",
                bar=bar,
                measured=rate,
                beside="(Tiresias 22–600, Alibaba's 180–390); read and walked through only",
                beside_figure=bare,
                times=ratio(rate, bare),
            )
        )
    return lines


def _decisions(order: str, events: int = 10_000, queued: int = 100_000) -> list[Line]:
    """Alternate ends and submissions, on 10,000 GPUs with 100,000 waiting."""
    found = cost(order, 10_000, queued, events)
    what = f"decision, {order}, 10,000 GPUs, {found.waiting:,} queued"
    anchor = _once(810, "/s")
    rate = _once(found.per_s, "/s")
    return [
        Line(what=f"{what}: p99", bar="< 1 ms", measured=_once(1000 * found.at(0.99), "ms")),
        Line(
            what=f"{what}: events per second",
            bar="> 5,000/s",
            measured=rate,
            beside="(kube-scheduler, with its API)",
            beside_figure=anchor,
            times=ratio(rate, anchor),
        ),
        Line(
            what=f"{what}: full pass as 1,000 GPUs come back ({found.grown_starts} start)",
            bar="≤ 50 ms",
            measured=_once(1000 * found.grown_s, "ms"),
            beside="first pass, empty pool",
            beside_figure=_once(1000 * found.first_s, "ms"),
        ),
    ]


def _memory() -> Line:
    return Line(what="100,000 queued jobs in the scheduler", bar="< 500 MB", measured=_once(memory_mb(100_000), "MB"))


def _plan(queued: int, *, alike: bool) -> Line:
    some, whole = (figure([1000 * one for one in took_s], "ms") for took_s in planned_s(queued, alike=alike))
    return Line(
        what=f"a plan of the engine, 64 GPUs, {queued:,} waiting, {'alike' if alike else 'all different'}",
        bar="",
        measured=some,
        beside="looking at all that wait",
        beside_figure=whole,
        times=f"{some.median / whole.median:.3f} ×",
    )
