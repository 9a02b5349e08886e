"""The autoscaler and the paper's rule on curves that are known: how near the best size they come, and how soon.

Virtual time: a step takes what the curve says, with 10 % noise; the size changes between windows of max(20 steps, 1 s),
after 2 steps that are dropped. Both rules see the same windows and pay the same for a change.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

from dlaas_server.core.autoscale import Search, Window, look
from dlaas_server.core.conditions import Condition, Efficiency
from dlaas_server.sim.scaling_curves import Curve, formulas, measured
from jupyter_dlaas.pace import middle

__all__ = ["Outcome", "Paper", "Run", "Searching", "judged", "main", "play", "share", "times_s"]

STEPS: Final = 20
WINDOW_S: Final = 1.0
DROPPED: Final = 2
IDLE_S: Final = 0.05
NOISE: Final = 0.1
CONDITION: Final = Efficiency(0.1)
PART_S: Final = 180.0


class Rule(Protocol):
    """Says after each window how large the job should be."""

    def __call__(self, window: Window, held: int) -> int: ...


@dataclass
class Searching:
    """Ours."""

    condition: Condition
    high: int
    search: Search = field(default_factory=Search)

    def __call__(self, window: Window, held: int) -> int:
        self.search, size, _ = look(self.search, window, self.condition, low=1, high=self.high, wish=held)
        return size


@dataclass
class Paper:
    """The rule of Or et al.: grow by `spawn` while every pair of neighbouring sizes passes s > S, else go back to the
    smaller size of the first pair that fails. Throughputs are plain means over all that was ever measured at a size.

    Source: Or, Zhang, Freedman, MLSys 2020, and the authors' published callback, whose `spawn` is 1 or 4.
    """

    high: int
    spawn: int = 1
    least: float = 0.1
    means: dict[int, tuple[float, int]] = field(default_factory=dict)

    def __call__(self, window: Window, held: int) -> int:
        mean, count = self.means.get(held, (0.0, 0))
        total = count + window.steps
        self.means[held] = ((mean * count + window.rate * window.steps) / total, total)
        sizes = sorted(self.means)
        for old, new in pairwise(sizes):
            before, after = self.means[old][0], self.means[new][0]
            if (after - before) / (new - old) / (before / old) <= self.least:
                return old
        return min(sizes[-1] + self.spawn, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one run went. `target_s`: per part (before and after the change), from when on the size stayed within one of
    the best one until the part's end; None: it did not.
    """

    final: int
    best: int
    target_s: tuple[float | None, ...]
    part_s: float
    changes: int

    @property
    def is_hit(self) -> bool:
        return abs(self.final - self.best) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One curve, under both rules; `is_changing`: another one in mid-run."""

    family: str
    curve: str
    is_changing: bool
    ours: Outcome
    paper: Outcome


def play(
    parts: Sequence[Curve], rule: Rule, condition: Condition, chance: random.Random, *, part_s: float, noise: float
) -> Outcome:
    """One run that begins with one learner: so long along each curve."""
    now_s, held, is_fresh = 0.0, 1, True
    sizes: list[tuple[float, int]] = [(0.0, held)]
    while now_s < part_s * len(parts):
        times: list[float] = []
        dropped = DROPPED if is_fresh else 0
        while len(times) < STEPS or sum(times) < WINDOW_S:
            present = parts[min(int(now_s / part_s), len(parts) - 1)]
            took_s = max(chance.gauss(1.0, noise), 0.3) / present.rates[held - 1]
            now_s += took_s
            if dropped:
                dropped -= 1
            else:
                times.append(took_s)
        middle_s, spread = middle(times)
        size = rule(Window(learners=held, at_s=now_s, steps=len(times), rate=1 / middle_s, spread=spread), held)
        is_fresh = size != held
        if is_fresh:
            now_s += IDLE_S
            held = size
            sizes.append((now_s, held))
    return Outcome(
        final=held,
        best=parts[-1].best(condition),
        target_s=tuple(
            _within(sizes, one.best(condition), n * part_s, (n + 1) * part_s) for n, one in enumerate(parts)
        ),
        part_s=part_s,
        changes=len(sizes) - 1,
    )


def _within(sizes: Sequence[tuple[float, int]], best: int, begin_s: float, end_s: float) -> float | None:
    since: float | None = None
    for at_s, size in sizes:
        if at_s >= end_s:
            break
        if abs(size - best) > 1:
            since = None
        elif since is None:
            since = max(at_s - begin_s, 0.0)
    return since


def judged(seeds: int = 3, spawn: int = 1, groups: Sequence[Sequence[Curve]] | None = None) -> list[Run]:
    """Each curve, still and with a change in mid-run into another of its group; 10 % noise on each step; S = 0.1."""
    found: list[Run] = []
    for group in groups if groups is not None else (formulas(16), formulas(32), measured()):
        for curve in group:
            for seed in range(seeds):
                for is_changing in (False, True):
                    chance = random.Random(f"{curve.name} {seed} {is_changing}")  # noqa: S311  # no secret
                    speed = chance.uniform(2.0, 30.0)
                    parts = [curve.faster(speed)]
                    if is_changing:
                        other = chance.choice([c for c in group if c is not curve and c.high == curve.high] or [curve])
                        parts.append(other.faster(speed * chance.choice((0.5, 0.7, 1.5, 2.0))))
                    found.append(_run(curve, parts, spawn, chance.random()))
    return found


def _run(curve: Curve, parts: Sequence[Curve], spawn: int, seed: float) -> Run:
    rules: tuple[Rule, Rule] = (Searching(CONDITION, curve.high), Paper(curve.high, spawn))
    ours, paper = (
        play(parts, rule, CONDITION, random.Random(seed), part_s=PART_S, noise=NOISE)  # noqa: S311
        for rule in rules
    )
    return Run(family=curve.family, curve=curve.name, is_changing=len(parts) > 1, ours=ours, paper=paper)


def times_s(outcomes: Sequence[Outcome]) -> list[float]:
    """Times to target, of all parts; where it was not reached, the whole part."""
    return [one.part_s if at_s is None else at_s for one in outcomes for at_s in one.target_s]


def share(outcomes: Sequence[Outcome]) -> float:
    """Part of the runs that ended within one of the best size."""
    return sum(one.is_hit for one in outcomes) / len(outcomes)


def both_s(runs: Sequence[Run]) -> tuple[float, float]:
    """Mean time to target of ours and of the paper's rule, where both came to it; zeros, where they never did."""
    pairs = [
        (ours, paper)
        for run in runs
        for ours, paper in zip(run.ours.target_s, run.paper.target_s, strict=True)
        if ours is not None and paper is not None
    ]
    if not pairs:
        return 0.0, 0.0
    return statistics.mean(ours for ours, _ in pairs), statistics.mean(paper for _, paper in pairs)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m dlaas_server.sim.autoscaling", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs per curve (3)")
    parser.add_argument("--spawn", type=int, default=1, help="learners that the paper's rule adds at once (1)")
    options = parser.parse_args(argv)
    runs = judged(options.seeds, options.spawn)
    rows: list[tuple[str, ...]] = [
        ("curves", "runs", "within ±1", "paper", "time to target", "paper", "ratio", "where both came to it", "")
    ]
    for family in dict.fromkeys(run.family for run in runs):
        rows.append(_row(family, [run for run in runs if run.family == family and not run.is_changing]))
    rows.append(_row("all, still", [run for run in runs if not run.is_changing]))
    rows.append(_row("all, with a change in mid-run", [run for run in runs if run.is_changing]))
    rows.append(_row("all", runs))
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    ours, paper = [run.ours for run in runs], [run.paper for run in runs]
    ours_s, paper_s = statistics.mean(times_s(ours)), statistics.mean(times_s(paper))
    both = both_s(runs)
    return (
        name,
        str(len(runs)),
        f"{share(ours):.0%}",
        f"{share(paper):.0%}",
        f"{ours_s:.1f} s",
        f"{paper_s:.1f} s",
        f"{ours_s / paper_s:.2f}" if paper_s else "",
        f"{both[0]:.1f} s",
        f"{both[1]:.1f} s",
    )


if __name__ == "__main__":
    raise SystemExit(main())
