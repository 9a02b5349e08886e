"""The autoscaler and the paper's rule on known curves: distance from the best size, and time to reach it.

Virtual time: a step takes what the curve says, with 10 % noise. A change costs both the same; the 2 steps after it are
dropped. Ours sees the windows that a learner reports; the paper's rule sees windows of max(20 steps, 1 s), or those of
its authors' code.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

from dlaas_server.core.elasticity.autoscaler import look
from dlaas_server.core.elasticity.objective import Condition, Efficiency
from dlaas_server.core.model.size_search import Search, Window
from dlaas_server.sim.autoscaling.curves import Curve, drawn, formulas, measured
from jupyter_dlaas.wire.step_windows import DROPPED, STEPS, WINDOW_S, Windows, middle

__all__ = [
    "Every",
    "Outcome",
    "Paper",
    "Rule",
    "Run",
    "Searching",
    "Trained",
    "both_s",
    "idle_s",
    "judged",
    "main",
    "play",
    "share",
    "times_s",
    "trained",
]

WATCHED_S: Final = 10.0
"""Longest window reported for a job whose size is settled."""
IDLE_S: Final = 0.05
NOISE: Final = 0.1
CONDITION: Final = Efficiency(0.1)
PART_S: Final = 180.0


class Cutting(Protocol):
    """Division of the steps at one size into windows."""

    def again(self) -> None: ...

    def step(self, took_s: float) -> Sequence[float]: ...


class Rule(Protocol):
    """Rule that chooses the job's size after each window."""

    @property
    def windows(self) -> Cutting: ...

    def __call__(self, window: Window, held: int) -> int: ...


@dataclass
class Every:
    """Windows with a fixed number of steps and a minimum duration."""

    steps: int = STEPS
    least_s: float = WINDOW_S
    times_s: list[float] = field(default_factory=list)

    def again(self) -> None:
        self.times_s = []

    def step(self, took_s: float) -> Sequence[float]:
        self.times_s.append(took_s)
        if len(self.times_s) < self.steps or sum(self.times_s) < self.least_s:
            return ()
        found, self.times_s = self.times_s, []
        return found


@dataclass
class Searching:
    """Our autoscaler."""

    condition: Condition
    high: int
    low: int = 1
    search: Search = field(default_factory=Search)
    windows: Cutting = field(default_factory=lambda: Windows(WATCHED_S, is_quick=True))

    def __call__(self, window: Window, held: int) -> int:
        self.search, size, _ = look(self.search, window, self.condition, low=self.low, high=self.high, wish=held)
        return size


@dataclass
class Paper:
    """Rule of Or et al.: grow by `spawn` while every pair of neighbouring sizes passes s > S, else go back to the
    smaller size of the first pair that fails; shrink below the size it began with while not the first `passes` pairs
    pass. Throughputs are plain means over all that was ever measured at a size.

    `staying`: so many steps at the larger size of the pair that fails, before it goes back (0: at once). Their own
    settings were spawn 4, every 10 steps, 100 steps of staying.
    Source: Or, Zhang, Freedman, MLSys 2020, condition 1; `staying` and the settings from the authors' published code
    (github.com/andrewor14/models: autoscaling/schedule_callback.py, deploy/run_distributed.sh).
    """

    high: int
    spawn: int = 1
    least: float = 0.1
    staying: int = 0
    low: int = 1
    passes: int = 3
    windows: Cutting = field(default_factory=Every)
    means: dict[int, tuple[float, int]] = field(default_factory=dict)

    def __call__(self, window: Window, held: int) -> int:
        mean, count = self.means.get(held, (0.0, 0))
        total = count + window.steps
        self.means[held] = ((mean * count + window.rate * window.steps) / total, total)
        sizes = sorted(self.means)
        passed = [self._passes(old, new) for old, new in pairwise(sizes)]
        if all(passed) and sizes[-1] < self.high:
            return min(sizes[-1] + self.spawn, self.high)
        if passed[: self.passes] != [True] * self.passes and sizes[0] > self.low:
            return max(sizes[0] - self.spawn, self.low)
        if all(passed):
            return sizes[-1]
        at = passed.index(False)
        return sizes[at] if self.means[sizes[at + 1]][1] >= self.staying else sizes[at + 1]

    def _passes(self, old: int, new: int) -> bool:
        before, after = self.means[old][0], self.means[new][0]
        return (after - before) / (new - old) / (before / old) > self.least


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one run. `target_s`: per part (before and after the change), from when on the size stayed within one of
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
    """Results of one curve under both rules; `is_changing`: the curve changes in mid-run."""

    family: str
    curve: str
    is_changing: bool
    ours: Outcome
    paper: Outcome


@dataclass(slots=True)
class Trained:
    """Run in virtual time. `sizes`: number of learners from each time on."""

    start: int
    now_s: float = 0.0
    steps: int = 0
    device_s: float = 0.0
    sizes: list[tuple[float, int]] = field(default_factory=list)

    @property
    def held(self) -> int:
        return self.sizes[-1][1] if self.sizes else self.start


def trained(
    rate: Callable[[float, int], float],
    rule: Rule,
    chance: random.Random,
    *,
    start: int,
    noise: float,
    is_over: Callable[[Trained], bool],
) -> Trained:
    """Train until the run ends. `rate`: steps per second at this time with this number of learners."""
    run = Trained(start)
    run.sizes.append((0.0, start))
    drop = DROPPED
    while not is_over(run):
        took_s = max(chance.gauss(1.0, noise), 0.3) / rate(run.now_s, run.held)
        run.now_s += took_s
        run.device_s += took_s * run.held
        run.steps += 1
        if drop:
            drop -= 1
            continue
        times_s = rule.windows.step(took_s)
        if not times_s:
            continue
        step_s, spread = middle(times_s)
        seen = Window(learners=run.held, at_s=run.now_s, steps=len(times_s), rate=1 / step_s, spread=spread)
        size = rule(seen, run.held)
        if size != run.held:
            run.now_s += IDLE_S
            run.device_s += IDLE_S * size
            run.sizes.append((run.now_s, size))
            rule.windows.again()
            drop = DROPPED
    return run


def play(
    parts: Sequence[Curve], rule: Rule, condition: Condition, chance: random.Random, *, part_s: float, noise: float
) -> Outcome:
    """Run one training that begins with one learner and follows each curve for a while."""
    run = trained(
        lambda now_s, held: parts[min(int(now_s / part_s), len(parts) - 1)].rates[held - 1],
        rule,
        chance,
        start=1,
        noise=noise,
        is_over=lambda run: run.now_s >= part_s * len(parts),
    )
    return Outcome(
        final=run.held,
        best=parts[-1].best(condition),
        target_s=tuple(
            _within(run.sizes, one.best(condition), n * part_s, (n + 1) * part_s) for n, one in enumerate(parts)
        ),
        part_s=part_s,
        changes=len(run.sizes) - 1,
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


Baseline = Callable[[int], Paper]
"""The paper's rule for curves up to this size."""


def judged(seeds: int = 3, spawn: int = 1, groups: Sequence[Sequence[Curve]] | None = None) -> list[Run]:
    """Run each curve, constant and changing in mid-run to another of its group; 10 % noise on each step; S = 0.1."""
    return played(seeds, lambda high: Paper(high, spawn), groups or (formulas(16), formulas(32), measured()))


def played(seeds: int, baseline: Baseline, groups: Sequence[Sequence[Curve]]) -> list[Run]:
    """Return the runs of `judged`, compared with this form of the paper's rule."""
    found: list[Run] = []
    for group in groups:
        for curve in group:
            for seed in range(seeds):
                for is_changing in (False, True):
                    chance = random.Random(f"{curve.name} {seed} {is_changing}")  # noqa: S311  # no secret
                    speed = chance.uniform(2.0, 30.0)
                    parts = [curve.faster(speed)]
                    if is_changing:
                        other = chance.choice([c for c in group if c is not curve and c.high == curve.high] or [curve])
                        parts.append(other.faster(speed * chance.choice((0.5, 0.7, 1.5, 2.0))))
                    found.append(_run(curve, parts, baseline(curve.high), chance.random()))
    return found


def _run(curve: Curve, parts: Sequence[Curve], baseline: Paper, seed: float) -> Run:
    rules: tuple[Rule, Rule] = (Searching(CONDITION, curve.high), baseline)
    ours, paper = (
        play(parts, rule, CONDITION, random.Random(seed), part_s=PART_S, noise=NOISE)  # noqa: S311
        for rule in rules
    )
    return Run(family=curve.family, curve=curve.name, is_changing=len(parts) > 1, ours=ours, paper=paper)


def times_s(outcomes: Sequence[Outcome]) -> list[float]:
    """Return the times to target of all parts; the whole part if it was not reached."""
    return [one.part_s if at_s is None else at_s for one in outcomes for at_s in one.target_s]


def share(outcomes: Sequence[Outcome]) -> float:
    """Return the share of runs that ended within one of the best size."""
    return sum(one.is_hit for one in outcomes) / len(outcomes)


def idle_s(outcomes: Sequence[Outcome]) -> float:
    """Return the mean cost of a run's changes of size, in seconds."""
    return statistics.mean(IDLE_S * one.changes for one in outcomes)


def both_s(runs: Sequence[Run]) -> tuple[float, float]:
    """Return mean times to target of ours and of the paper's rule, if both reached it; zeros if no run did."""
    pairs = [
        (ours, paper)
        for run in runs
        for ours, paper in zip(run.ours.target_s, run.paper.target_s, strict=True)
        if ours is not None and paper is not None
    ]
    if not pairs:
        return 0.0, 0.0
    return statistics.mean(ours for ours, _ in pairs), statistics.mean(paper for _, paper in pairs)


HEAD: Final = (
    "curves",
    "runs",
    "within ±1",
    "paper",
    "time to target",
    "paper",
    "ratio",
    "both came to it",
    "paper",
    "ratio",
    "idle a run",
    "paper",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m dlaas_server.sim.autoscaling.experiment", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs per curve (3)")
    parser.add_argument("--spawn", type=int, default=1, help="learners that the paper's rule adds at once (1)")
    parser.add_argument("--every", type=int, metavar="STEPS", help="steps between two looks of the paper's rule")
    parser.add_argument("--staying", type=int, default=0, help="steps that it stays at a size that fails (0)")
    parser.add_argument("--drawn", type=int, metavar="SEED", help="on curves drawn by chance from the same families")
    options = parser.parse_args(argv)

    def baseline(high: int) -> Paper:
        windows = Every(options.every, 0.0) if options.every else Every()
        return Paper(high, options.spawn, staying=options.staying, windows=windows)

    groups = [formulas(16), formulas(32), measured()]
    if options.drawn is not None:
        groups = [drawn(high, options.drawn) for high in (16, 32)]
    for line in table(played(options.seeds, baseline, groups)):
        print(line)
    return 0


def table(runs: Sequence[Run]) -> list[str]:
    """Return rows per family, and over all: hits, times to target (not reached: the whole part), cost of changes."""
    rows: list[tuple[str, ...]] = [HEAD]
    still = [run for run in runs if not run.is_changing]
    for family in dict.fromkeys(run.family for run in runs):
        rows.append(_row(family, [run for run in still if run.family == family]))
    rows.append(_row("all, still", still))
    rows.append(_row("all, with a change in mid-run", [run for run in runs if run.is_changing]))
    rows.append(_row("all", runs))
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    ours, paper = [run.ours for run in runs], [run.paper for run in runs]
    return (
        name,
        str(len(runs)),
        f"{share(ours):.0%}",
        f"{share(paper):.0%}",
        *_pair(statistics.mean(times_s(ours)), statistics.mean(times_s(paper))),
        *_pair(*both_s(runs)),
        f"{idle_s(ours):.2f} s",
        f"{idle_s(paper):.2f} s",
    )


def _pair(ours_s: float, paper_s: float) -> tuple[str, str, str]:
    return f"{ours_s:.1f} s", f"{paper_s:.1f} s", f"{ours_s / paper_s:.2f}" if paper_s else ""


if __name__ == "__main__":
    raise SystemExit(main())
