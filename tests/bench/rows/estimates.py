"""Quality of start estimates where lengths are guessed with σ = 0.25, and of fairness.

The slices of development and of judgement differ, and both are reported.
"""

from __future__ import annotations

import random
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.experiments.calibration import ScoredEstimate, WithEstimates, part_of, scores
from dlaas_server.sim.experiments.fairness import fairness_outcome
from dlaas_server.sim.experiments.queues import TRACES
from dlaas_server.sim.replay.event_loop import replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec
from tests.bench.measuring import Bench
from tests.bench.table import Figure, Line

PHILLY: Final = Path(__file__).parents[2] / "traces"
SPREAD: Final = 0.25
RESTART_S: Final = 60
SEED: Final = 0
BARS: Final = {"fifo": 80, "fifo-skip": 70, "shortest": 70}


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a trace on a pool."""

    path: Path
    gpus: int
    part: tuple[float, float]
    width: int = 8

    def sampled(self, order: str, most: int) -> tuple[int, list[ScoredEstimate]]:
        """Return the number of waiting jobs, and the estimates and starts of a sample drawn with SEED."""
        waited = self._replayed(order, ()).waited
        asked = random.Random(SEED).sample(range(waited), min(most, waited))
        return waited, self._replayed(order, frozenset(asked)).estimates

    def _replayed(self, order: str, asked: Container[int]) -> WithEstimates:
        nodes = tuple(NodeSpec(name=f"n{i:03}", gpus=self.width) for i in range(self.gpus // self.width))
        core = ByCore(nodes, Policy(order=order), restart_s=RESTART_S, estimate_error=SPREAD, seed=SEED)
        rule = WithEstimates(core, SPREAD, asked)
        replay(part_of(read_trace(self.path), *self.part), self.gpus, rule, restart_s=RESTART_S)
        return rule


DEVELOPED: Final = (
    Slice(PHILLY / "philly_ee9e8c.csv", 128, (0, 0.5)),
    Slice(PHILLY / "philly_103959.csv", 24, (0, 0.5)),
)
JUDGED: Final = (
    Slice(PHILLY / "philly_ee9e8c.csv", 128, (0.5, 1)),
    Slice(PHILLY / "philly_103959.csv", 24, (0.5, 1)),
    Slice(PHILLY / "philly_0e4a51.csv", 48, (0, 1)),
    Slice(PHILLY / "philly_6214e9.csv", 64, (0, 0.04)),
    Slice(TRACES / "ffdl_pack_spread_load0.8.csv", 400, (0.3, 0.6), width=4),
)
SAMPLES: Final = (("judged", JUDGED, 100), ("developed on", DEVELOPED, 60))
"""How many of those that wait are asked in each slice: a forecast takes a tenth of a second, behind hundreds one."""


def measure(bench: Bench) -> list[Line]:
    """All in virtual time, in one process."""
    lines = [line for order in BARS for line in _calibration(order)]
    return [*lines, *_fairness()]


def _calibration(order: str) -> list[Line]:
    lines = []
    for name, slices, most in SAMPLES:
        each = [one.sampled(order, most) for one in slices]
        waits, asked = sum(waited for waited, _ in each), sum(len(estimates) for _, estimates in each)
        close, held = [
            [100 * value for value in pair] for pair in zip(*(_shares(estimates) for _, estimates in each), strict=True)
        ]
        sample = f"{waits} waits of {len(slices)} slices {name}, {asked} asked, seed {SEED}"
        what = f"start estimates, {order}, σ = {SPREAD}, {sample}"
        lines += [
            Line(
                what=f"{what}: within a minute or 25 %",
                bar=f"≥ {BARS[order]} %",
                measured=Figure(_of_all(close, each), min(close), max(close), len(slices), "%"),
                beside="(Slurm's learned estimates, within 1 min: 65–76 %)",
            ),
            Line(
                what="… 80 % interval holds",
                bar="75–85 %",
                measured=Figure(_of_all(held, each), min(held), max(held), len(slices), "%"),
            ),
        ]
    return lines


def _of_all(shares: list[float], each: list[tuple[int, list[ScoredEstimate]]]) -> float:
    """Return the share among all that waited: a slice counts by its waiting jobs, not by its sample."""
    return sum(share * waited for share, (waited, _) in zip(shares, each, strict=True)) / sum(w for w, _ in each)


def _shares(estimates: list[ScoredEstimate]) -> tuple[float, float]:
    found = scores(estimates)
    return found.close, found.held_most


def _fairness() -> list[Line]:
    lines = []
    for error in (0.25, 0.5, 1.0):
        found = fairness_outcome("fair-finish", error)
        what = f"fairness, shockwave_120, fair-finish, lengths guessed with σ = {error:g}, 5 seeds"
        unfair, worst = 100 * found.unfair, found.worst
        lines += [
            Line(
                what=f"{what}: unfair",
                bar="≤ 5 %",
                measured=Figure(unfair, unfair, 100 * found.unfair_most, 5, "% (mean; mean–most)"),
                beside="(Shockwave)",
                beside_figure=Figure(5.0, 5.0, 5.0, 1, "%"),
            ),
            Line(
                what="… worst",
                bar="≤ 2.0",
                measured=Figure(worst, worst, found.worst_most, 5, "(mean; mean–most)"),
                beside="(Shockwave)",
                beside_figure=Figure(1.78, 1.78, 1.78, 1, ""),
            ),
        ]
    return lines
