"""Jobs with iterations of several stages, which may share GPUs by taking turns, in virtual time.

Source: Zhao et al., "Multi-Resource Interleaving for Deep Learning Training" (Muri), SIGCOMM 2022, and the behaviour of
the simulator published with it, quirks included: at every event each running job loses its start-up time once, though
it was not restarted. A replay that can be compared needs this, the product must not have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isclose
from typing import Final, NamedTuple, Protocol

from dlaas_server.sim.replay.event_loop import Unrunnable
from dlaas_server.sim.trace.trace import Muri, TraceJob

__all__ = ["Plan", "Seat", "StagedJob", "StagedPool", "StagedRule", "Stages", "staged"]

ALONE: Final = 1.015
"""Ratio of the iteration time of a job alone to its profile."""
SIZES: Final = (1, 2, 4, 8, 16, 32)
STARTUP_S: Final[Mapping[str, tuple[int, ...]]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""Seconds until a model trains on each number of GPUs (`SIZES`), measured by the authors."""
STARTUP_UNKNOWN_S: Final = 10
COLUMNS: Final = ("model", "iterations", "iter_time_ms", "res0_ms", "res1_ms", "res2_ms")
CLOSE_S: Final = 1e-4


class Stages(NamedTuple):
    """Seconds per iteration: the whole of a job alone, then its stages on storage and CPUs, GPUs, network."""

    alone_s: float
    load_s: float
    compute_s: float
    sync_s: float

    @property
    def used_s(self) -> float:
        """Return the seconds in which it uses some resource."""
        return self.load_s + self.compute_s + self.sync_s


@dataclass(slots=True, eq=False)
class StagedJob:
    """Job in the simulation. Only the pool changes it; rules may read and keep it."""

    trace: TraceJob
    stages: Stages
    startup_s: float
    left: float
    """Iterations."""
    executed_s: float = 0.0
    """Seconds for which it held GPUs, alone or in a group."""
    seat: Seat | None = None
    start_s: float | None = None
    end_s: float = inf
    stops: int = 0

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the whole gang."""
        return self.trace.gpus

    @property
    def left_s(self) -> float:
        """Return the seconds that it would still run alone."""
        return self.left * self.stages.alone_s


@dataclass(frozen=True, slots=True)
class Seat:
    """Job that runs from now on, with the others of its group."""

    job: StagedJob
    group: tuple[StagedJob, ...]
    period_s: float
    """Seconds in which every job of the group does one iteration."""
    startup_s: float
    there: tuple[int, ...] = ()
    """Node of each GPU; empty if only the number of GPUs counts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Running jobs in the order of the rule, and the time of the next decision if no event arrives before."""

    seats: Sequence[Seat]
    busy: int
    """GPUs that are held."""
    wake_s: float = inf


class StagedRule(Protocol):
    """Rule that chooses running jobs and their groups. It keeps its own queue."""

    def decide(self, now_s: float, ended: Sequence[StagedJob], arrived: Sequence[StagedJob]) -> Plan:
        """Return all jobs that run from now on; the others wait."""
        ...


def staged(job: TraceJob) -> StagedJob:
    """Return the job with its stages. Raises Unrunnable if the trace does not contain them."""
    work = job.work
    if not isinstance(work, Muri):
        has = ("model", "iterations") if hasattr(work, "iterations") else ()
        missing = ", ".join(column for column in COLUMNS if column not in has)
        raise Unrunnable(
            f"job {job.id} has no stages: Muri's rules need the columns {missing}. Replay this trace by --order, or by"
            " other --rules"
        )
    size = next((place for place, size in enumerate(SIZES) if job.gpus <= size), len(SIZES) - 1)
    known = STARTUP_S.get(work.model)
    load_s, compute_s, sync_s = (ms / 1000 for ms in work.resources_ms)
    stages = Stages(work.iter_time_ms * ALONE / 1000, load_s, compute_s, sync_s)
    if stages.used_s <= 0:
        raise Unrunnable(f"job {job.id} has no time on any resource: one of res0_ms, res1_ms, res2_ms must be above 0")
    return StagedJob(job, stages, known[size] if known else STARTUP_UNKNOWN_S, float(work.iterations))


@dataclass(slots=True)
class StagedPool:
    """Simulation of jobs, in order of submission, under a rule."""

    gpus: int
    jobs: Sequence[StagedJob]
    rule: StagedRule
    timeline: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, GPUs in use, jobs waiting) after each event."""

    def play(self) -> None:
        """Run to the end of the last job. Raises Unrunnable if a job never runs."""
        here: list[StagedJob] = []
        came, then_s = 0, 0.0
        plan, ends = Plan((), 0), list[tuple[float, list[StagedJob]]]()
        while came < len(self.jobs) or here:
            submit_s = self.jobs[came].trace.submit_s if came < len(self.jobs) else inf
            end_s, first = min(ends, key=lambda end: end[0], default=(inf, []))
            now_s = submit_s if isclose(end_s, submit_s, abs_tol=CLOSE_S) else min(end_s, submit_s)
            if now_s == inf:
                job = here[0]
                raise Unrunnable(f"job {job.trace.id} ({job.gpus} GPUs) never runs on this pool of {self.gpus} GPUs")
            ended: list[StagedJob] = []
            arrived: list[StagedJob] = []
            if plan.wake_s < now_s:
                now_s = plan.wake_s
            else:
                if now_s == end_s or isclose(end_s, now_s, abs_tol=CLOSE_S):
                    ended = first
                while came < len(self.jobs) and self.jobs[came].trace.submit_s == now_s:
                    arrived.append(self.jobs[came])
                    came += 1
            for job in ended:
                job.end_s, job.seat = now_s, None
                here.remove(job)
            here += arrived
            for job in here:
                _advance(job, then_s, now_s)
            plan = self.rule.decide(now_s, ended, arrived)
            ends = self._seated(here, plan, now_s)
            then_s = now_s

    def _seated(self, here: Sequence[StagedJob], plan: Plan, now_s: float) -> list[tuple[float, list[StagedJob]]]:
        """Carry out a plan. Return the next ends, with those of (almost) the same time together."""
        stays = {seat.job for seat in plan.seats}
        for job in here:
            if job.seat is not None and job not in stays:
                job.seat = None
                job.stops += 1
        ends: list[tuple[float, list[StagedJob]]] = []
        for seat in plan.seats:
            job = seat.job
            job.seat = seat
            if job.start_s is None:
                job.start_s = now_s
            end_s = now_s + job.left * seat.period_s
            same = next((jobs for at_s, jobs in ends if isclose(at_s, end_s, rel_tol=1e-9)), None)
            if same is None:
                ends.append((end_s, [job]))
            else:
                same.append(job)
        assert plan.busy <= self.gpus, f"{plan.busy} of {self.gpus} GPUs were given at {now_s}"
        self.timeline.append((now_s, plan.busy, len(here) - len(plan.seats)))
        return ends


def _advance(job: StagedJob, then_s: float, now_s: float) -> None:
    seat = job.seat
    if seat is not None:
        job.left -= max(now_s - then_s - seat.startup_s, 0) / seat.period_s
        job.executed_s = job.executed_s + now_s - then_s
