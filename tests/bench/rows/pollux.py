"""Sizes of running jobs on Pollux' eight workloads, by the production core; beside what the authors published."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from dlaas_server.sim.pollux.workload import play
from dlaas_server.sim.replay.gc_pause import collector_at_rest
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec
from tests.bench.measuring import Bench
from tests.bench.table import Figure, Line, figure

FILES = Path(__file__).parents[2] / "traces"
DEVELOPED_ON = (1, 2, 3, 4)
JUDGED_ON = (5, 6, 7, 8)


def measure(bench: Bench) -> list[Line]:
    """All in one process; nothing is started."""
    pool = [NodeSpec(name=f"n{i:02}", gpus=4) for i in range(16)]
    jct_s: dict[int, float] = {}
    decided_ms: list[float] = []
    for workload in (*DEVELOPED_ON, *JUDGED_ON):
        with collector_at_rest():  # as the command does: a full collection would count as a slow decision
            found = play(read_trace(FILES / "pollux_workloads_1.0.csv", workload), pool, "elastic")
        jct_s[workload] = statistics.mean(one.jct_s for one in found.result.done)
        decided_ms += [1000 * took_s for took_s in found.decided_s]
    decided_ms.sort()
    published = _published()
    lines = []
    for said, workloads, bar in (
        ("all 8", (*DEVELOPED_ON, *JUDGED_ON), "≤ 2751 s"),
        ("1 to 4, developed on", DEVELOPED_ON, ""),
        ("5 to 8, judged on", JUDGED_ON, ""),
    ):
        ours = figure([jct_s[w] for w in workloads], "s")
        ours = Figure(statistics.mean(jct_s[w] for w in workloads), ours.least, ours.most, ours.runs, "s")
        for run in ("pollux", "tiresias", "optimus") if bar else ("pollux",):
            theirs = statistics.mean(published[run, w] for w in workloads)
            lines.append(
                Line(
                    what=f"elastic, Pollux workloads {said}: mean JCT",
                    bar=bar,
                    measured=ours,
                    beside=f"({run}, published)",
                    beside_figure=Figure(theirs, theirs, theirs, 1, "s"),
                    times=f"{ours.median / theirs:.3f} ×",
                )
            )
    genetic = Figure(2100, 2100, 2100, 1, "ms")
    for said, value in (
        ("mean", statistics.mean(decided_ms)),
        ("p99", decided_ms[int(len(decided_ms) * 0.99)]),
        ("most", decided_ms[-1]),
    ):
        lines.append(
            Line(
                what=f"… CPU per decision, curves of all jobs included: {said}",
                bar="≤ 10 ms",
                measured=Figure(value, decided_ms[0], decided_ms[-1], 1, "ms"),
                beside="(pollux, mean)",
                beside_figure=genetic,
            )
        )
    return lines


def _published() -> dict[tuple[str, int], float]:
    jct_s: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    with (FILES / "reference" / "pollux_published_per_job.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            jct_s[row["run"].removesuffix("-1.0"), int(row["workload"])].append(float(row["jct_s"]))
    return {run: statistics.mean(values) for run, values in jct_s.items()}
