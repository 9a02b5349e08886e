"""Comparison of other schedulers with the results of their own simulators, and with our core on the same jobs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.replay.event_loop import Unrunnable, replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.replay.report import figures
from dlaas_server.sim.rules.names import COUNTING
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec

__all__ = ["pollux", "tiresias"]

TRACES: Final = Path(__file__).parent.parent / "traces"
PHILLY: Final = "philly_ee9e8c"
RESTART_S: Final = 60
WORKLOADS: Final = range(1, 9)


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (TRACES / name).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def tiresias(seed: int) -> str:
    """Return the table of Tiresias' rules on a virtual cluster of Philly; ours pay for restarts and guess lengths."""
    trace = read_trace(TRACES / f"{PHILLY}.csv")
    rows = [row for row in _rows("tiresias_measured.csv") if row["trace"] == PHILLY]
    gpus = int(rows[0]["gpus"])
    lines = [
        f"Tiresias on Philly: {len(trace.jobs):,} jobs on {gpus} GPUs. Theirs: only the number of free GPUs counts.",
        f"Core: nodes with 8 GPUs, a restart costs {RESTART_S} s, lengths are guessed (σ = 1, seed {seed})",
        f"{'':<36}{'mean JCT':>13}{'p99 JCT':>15}{'makespan':>15}{'stops':>8}",
    ]
    for row in rows:
        found = figures(replay(trace, gpus, COUNTING[f"tiresias:{row['policy_flag']}"](gpus)))
        measured = (float(row["avg_jct_s"]), float(row["p99_s"]), float(row["makespan_s"]), int(row["preemptions"]))
        replayed = (found.jct_avg_s, found.jct_p99_s, found.makespan_s, found.preemptions)
        lines += [_line(f"{row['policy_flag']}, measured", measured), _line("  replayed", replayed)]
    nodes = [NodeSpec(name=f"n{i:02}", gpus=8) for i in range(gpus // 8)]
    for order in ("fifo-skip", "las", "shortest"):
        rule = ByCore(nodes, Policy(order=order), restart_s=RESTART_S, estimate_error=1.0, seed=seed)
        found = figures(replay(trace, gpus, rule, restart_s=RESTART_S))
        ours = (found.jct_avg_s, found.jct_p99_s, found.makespan_s, found.preemptions)
        lines.append(_line(f"core: {order}, pack", ours))
    return "\n".join(lines)


def _line(name: str, shown: tuple[float, float, float, int]) -> str:
    return f"{name:<36}{shown[0]:>11,.1f} s{shown[1]:>13,.0f} s{shown[2]:>13,.0f} s{shown[3]:>8,}"


def pollux(seed: int) -> str:
    """Return the table of Pollux' workloads: Tiresias and Optimus as its authors have them, and sizes by our core."""
    try:
        from dlaas_server.sim.pollux.workload import play
    except ImportError:
        raise Unrunnable("Pollux' workloads need numpy and scipy: pip install scipy") from None
    published = {(row["run"], int(row["workload"])): float(row["avg_jct_s"]) for row in _rows("pollux_published.csv")}
    pool = [NodeSpec(name=f"n{i:02}", gpus=4) for i in range(16)]
    columns = ("tiresias", "optimus", "pollux")
    lines = [
        "Pollux' workloads: 160 jobs each on 16 nodes x 4 GPUs, load 1.0; mean JCT, replayed / published",
        f"{'workload':<10}{'pollux:tiresias':>21}{'pollux:optimus':>21}{'elastic / Pollux':>21}",
    ]
    for workload in WORKLOADS:
        trace = read_trace(TRACES / "pollux_workloads_1.0.csv", workload)
        cells = []
        for theirs in columns:
            rule = "elastic" if theirs == "pollux" else f"pollux:{theirs}"
            ours_s = figures(play(trace, pool, rule).result).jct_avg_s
            cells.append(f"{ours_s:,.0f} / {published[f'{theirs}-1.0', workload]:,.0f} s")
        lines.append(f"{workload:<10}" + "".join(f"{cell:>21}" for cell in cells))
    return "\n".join(lines)
