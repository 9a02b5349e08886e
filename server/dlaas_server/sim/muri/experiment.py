"""Muri's workloads beside its authors' results."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dlaas_server.sim.muri.workload import play
from dlaas_server.sim.replay.report import figures
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec, Trace

__all__ = ["NAMES", "POOL", "MuriCase", "muri", "muri_cases", "muri_trace"]

TRACES: Final = Path(__file__).parent.parent / "traces"
POOL: Final = tuple(NodeSpec(name=f"n{i}", gpus=8) for i in range(8))
NAMES: Final = {
    "SRTF": "muri:srtf",
    "SRSF": "muri:srsf",
    "Tiresias_L": "muri:las",
    "antman": "muri:antman",
    "Muri_S": "muri:muri-s",
    "Muri_L": "muri:muri-l",
}
"""The authors' name of a policy -> ours. Theirs of Themis is not rebuilt: its shares come from a numeric solver."""

Shown = tuple[float, float, float]
"""Mean and 99th percentile of completion times, makespan: seconds."""


@dataclass(frozen=True, slots=True)
class MuriCase:
    """Line of the reference."""

    trace: str
    policy: str
    published: Shown

    def replayed(self) -> Shown:
        """Our autoscaler."""
        found = figures(play(muri_trace(self.trace), POOL, NAMES[self.policy]))
        return found.jct_avg_s, found.jct_p99_s, found.makespan_s


def muri_trace(name: str) -> Trace:
    """Return a trace by the authors' name: in `_pr` every job is submitted at 0."""
    trace = read_trace(TRACES / f"muri_{name.removesuffix('_pr')}.csv")
    if not name.endswith("_pr"):
        return trace
    return replace(trace, name=name, jobs=tuple(replace(job, submit_s=0) for job in trace.jobs))


def muri_cases(traces: str) -> Iterator[MuriCase]:
    """Return the lines of the reference for this trace, of rules that we have."""
    with (TRACES / "muri_published.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["trace"].startswith(traces) and row["policy"] in NAMES:
                shown = float(row["avg_jct_s"]), float(row["p99_jct_s"]), float(row["makespan_s"])
                yield MuriCase(row["trace"], row["policy"], shown)


def muri(seed: int) -> str:
    """Return the table of Muri and the rules it is compared with, on trace 3."""
    lines = [
        "Muri: 992 jobs with stages on 8 nodes x 8 GPUs; trace3_pr: all are submitted at 0. Replayed / published",
        f"{'trace':<11}{'rules':<13}{'':<11}{'mean JCT':>14}{'p99 JCT':>14}{'makespan':>14}{'mean':>9}",
    ]
    for case in muri_cases("trace3"):
        ours = case.replayed()
        label = f"{case.trace:<11}{NAMES[case.policy]:<13}"
        for name, shown in (("published", case.published), ("replayed", ours)):
            ratio = f"{shown[0] / case.published[0]:>7.4f} ×" if shown is ours else ""
            lines.append(f"{label:<24}{name:<11}" + "".join(f"{value:>12,.0f} s" for value in shown) + ratio)
            label = ""
    return "\n".join(lines)
