"""Event loop of the simulator: submissions, ends and wake-ups in virtual time, and one decision at each of them.

Pure: no clock, no IO, no chance. Times are seconds from the start of the trace; where a trace has whole seconds, every
time stays whole. Events of one time are passed on together: ends before submissions, then one decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from dlaas_server.sim.trace.trace import Trace, TraceJob
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["Decision", "Done", "Replay", "Rule", "Run", "Unrunnable", "replay"]


class Unrunnable(DlaasError):
    """Trace that cannot be replayed on this pool. The message names the job and the reason."""

    code = "unrunnable"
    http_status = 400


@dataclass(slots=True, eq=False)
class Run:
    """Job in the simulation. Only the loop changes it; rules may read and keep it."""

    index: int
    """Position in the trace: by time of submission, then in file order."""
    job: TraceJob
    gpus: int
    held_gpus: float
    """GPUs that it holds while it runs: less than `gpus` if it requests a share of one."""
    work_s: float
    """Remaining run time in seconds when the job was last started or stopped."""
    executed_s: float = 0
    """Run time in seconds at that moment, without restarts."""
    since_s: float | None = None
    """Time since which it runs; None while it waits. A job runs from the end of its restart on."""
    end_s: float = 0
    """Time of its end unless it is stopped; valid while it runs."""
    first_s: float | None = None
    preemptions: int = 0
    starts: int = 0

    def executed_at(self, now_s: float) -> float:
        """Return its run time until now, in seconds."""
        return self.executed_s if self.since_s is None else self.executed_s + max(0, now_s - self.since_s)


@dataclass(slots=True)
class Decision:
    """Decision of a rule. `wake_s`: time of the next decision if no event arrives before."""

    starts: Sequence[Run] = ()
    stops: Sequence[Run] = ()
    wake_s: float | None = None
    is_blocked: bool = False
    """True if enough GPUs are free for the first waiting job, but not where it needs them."""


class Rule(Protocol):
    """Scheduling rule. It receives all events and keeps its own queue."""

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Return the jobs to start and to stop. Jobs in `ended` ran until now and have freed their GPUs."""
        ...


@dataclass(slots=True)
class Done:
    """Outcome of a job."""

    job: TraceJob
    start_s: float
    end_s: float
    preemptions: int

    @property
    def jct_s(self) -> float:
        """Return the job completion time: from submission to end."""
        return self.end_s - self.job.submit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of a replay. Times in seconds; integrals are over the time from first submission to last end."""

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
    """Time that the first waiting job waited only because of fragmentation."""
    blocked_free_gpu_s: float
    """Integral of free GPUs over that time."""
    timeline: tuple[tuple[float, int, int], ...]
    """(time, GPUs in use, jobs waiting) after each event."""


_End = tuple[float, int, int, Run]
"""End, index, number of starts; outdated once the job was stopped."""


def replay(trace: Trace, gpus: int, rule: Rule, *, restart_s: float = 0) -> Replay:
    """Replay a trace under a rule on a pool of `gpus` GPUs.

    A job that was preempted holds its GPUs for `restart_s` before it continues, at each restart.
    Raises Unrunnable if jobs are left that the rule never starts.
    """
    jobs = trace.jobs
    works_s = [_work_s(job) for job in jobs]
    submits_s: list[float] = [job.submit_s for job in jobs]
    submits_s.append(inf)
    done: list[Done | None] = [None] * len(jobs)
    ends: list[_End] = []
    timeline: list[tuple[float, int, int]] = []
    busy: float = 0
    queued = came = outdated = queued_max = 0
    wake_s: float | None = None
    is_blocked = False
    last_s = jobs[0].submit_s
    busy_gpu_s: float = 0
    queued_s: float = 0
    blocked_s: float = 0
    blocked_free_gpu_s: float = 0
    while True:
        while outdated and ends and _is_outdated(ends[0]):
            heappop(ends)
            outdated -= 1
        now_s = submit_s = submits_s[came]
        end_s = ends[0][0] if ends else inf
        if end_s <= submit_s:
            if end_s == inf:
                break
            now_s = end_s
        if wake_s is not None and wake_s < now_s:
            now_s = wake_s
        passed_s, last_s = now_s - last_s, now_s
        busy_gpu_s += busy * passed_s
        queued_s += queued * passed_s
        if is_blocked:
            blocked_s += passed_s
            blocked_free_gpu_s += (gpus - busy) * passed_s
        ended: list[Run] = []
        while end_s == now_s:
            entry = heappop(ends)
            end_s = ends[0][0] if ends else inf
            if outdated and _is_outdated(entry):
                outdated -= 1
                continue
            run = entry[3]
            done[run.index] = _end(run)
            busy -= run.held_gpus
            ended.append(run)
        arrived: list[Run] = []
        while submit_s == now_s:
            job = jobs[came]
            wanted = job.gpus
            arrived.append(Run(came, job, wanted, wanted if job.work is None else job.held_gpus, works_s[came]))
            came += 1
            queued += 1
            submit_s = submits_s[came]
        decision = rule.decide(now_s, ended, arrived)
        for run in decision.stops:
            _stop(run, now_s)
            outdated += 1
            queued += 1
            busy -= run.held_gpus
        for run in decision.starts:
            _start(run, now_s, restart_s)
            heappush(ends, (run.end_s, run.index, run.starts, run))
            busy += run.held_gpus
            queued -= 1
        assert busy <= gpus + 1e-6, f"{busy} of {gpus} GPUs were given at {now_s}"
        if queued > queued_max:
            queued_max = queued
        wake_s, is_blocked = decision.wake_s, decision.is_blocked
        timeline.append((now_s, round(busy), queued))
    all_done = _all(trace, gpus, done)
    return Replay(
        trace=trace,
        gpus=gpus,
        done=all_done,
        events=len(timeline),
        begin_s=jobs[0].submit_s,
        end_s=max([one.end_s for one in all_done]),
        busy_gpu_s=busy_gpu_s,
        queued_s=queued_s,
        queued_max=queued_max,
        blocked_s=blocked_s,
        blocked_free_gpu_s=blocked_free_gpu_s,
        timeline=tuple(timeline),
    )


def _work_s(job: TraceJob) -> float:
    if job.duration_s is None:
        raise Unrunnable(f"job {job.id} has no duration in the trace: this trace needs rules of its own")
    return job.duration_s


def _is_outdated(entry: _End) -> bool:
    run = entry[3]
    return run.since_s is None or run.starts != entry[2]


def _end(run: Run) -> Done:
    assert run.first_s is not None
    run.executed_s, run.work_s, run.since_s = run.executed_s + run.work_s, 0, None
    return Done(run.job, run.first_s, run.end_s, run.preemptions)


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


def _all(trace: Trace, gpus: int, done: Sequence[Done | None]) -> tuple[Done, ...]:
    ended = tuple([one for one in done if one is not None])
    if len(ended) < len(done):
        job = trace.jobs[done.index(None)]
        raise Unrunnable(f"job {job.id} ({job.gpus} GPUs) never runs on this pool of {gpus} GPUs")
    return ended
