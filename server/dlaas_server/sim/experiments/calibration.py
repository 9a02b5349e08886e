"""Calibration of start estimates: a replay makes an estimate for each waiting job and scores it when the job starts."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dlaas_server.core.forecast.start_time import CLOSE, CLOSE_S, DRAWS, Arrival, Outlook, World, outlooks
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.run_length import History, width_factor
from dlaas_server.sim.replay.event_loop import Decision, Run, Unrunnable
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.trace import Trace

__all__ = ["Calibration", "ScoredEstimate", "WithEstimates", "part_of", "scores", "scores_table"]

RECENT_ARRIVALS: Final = 300
"""Number of newest jobs that future arrivals are assumed to resemble."""
SECOND_S: Final = 1.0
"""Precision of an estimate in seconds."""


def _holds(interval: tuple[float, float], at_s: float) -> bool:
    return interval[0] - SECOND_S <= at_s <= interval[1] + SECOND_S


@dataclass(frozen=True, slots=True)
class ScoredEstimate:
    """Start estimate of a job at its arrival, and its actual start. Times in seconds of the trace."""

    at_s: float
    likely_s: float
    half: tuple[float, float]
    most: tuple[float, float]
    started_s: float

    @property
    def is_close(self) -> bool:
        """True if the start was within a minute, or a quarter of the wait, of the estimate."""
        return abs(self.likely_s - self.started_s) <= max(CLOSE_S, CLOSE * (self.started_s - self.at_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Scores of a replay; shares are between 0 and 1."""

    waits: int
    close: float
    """Share of starts within a minute, or a quarter of the wait, of the first estimate."""
    held_half: float
    """Share that started within the 50 % interval."""
    held_most: float
    """Share that started within the 80 % interval."""


def scores(estimates: Sequence[ScoredEstimate]) -> Calibration:
    """Return the scores of these estimates."""
    count = max(len(estimates), 1)
    return Calibration(
        waits=len(estimates),
        close=sum(estimate.is_close for estimate in estimates) / count,
        held_half=sum(_holds(e.half, e.started_s) for e in estimates) / count,
        held_most=sum(_holds(e.most, e.started_s) for e in estimates) / count,
    )


def scores_table(found: Calibration) -> str:
    """Return the scores as a table."""
    rows = (
        ("jobs that waited", f"{found.waits:,}"),
        ("within a minute or 25 %", f"{found.close:.1%}"),
        ("50 % interval holds", f"{found.held_half:.1%}"),
        ("80 % interval holds", f"{found.held_most:.1%}"),
    )
    return "\n".join(f"  {label:<26}{value:>8}" for label, value in rows)


def part_of(trace: Trace, begin: float, end: float) -> Trace:
    """Return the jobs between these shares of the trace, shifted to begin at 0. Raises Unrunnable if there are none."""
    jobs = trace.jobs[int(len(trace.jobs) * begin) : int(len(trace.jobs) * end)]
    if not jobs:
        raise Unrunnable(f"{trace.name} has {len(trace.jobs)} jobs: none lies between {begin:g} and {end:g}")
    first_s = jobs[0].submit_s
    return replace(trace, jobs=tuple(replace(job, submit_s=job.submit_s - first_s) for job in jobs))


@dataclass(slots=True)
class WithEstimates:
    """Production core under a policy, with a start estimate for each job that does not start at once.

    The 80 % interval is made wider or narrower by how those held that have come true by then.
    """

    core: ByCore
    spread: float
    """Assumed error of estimated lengths: σ of their logarithm."""
    asked: Container[int] | None = None
    """Waiting jobs that get an estimate, counted from 0; None: all."""
    draws: int = DRAWS
    waited: int = 0
    """Number of jobs so far that did not start at once."""
    estimates: list[ScoredEstimate] = field(default_factory=list)
    """In the order in which jobs started."""
    _open: dict[int, tuple[Outlook, float]] = field(default_factory=dict)
    _recent: list[Arrival] = field(default_factory=list)
    _held: list[bool] = field(default_factory=list)
    _history: History = field(default_factory=History)
    _asks: dict[int, GangRequest] = field(default_factory=dict)
    _came_s: float = 0.0

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Return the core's decision; then score and make estimates."""
        decision = self.core.decide(now_s, ended, arrived)
        for run in ended:
            ask = self._asks.pop(run.index)
            self._history.learn(ask.estimate_s, ask.executed_s, ask.weight)
        for run in decision.starts:
            if run.index in self._open:
                self._score(*self._open.pop(run.index), now_s)
        for run in arrived:
            ask = self._asks[run.index] = self.core.asks[run.index]
            ask.usual_s = self._history.expected_s(ask.estimate_s, ask.weight)
            gap_s, self._came_s = now_s - self._came_s, now_s
            self._recent.append(
                Arrival(
                    gap_s=gap_s,
                    shape=ask.shape,
                    learners=ask.learners,
                    length_s=ask.estimate_s,
                    mean_s=ask.mean_s,
                    queue=ask.queue,
                    restart_s=ask.restart_s,
                )
            )
            del self._recent[:-RECENT_ARRIVALS]
            if ask.since_s is None:
                self.waited += 1
                if self.asked is None or self.waited - 1 in self.asked:
                    self._estimate(run, now_s)
        return decision

    def _estimate(self, run: Run, now_s: float) -> None:
        world = World.of(self.core.scheduler, now_s)
        # Under strict age order later arrivals do not matter.
        recent = () if self.core.policy.is_strict else self._recent
        found = outlooks(
            world, now_s, spread=self.spread, recent=recent, draws=self.draws, seed=run.index, of=[run.index]
        )
        if run.index in found:
            self._open[run.index] = (found[run.index], width_factor(self._held))

    def _score(self, outlook: Outlook, factor: float, now_s: float) -> None:
        estimate = ScoredEstimate(
            outlook.now_s, outlook.likely_s, outlook.between(0.5, factor), outlook.between(0.8, factor), now_s
        )
        self.estimates.append(estimate)
        self._held.append(_holds(estimate.most, now_s))
