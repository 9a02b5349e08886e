"""The event loop of the simulator: submissions, ends and wake-ups in virtual time, and one decision at each of them.

Pure: no clock, no IO, no chance. Times are seconds from the start of the trace; where a trace has whole seconds, every
time stays whole. All that happens at one time is told at once: ends before submissions, then one decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dlaas_server.sim.trace import Trace, TraceJob
from jupyter_dlaas.wire import DlaasError

__all__ = ["Decision", "Done", "Replay", "Rule", "Run", "Unrunnable", "replay"]


class Unrunnable(DlaasError):
    """The trace cannot be replayed on this pool. The message says which job and why."""

    code = "unrunnable"
    http_status = 400


@dataclass(slots=True, eq=False)
class Run:
    """A job on its way through the simulation. Changed by the loop only; rules may read it and keep it."""

    index: int
    """Place in the trace: by time of submission, then as the file has it."""
    job: TraceJob
    gpus: int
    work_s: float
    """Seconds of running that the job still needed when it was last started or stopped."""
    executed_s: float = 0
    """Seconds it had run by then, restarts left out."""
    since_s: float | None = None
    """Since when it runs; None while it waits. A restart counts as running from its end on."""
    end_s: float = 0
    """When it ends if nothing comes between; true while it runs."""
    first_s: float | None = None
    preemptions: int = 0
    starts: int = 0

    def executed_at(self, now_s: float) -> float:
        """Seconds it has run until now."""
        return self.executed_s if self.since_s is None else self.executed_s + max(0, now_s - self.since_s)


@dataclass(slots=True)
class Decision:
    """What a rule wants now. `wake_s`: decide again then, though nothing else happens."""

    starts: Sequence[Run] = ()
    stops: Sequence[Run] = ()
    wake_s: float | None = None
    is_blocked: bool = False
    """The first in line finds as many free GPUs as it asks for, but not where it needs them."""


class Rule(Protocol):
    """Who runs. Told of all that happens; keeps its own queue."""

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """What to start and to stop. Jobs in `ended` ran until now and have freed what they held."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of a job."""

    job: TraceJob
    start_s: float
    end_s: float
    preemptions: int

    @property
    def jct_s(self) -> float:
        """Job completion time: from submission to end."""
        return self.end_s - self.job.submit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A trace that was replayed. Times in seconds; integrals are over the time from first submission to last end."""

    trace: Trace
    gpus: int
    done: tuple[Done, ...]
    """In the order of the trace."""
    events: int
    begin_s: float
    end_s: float
    busy_gpu_s: float
    queued_s: float
    """Integral of the number of waiting jobs."""
    queued_max: int
    blocked_s: float
    """How long the first in line was kept waiting by fragmentation alone."""
    blocked_free_gpu_s: float
    """Integral of free GPUs over that time."""
    timeline: tuple[tuple[float, int, int], ...]
    """(time, GPUs in use, jobs waiting) after each event."""


@dataclass(slots=True)
class _Meter:
    """What is added up between events."""

    now_s: float
    busy: float = 0
    queued: int = 0
    is_blocked: bool = False
    busy_gpu_s: float = 0
    queued_s: float = 0
    queued_max: int = 0
    blocked_s: float = 0
    blocked_free_gpu_s: float = 0
    timeline: list[tuple[float, int, int]] = field(default_factory=list)

    def advance(self, now_s: float, gpus: int) -> None:
        passed_s = now_s - self.now_s
        self.busy_gpu_s += self.busy * passed_s
        self.queued_s += self.queued * passed_s
        if self.is_blocked:
            self.blocked_s += passed_s
            self.blocked_free_gpu_s += (gpus - self.busy) * passed_s
        self.now_s = now_s

    def note(self) -> None:
        if self.queued > self.queued_max:
            self.queued_max = self.queued
        self.timeline.append((self.now_s, round(self.busy), self.queued))


def replay(trace: Trace, gpus: int, rule: Rule, *, restart_s: float = 0) -> Replay:
    """Replay a trace under a rule on a pool of `gpus` GPUs.

    A job that was preempted holds its GPUs for `restart_s` before it goes on, each time it is started again.
    Raises Unrunnable if jobs are left that the rule never starts.
    """
    runs = [Run(i, job, job.gpus, _work_s(job)) for i, job in enumerate(trace.jobs)]
    begin_s = runs[0].job.submit_s
    meter, wake_s, events, next_one = _Meter(begin_s), None, 0, 0
    ends: list[tuple[float, int, int]] = []  # (end, index, starts): outdated where the job was started again
    while True:
        while ends and _is_outdated(runs[ends[0][1]], ends[0]):
            heapq.heappop(ends)
        times = [ends[0][0]] if ends else []
        if next_one < len(runs):
            times.append(runs[next_one].job.submit_s)
        if not times:
            break
        now_s = min(times)
        if wake_s is not None and wake_s < now_s:
            now_s = wake_s
        events += 1
        meter.advance(now_s, gpus)
        ended: list[Run] = []
        while ends and ends[0][0] == now_s:
            entry = heapq.heappop(ends)
            run = runs[entry[1]]
            if not _is_outdated(run, entry):
                run.executed_s, run.work_s, run.since_s = run.executed_s + run.work_s, 0, None
                meter.busy -= run.job.held_gpus
                ended.append(run)
        first = next_one
        while next_one < len(runs) and runs[next_one].job.submit_s == now_s:
            next_one += 1
        meter.queued += next_one - first
        decision = rule.decide(now_s, ended, runs[first:next_one])
        for run in decision.stops:
            _stop(run, now_s)
            meter.busy -= run.job.held_gpus
            meter.queued += 1
        for run in decision.starts:
            _start(run, now_s, restart_s)
            heapq.heappush(ends, (run.end_s, run.index, run.starts))
            meter.busy += run.job.held_gpus
            meter.queued -= 1
        assert meter.busy <= gpus + 1e-6, f"{meter.busy} of {gpus} GPUs were given at {now_s}"
        wake_s, meter.is_blocked = decision.wake_s, decision.is_blocked
        meter.note()
    return _result(trace, gpus, runs, meter, events, begin_s)


def _work_s(job: TraceJob) -> float:
    if job.duration_s is None:
        raise Unrunnable(f"job {job.id} has no duration in the trace: this trace needs rules of its own")
    return job.duration_s


def _is_outdated(run: Run, entry: tuple[float, int, int]) -> bool:
    return run.since_s is None or run.starts != entry[2]


def _stop(run: Run, now_s: float) -> None:
    assert run.since_s is not None, f"job {run.job.id} does not run"
    ran_s = max(0, now_s - run.since_s)
    run.executed_s += ran_s
    run.work_s -= ran_s
    run.since_s = None
    run.preemptions += 1


def _start(run: Run, now_s: float, restart_s: float) -> None:
    assert run.since_s is None, f"job {run.job.id} runs already"
    assert run.work_s > 0, f"job {run.job.id} has ended"
    if run.first_s is None:
        run.first_s = now_s
    run.since_s = now_s + restart_s if run.preemptions else now_s
    run.end_s = run.since_s + run.work_s
    run.starts += 1


def _result(trace: Trace, gpus: int, runs: Sequence[Run], meter: _Meter, events: int, begin_s: float) -> Replay:
    done: list[Done] = []
    for run in runs:
        if run.first_s is None or run.work_s > 0:
            raise Unrunnable(f"job {run.job.id} ({run.gpus} GPUs) never runs on this pool of {gpus} GPUs")
        done.append(Done(job=run.job, start_s=run.first_s, end_s=run.end_s, preemptions=run.preemptions))
    return Replay(
        trace=trace,
        gpus=gpus,
        done=tuple(done),
        events=events,
        begin_s=begin_s,
        end_s=max(d.end_s for d in done),
        busy_gpu_s=meter.busy_gpu_s,
        queued_s=meter.queued_s,
        queued_max=meter.queued_max,
        blocked_s=meter.blocked_s,
        blocked_free_gpu_s=meter.blocked_free_gpu_s,
        timeline=tuple(meter.timeline),
    )
