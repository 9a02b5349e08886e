"""State of one plan: the pool, and what the phases have decided so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlaas_server.core.elasticity.resize import after_pending_changes, reduced_to
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Loan, Shape
from dlaas_server.core.placement.feasibility import PoolSize
from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.placement.shape import shape_of
from dlaas_server.core.planning.decisions import Plan, Preempt, Resized, Start, Wait
from dlaas_server.core.planning.immediate_start import ImmediateStarts
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.pass_result import PassResult
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.spot.reclaim import Reclaim, idle_capacity, planning_capacity, reclaims_for, with_seats

__all__ = ["PlanState", "gained_seats"]


def gained_seats(job: Job, change: Resized) -> tuple[Seat, ...]:
    """Return the seats of the change that the job does not hold yet."""
    return tuple((Counter(change.seats) - Counter(m.seat for m in job.gang)).elements())


@dataclass(slots=True)
class PlanState:
    """Plan in the making. Each phase (`phases.py`) reads what earlier ones decided, and adds its own decisions."""

    pool: Pool
    now_s: float
    policy: Policy
    order: Order | None
    future: Pool
    """Pool after pending changes: seats being released count as free."""
    capacity: FreeCapacity
    """Free capacity for decisions. Seats being released or lent count as free, but no job starts on them yet."""
    idle: FreeCapacity
    """Capacity held by no job, on which jobs can start now. The same object as `capacity` if nothing is lent."""
    size: PoolSize
    queue: list[Job] = field(default_factory=list)
    """Queued jobs in queue order, those that cannot start yet at the end."""
    requests: list[GangRequest] = field(default_factory=list)
    """Requests of queued jobs that may start now, in queue order."""
    waiting: list[GangRequest] = field(default_factory=list)
    """Requests that could fit but were not chosen: they wait for running jobs."""
    result: PassResult = field(default_factory=PassResult)
    """Decisions of the scheduler."""
    unchosen: FreeCapacity = field(default_factory=lambda: FreeCapacity(()))
    """Capacity once leaving jobs have left, without the seats of chosen jobs."""
    immediate: ImmediateStarts = field(default_factory=ImmediateStarts)
    is_blocked: bool = False
    """True if a job waits that could fit: no job grows then."""
    preempts: tuple[Preempt, ...] = ()
    shrinks: Mapping[str, tuple[tuple[Seat, ...], str]] = field(default_factory=dict)
    """Elastic jobs that make room: job -> seats that it keeps, job that it shrinks for."""
    changes: list[Resized] = field(default_factory=list)
    """Changes of size that are wanted, in part on lent seats."""
    resizes: list[Resized] = field(default_factory=list)
    """Changes of size and migrations that are possible now."""
    shortfalls: list[Wait] = field(default_factory=list)
    """Running jobs below their wished size."""
    reserved: dict[str, tuple[Shape, tuple[Seat, ...]]] = field(default_factory=dict)
    """Job -> seats that it gets once leaving jobs have left or spot jobs have given them back."""
    waits: tuple[Wait, ...] = ()
    wake_s: float | None = None

    @classmethod
    def of(cls, pool: Pool, now_s: float, policy: Policy, order: Order | None) -> PlanState:
        """Return the state before the first phase."""
        capacity = planning_capacity(pool)
        idle = idle_capacity(pool) if pool.lent else capacity
        return cls(pool, now_s, policy, order, after_pending_changes(pool), capacity, idle, PoolSize.of(pool.nodes))

    @property
    def starts(self) -> Mapping[str, tuple[Seat, ...]]:
        """Job that starts now -> its seats."""
        return self.immediate.seats

    def shape_of(self, job: str) -> Shape:
        """Return the shape of one learner of this job."""
        return shape_of(self.pool.jobs[job], self.policy.placement)

    def claim_starts(self) -> None:
        """Take the seats of starting jobs from the capacity for decisions, where that is not the idle one."""
        if self.capacity is not self.idle:
            for job, seats in self.starts.items():
                self.capacity.claim(self.shape_of(job), seats)

    def add_possible(self, changes: Iterable[Resized]) -> list[str]:
        """Add the changes that are possible now, and reserve the seats of the others. Return the jobs of the others.

        This is the only place where a change waits for spot jobs.
        """
        deferred = []
        for change in changes:
            shape, gained = self.shape_of(change.job), gained_seats(self.pool.jobs[change.job], change)
            if not self.pool.lent:
                self.resizes.append(change)
            elif self.idle.has(shape, gained):
                self.idle.claim(shape, gained)
                self.resizes.append(change)
            else:
                self.reserved[change.job] = shape, gained
                deferred.append(change.job)
        return deferred

    def new_seats(self) -> dict[str, tuple[Seat, ...]]:
        """Return the seats that jobs get by this plan, now or later, in addition to those they hold."""
        jobs = self.pool.jobs
        seats = dict(self.starts)
        seats |= {resize.job: gained for resize in self.resizes if (gained := gained_seats(jobs[resize.job], resize))}
        return seats | {job: reserved for job, (_, reserved) in self.reserved.items()}

    def reclaims(self, loans: Sequence[Loan], spot: Mapping[str, Job]) -> dict[str, Reclaim]:
        """Return the reclaims from spot jobs that free all reserved seats."""
        if not (self.pool.lent and self.reserved):
            return {}
        pool = reduced_to(self.future, {job: kept for job, (kept, _) in self.shrinks.items()})
        preempted = {preempt.job for preempt in self.preempts}
        jobs = {name: job for name, job in pool.jobs.items() if name not in preempted}
        jobs |= {name: with_seats(jobs[name], seats) for name, seats in self.starts.items() if name in jobs}
        for resize in self.resizes:
            if gained := gained_seats(self.pool.jobs[resize.job], resize):
                jobs[resize.job] = with_seats(jobs[resize.job], gained)
        return reclaims_for(idle_capacity(replace(pool, jobs=jobs)), self.reserved, loans, spot)

    def plan(self) -> Plan:
        """Return the decisions."""
        return Plan(
            starts=tuple(Start(job.id, self.starts[job.id]) for job in self.queue if job.id in self.starts),
            preempts=self.preempts,
            resizes=tuple(self.resizes),
            waits=(*self.waits, *self.shortfalls),
            wake_s=self.wake_s,
        )
