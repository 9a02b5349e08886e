"""The autoscaler beside the rule of Or et al., on curves that are known, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from dlaas_server.sim.autoscaling.experiment import Run, both_s, idle_s, judged, share, times_s
from dlaas_server.sim.autoscaling.paper import OURS, THEIRS, TRAININGS, cases, saved, steps_of
from tests.bench.measuring import Bench
from tests.bench.table import Figure, Line, ratio

PUBLISHED = "(the paper: 45 % of the time, 85.1 % of the GPU time) its rule, run again"


def measure(bench: Bench) -> list[Line]:
    """All in one process; nothing is started. `python -m dlaas_server.sim.autoscaling.experiment` prints the whole
    table, and
    `python -m dlaas_server.sim autoscaling` the paper's experiment.
    """
    lines: list[Line] = []
    for spawn in (1, 4):
        runs = judged(spawn=spawn)
        lines += _hits("still", [run for run in runs if not run.is_changing], spawn)
        lines += _hits("with a change in mid-run", [run for run in runs if run.is_changing], spawn)
        lines += _times(runs, spawn)
    return lines + _experiment()


def _hits(name: str, runs: Sequence[Run], spawn: int) -> list[Line]:
    within = [_once(100 * share(some), "%") for some in ([run.ours for run in runs], [run.paper for run in runs])]
    return [
        Line(
            what=f"autoscaler, {len(runs)} runs {name}: target size within ±1 of the best",
            bar="≥ 90 %",
            measured=within[0],
            beside=_rule(spawn),
            beside_figure=within[1],
        )
    ]


def _times(runs: Sequence[Run], spawn: int) -> list[Line]:
    ours, paper = [run.ours for run in runs], [run.paper for run in runs]
    both, whole = both_s(runs), (mean(times_s(ours)), mean(times_s(paper)))
    return [
        _pair("… mean time to target, where both came to it", "≤ 1/2 of the paper's rule", both, spawn),
        _pair("… all runs (not reached: the whole 180 s)", "", whole, spawn),
        _pair("… what its changes cost a run, 0.05 s each", "", (idle_s(ours), idle_s(paper)), spawn),
    ]


def _pair(what: str, bar: str, pair: tuple[float, float], spawn: int) -> Line:
    ours, paper = (_once(value, "s") for value in pair)
    return Line(
        what=what,
        bar=bar,
        measured=ours,
        beside=_rule(spawn),
        beside_figure=paper,
        times=ratio(ours, paper),
    )


def _experiment() -> list[Line]:
    lines = []
    for training in TRAININGS:
        found = cases(training, steps_of(training), seed=0)
        for n, what in enumerate(("time", "GPU time")):
            ours, theirs = (_once(100 * saved(found, rule)[n], "%") for rule in (OURS, THEIRS))
            lines.append(
                Line(
                    what=f"the paper's experiment, {training.name}: {what} saved, at most",
                    bar="",
                    measured=ours,
                    beside=PUBLISHED,
                    beside_figure=theirs,
                )
            )
    return lines


def _rule(spawn: int) -> str:
    return f"the paper's rule, {spawn} at once" if spawn > 1 else "the paper's rule, one by one"


def _once(value: float, unit: str) -> Figure:
    return Figure(value, value, value, 1, unit)
