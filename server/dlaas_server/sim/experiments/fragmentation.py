"""Fill level of a pool of shared GPUs, by our placements and by the rules of FGD, beside its authors' results."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Final

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.shape import Layout
from dlaas_server.sim.experiments.fill_cluster import MARKS, ByPlacement, Filled, Filler, fill, shapes_of
from dlaas_server.sim.rules.fgd import FILLERS
from dlaas_server.sim.trace.formats import read_nodes, read_trace
from dlaas_server.sim.trace.trace import NodeSpec, Trace

__all__ = ["FULL", "SEEDS", "filled_by", "fragmentation", "openb", "published"]

TRACES: Final = Path(__file__).parent.parent / "traces"
SEEDS: Final = 10
FULL: Final = 100
"""Demand in percent of all GPUs at which the results are compared."""


@cache
def openb(workload: str) -> tuple[Trace, tuple[NodeSpec, ...]]:
    """Return the pods of a workload, and the nodes."""
    return read_trace(TRACES / f"openb_pod_list_{workload}.csv"), read_nodes(TRACES / "openb_node_list_gpu_node.csv")


def published(workload: str, policy: str) -> Mapping[int, float]:
    """Return percent allocated by percent requested."""
    with (TRACES / "fgd_published.csv").open(newline="", encoding="utf-8") as file:
        return {
            int(row["arrived_gpu_demand_pct"]): float(row["mean_pct_of_gpus"])
            for row in csv.DictReader(file)
            if (row["workload"], row["policy"], row["metric"]) == (workload, policy, "allocated")
        }


def filled_by(trace: Trace, specs: Sequence[NodeSpec], who: str, seed: int) -> tuple[Filled, ...]:
    """Fill the pool once: by a placement of the core ("core:fgd"), or by rules of the reference ("fgd")."""
    return _filled(trace, specs, who, shapes_of(trace, specs, _layout(who)), seed)


def _layout(who: str) -> Layout:
    placement = who.removeprefix("core:")
    return Layout(placement) if placement != who else Layout.FGD


def _filled(
    trace: Trace, specs: Sequence[NodeSpec], who: str, shapes: dict[str, Shape], seed: int
) -> tuple[Filled, ...]:
    asked: Sequence[Shape] = tuple(shapes.values())
    filler: Filler = FILLERS[who](specs, asked) if who in FILLERS else ByPlacement(specs, _layout(who))
    return fill(trace, specs, filler, shapes, seed)


@cache
def _asked(workload: str, layout: Layout) -> dict[str, Shape]:
    return shapes_of(*openb(workload), layout)


def _run(run: tuple[str, str, int]) -> tuple[Filled, ...]:
    """One workload, its placement, and the seed of its order."""
    workload, who, seed = run
    trace, specs = openb(workload)
    return _filled(trace, specs, who, _asked(workload, _layout(who)), seed)


def fragmentation(seed: int) -> str:
    """Return the table: percent of GPUs allocated, mean of ten seeds."""
    columns = (("06-FGD", "fgd", "core:fgd"), ("05-BestFit", "bestfit", "core:pack"))
    workloads = ("default", "multigpu20")
    runs = [(w, who, seed + i) for w in workloads for _, *ours in columns for who in ours for i in range(SEEDS)]
    with ProcessPoolExecutor(os.cpu_count()) as workers:  # each run stands by itself
        found = dict(zip(runs, workers.map(_run, runs), strict=True))
    lines = [
        f"Filling 1,213 nodes with shared GPUs: percent of GPUs allocated after so much was asked for, {SEEDS} seeds."
    ]
    for workload in workloads:
        heads = [head for theirs, rule, ours in columns for head in (f"({theirs[3:]})", f"rules {rule}", ours)]
        lines.append(f"{workload:<14}" + "".join(f"{head:>15}" for head in heads))
        shown: list[list[float]] = []
        for theirs, *ours in columns:
            figures = published(workload, theirs)
            shown.append([figures[mark] for mark in MARKS])
            for who in ours:
                ten = (found[workload, who, seed + i] for i in range(SEEDS))
                shown.append([mean(one.allocated for one in at) for at in zip(*ten, strict=True)])
        for mark, *values in zip(MARKS, *shown, strict=True):
            lines.append(f"{mark:>12} %" + "".join(f"{value:>15.2f}" for value in values))
    return "\n".join([*lines, "in brackets: published"])
