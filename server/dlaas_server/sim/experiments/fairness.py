"""Finish-time fairness: jobs that would end sooner on a fair share of their own. 120 jobs of Shockwave on 32 GPUs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.replay.event_loop import Replay, replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec

__all__ = ["Fairness", "fairness_of", "fairness_outcome"]

TRACES: Final = Path(__file__).parent.parent / "traces"
GPUS: Final = 32
RESTART_S: Final = 10
UNFAIR: Final = 1.05
SEEDS: Final = 5
REPORTED: Final = 0.05
"""Share of its work after which the length of a job that counts steps is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Means over the seeds, and the values of the worst seed."""

    unfair: float
    """Share of jobs whose completion time is more than 1.05 times what their fair share would have given."""
    unfair_most: float
    worst: float
    """Largest such ratio."""
    worst_most: float
    jct_avg_s: float
    preemptions: float


def fairness_of(result: Replay) -> list[float]:
    """Return, per job, completion time / (duration x contention), contention = max(1, jobs of the trace / GPUs).

    Source: Zheng et al., "Shockwave", NSDI 2023, and how its own scheduler counts: the contention of the whole trace.
    """
    contention = max(1.0, len(result.done) / result.gpus)
    return [done.jct_s / ((done.job.duration_s or 1.0) * contention) for done in result.done]


def fairness_outcome(
    order: str,
    error: float | None,
    seeds: int = SEEDS,
    trace: str = "shockwave_120",
    reports_after: float | None = None,
) -> Fairness:
    """Replay one of our orders, with estimated lengths of this error (σ of the logarithm; None: no estimates).

    `reports_after`: share of its work after which a job reports its remaining time; None: never.
    """
    nodes = tuple(NodeSpec(name=f"n{i}", gpus=4) for i in range(GPUS // 4))
    jobs = read_trace(TRACES / f"{trace}.csv")
    unfair, worst, jct_s, preemptions = [], [], [], []
    for seed in range(seeds if error else 1):
        core = ByCore(
            nodes,
            Policy(order=order),
            restart_s=RESTART_S,
            estimate_error=error,
            reports_after=reports_after,
            seed=seed,
        )
        result = replay(jobs, GPUS, core, restart_s=RESTART_S)
        ratios = fairness_of(result)
        unfair.append(sum(ratio > UNFAIR for ratio in ratios) / len(ratios))
        worst.append(max(ratios))
        jct_s.append(sum(done.jct_s for done in result.done) / len(result.done))
        preemptions.append(sum(done.preemptions for done in result.done))
    return Fairness(
        unfair=statistics.mean(unfair),
        unfair_most=max(unfair),
        worst=statistics.mean(worst),
        worst_most=max(worst),
        jct_avg_s=statistics.mean(jct_s),
        preemptions=statistics.mean(preemptions),
    )


def fairness(seed: int) -> str:
    """Return the table of finish-time fairness."""
    lines = [
        f"Finish-time fairness: 120 jobs of Shockwave on {GPUS} GPUs, a restart costs {RESTART_S} s; {SEEDS} seeds",
        f"{'':<40}{'unfair (most)':>18}{'worst (most)':>18}{'mean JCT':>11}{'stops':>7}",
        f"{'published: Shockwave':<40}{'5.0 %':>18}{'1.78':>18}",
    ]
    cases: list[tuple[str, float | None]] = [("fair", None), ("las", None), ("time-slice", None)]
    cases += [(order, error) for error in (0.25, 0.5, 1.0) for order in ("shortest", "srtf", "fair-finish")]
    for order, error in cases:
        got = fairness_outcome(order, error)
        name = f"{order}, {'lengths unknown' if error is None else f'lengths guessed, σ = {error:g}'}"
        unfair, worst = f"{got.unfair:.1%} ({got.unfair_most:.1%})", f"{got.worst:.2f} ({got.worst_most:.2f})"
        lines.append(f"{name:<40}{unfair:>18}{worst:>18}{f'{got.jct_avg_s:,.0f} s':>11}{got.preemptions:>7.0f}")
    for error in (0.5, 1.0):
        got = fairness_outcome("fair-finish", error, reports_after=REPORTED)
        name = f"fair-finish, σ = {error:g}, reported after {REPORTED:.0%}"
        unfair, worst = f"{got.unfair:.1%} ({got.unfair_most:.1%})", f"{got.worst:.2f} ({got.worst_most:.2f})"
        lines.append(f"{name:<40}{unfair:>18}{worst:>18}{f'{got.jct_avg_s:,.0f} s':>11}{got.preemptions:>7.0f}")
    return "\n".join(lines)
