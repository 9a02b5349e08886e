"""Replay with the production core: its scheduler receives the simulator's events and decides."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.resources import WHOLE, Shape
from dlaas_server.core.placement.gang_placement import Layout, free_of
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.pass_result import IDLE
from dlaas_server.core.scheduling.run_length import History
from dlaas_server.core.scheduling.scheduler import Policy, Scheduler
from dlaas_server.core.spot.spot_scheduler import SpotScheduler
from dlaas_server.sim.replay.event_loop import Decision, Run, Unrunnable
from dlaas_server.sim.trace.trace import NodeSpec, Pod, Task, TraceJob, Work
from jupyter_dlaas.wire.protocol import Placement

__all__ = ["ByCore", "nodes_of", "shape_in"]

GB = 10**9
NOTHING: Final = Decision()


def nodes_of(specs: Iterable[NodeSpec]) -> tuple[Node, ...]:
    """Return the core's nodes. CPUs or memory that are not given are not counted."""
    return tuple(
        Node(
            name=spec.name,
            devices=tuple(Device(id=f"{spec.name}/{i}", index=i, kind=spec.kind) for i in range(spec.gpus)),
            cpus=spec.cpus,
            memory_bytes=round(spec.mem_gb * GB),
            disk_mbps=spec.disk_mbps,
            net_mbps=spec.net_mbps,
            area=spec.area,
            rack=spec.rack,
        )
        for spec in specs
    )


def shape_in(job: TraceJob, specs: Sequence[NodeSpec], placement: Layout | Placement) -> Shape:
    """Return the request of one learner, limited to the resources that the pool's nodes count."""
    task = job.work if isinstance(job.work, Task) else None
    pod = job.work if isinstance(job.work, Pod) and job.gpus_per_learner else None
    return Shape(
        gpus=job.gpus_per_learner,
        cpus=job.cpus_per_learner if any(spec.cpus for spec in specs) else 0.0,
        memory_bytes=round(job.mem_gb_per_learner * GB) if any(spec.mem_gb for spec in specs) else 0,
        gpu_kind=pod.gpu_spec or None if pod else None,
        placement=Layout(placement.value),
        disk_mbps=task.disk_mbps if task and any(spec.disk_mbps for spec in specs) else 0.0,
        net_mbps=task.net_mbps if task and any(spec.net_mbps for spec in specs) else 0.0,
        milli=pod.gpu_milli if pod else WHOLE,
    )


def _rest(work: Work) -> tuple[object, ...] | None:
    """Return resources that only some trace formats contain."""
    if isinstance(work, Task):
        return work.disk_mbps, work.net_mbps
    return (work.gpu_milli, work.gpu_spec) if isinstance(work, Pod) else None


@dataclass(slots=True)
class ByCore:
    """Core scheduler under a policy, with estimates that are wrong by a log-normal factor of σ `estimate_error`."""

    specs: Sequence[NodeSpec]
    policy: Policy = field(default_factory=Policy)
    placement: Layout | Placement = Layout.PACK
    restart_s: float = 0.0
    estimate_error: float | None = 0.0
    """None: no estimates."""
    reports_after: float | None = None
    """Share of its run time after which the length of a job that counts steps is known; None: never."""
    seed: int = 0
    lends: bool = False
    """True if the trace has spot jobs."""
    scheduler: Scheduler | SpotScheduler = field(init=False)
    asks: dict[int, GangRequest] = field(init=False, default_factory=dict)
    """Unfinished jobs, by place in the trace."""
    _shapes: dict[object, tuple[Shape, int]] = field(init=False, default_factory=dict)
    _runs: list[Run] = field(init=False, default_factory=list)
    """Jobs that have arrived, in the order of the trace."""
    history: History = field(init=False, default_factory=History)
    _guesses: dict[int, float | None] = field(init=False, default_factory=dict)
    _batches: dict[str, float] = field(init=False, default_factory=dict)
    _learns: bool = field(init=False)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        kind = SpotScheduler if self.lends else Scheduler
        self.scheduler = kind(free_of(nodes_of(self.specs), ()), self.policy)
        # What ended jobs teach is needed where lengths are guessed wrong or not at all, and where they matter.
        self._learns = self.estimate_error != 0 and (
            self.estimate_error is None or self.scheduler.order.lifted is not None
        )
        self._chance = random.Random(self.seed)  # noqa: S311  # no secret

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Pass the events to the scheduler and return its decision."""
        scheduler, runs = self.scheduler, self._runs
        if self.reports_after is not None:
            self._hear(self.reports_after, now_s)
        for run in ended:
            index, work = run.index, run.job.work
            ask = self.asks.pop(index)
            if ask.spread == 0.0:
                ask.estimate_s = self._guesses[index]  # what was guessed is what others can learn from
            scheduler.remove(ask, now_s)
            if work is not None and isinstance(work, Task):
                self._shorten(work.job, run.job.duration_s or 0.0, now_s)
            if self._learns:
                self.history.learn(self._guesses.pop(index), ask.executed_s, ask.weight)
        if self._learns and self.history.is_due:
            self._look(now_s)
        if arrived and arrived[0].job.work is not None:
            self._note_batches(arrived)
        for run in arrived:
            ask = self.asks[run.index] = self._ask(run)
            runs.append(run)
            scheduler.enqueue(ask, now_s)
        choice = scheduler.decide(now_s)
        is_blocked = scheduler.capacity.devices > 0 and scheduler.waiting_count > 0 and self._is_blocked()
        if choice is IDLE and not is_blocked:
            return NOTHING
        return Decision(
            [runs[ask.number] for ask in choice.starts] if choice.starts else (),
            [runs[one.victim.number] for one in choice.stops] if choice.stops else (),
            choice.wake_s,
            is_blocked,
        )

    def _look(self, now_s: float) -> None:
        """Reorder all jobs by the estimates corrected with the run lengths seen so far."""
        self.history.look((ask.weight, ask.executed(now_s)) for ask in self.asks.values())
        for number, ask in self.asks.items():
            mean_s = self.history.mean_s(self._guesses[number], ask.weight)
            if ask.spread is None and ask.mean_s != mean_s:
                ask.mean_s = mean_s
                self.scheduler.update_estimate(ask, now_s)

    def _hear(self, share: float, now_s: float) -> None:
        """Apply the lengths that running jobs have reported by now."""
        for number, ask in self.asks.items():
            length_s = self._runs[number].job.duration_s or 0.0
            if not ask.waits and ask.spread is None and ask.executed(now_s) >= share * length_s:
                ask.estimate_s, ask.mean_s, ask.spread = length_s, length_s, 0.0
                if isinstance(self.scheduler, Scheduler):
                    self.scheduler.update_estimate(ask, now_s)

    def _ask(self, run: Run) -> GangRequest:
        shape, learners = self._shape(run.job)
        guess_s = None
        if self.estimate_error is not None:
            guess_s = run.work_s
            if self.estimate_error:
                guess_s *= math.exp(self._chance.gauss(0.0, self.estimate_error))
        usual_s = guess_s
        if self._learns:
            self._guesses[run.index] = guess_s
            usual_s = self.history.expected_s(guess_s, learners * (shape.gpus or 1))
        job, estimate_s = run.job, usual_s if guess_s is None else guess_s
        batch_s = 0.0 if job.work is None else self._batch_s(run)
        ask = GangRequest(  # by position: by name it takes 1.7 times as long
            run.index, shape, learners, job.submit_s, estimate_s, batch_s, usual_s, 0, job.queue, self.restart_s,
            job.spot,
        )  # fmt: skip
        if self._learns:
            ask.mean_s = self.history.mean_s(guess_s, ask.weight)
        return ask

    def _note_batches(self, arrived: Sequence[Run]) -> None:
        for run in arrived:
            if isinstance(work := run.job.work, Task):
                self._batches[work.job] = self._batches.get(work.job, 0.0) + run.work_s

    def _batch_s(self, run: Run) -> float:
        """Return the remaining work of the other tasks of the same job; all arrive at once."""
        return self._batches.get(run.job.work.job, 0.0) - run.work_s if isinstance(run.job.work, Task) else 0.0

    def _shorten(self, batch: str, done_s: float, now_s: float) -> None:
        """Reduce the remaining work of the waiting tasks of a batch after one of them ended."""
        self._batches[batch] -= done_s
        for ask in self.asks.values():
            work = self._runs[ask.number].job.work
            if ask.waits and isinstance(work, Task) and work.job == batch:
                ask.batch_s -= done_s
                self.scheduler.update_estimate(ask, now_s)

    def _shape(self, job: TraceJob) -> tuple[Shape, int]:
        rest = None if job.work is None else _rest(job.work)
        asked = (job.learners, job.gpus_per_learner, job.cpus_per_learner, job.mem_gb_per_learner, rest)
        found = self._shapes.get(asked)
        if found is None:
            shape = shape_in(job, self.specs, self.placement)
            learners = job.learners
            if learners == 1 and shape.is_plain and shape.gpus > max(spec.gpus for spec in self.specs):
                shape, learners = replace(shape, gpus=1), shape.gpus
            if free_of(nodes_of(self.specs), ()).fit_count(shape, learners) < learners:
                asks = f"{job.learners} x {job.gpus_per_learner} GPUs"
                pool = f"{count(len(self.specs), 'node')}, {count(sum(spec.gpus for spec in self.specs), 'GPU')}"
                raise Unrunnable(f"job {job.id} ({asks}) does not fit an empty pool ({pool}): say another with --pool")
            found = self._shapes[asked] = (shape, learners)
        return found

    def _is_blocked(self) -> bool:
        head = self.scheduler.head
        return head is not None and head.weight <= self.scheduler.capacity.devices
