"""The autoscaler beside the rule of Or et al., on curves that are known, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from dlaas_server.sim.autoscaling import Run, judged, share, times_s
from tests.bench.measuring import Bench
from tests.bench.table import Figure, Line, ratio


def measure(bench: Bench) -> list[Line]:
    """All in one process; nothing is started. `python -m dlaas_server.sim.autoscaling` prints the whole table."""
    runs = judged()
    parts = {
        "still": [r for r in runs if not r.is_changing],
        "with a change in mid-run": [r for r in runs if r.is_changing],
    }
    return [line for name, some in parts.items() for line in _lines(name, some)]


def _lines(name: str, runs: Sequence[Run]) -> list[Line]:
    ours, paper = [run.ours for run in runs], [run.paper for run in runs]
    within = [_once(100 * share(some), "%") for some in (ours, paper)]
    took = [_once(mean(times_s(some)), "s") for some in (ours, paper)]
    return [
        Line(
            what=f"autoscaler, {len(runs)} runs {name}: target size within ±1 of the best",
            bar="≥ 90 %",
            measured=within[0],
            beside="the paper's rule",
            beside_figure=within[1],
        ),
        Line(
            what="… mean time to target (not reached: the whole 180 s)",
            bar="≤ 1/2 of the paper's rule",
            measured=took[0],
            beside="the paper's rule",
            beside_figure=took[1],
            times=ratio(took[0], took[1]),
        ),
    ]


def _once(value: float, unit: str) -> Figure:
    return Figure(value, value, value, 1, unit)
