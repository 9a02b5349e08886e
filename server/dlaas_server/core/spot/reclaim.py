"""Reclaim: devices lent to spot jobs, and which of them go back to which ordinary job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, Member
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Loan, Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity, free_of
from dlaas_server.core.placement.shape import shape_of
from dlaas_server.core.spot.spot_scheduler import blocking_loans
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import State

__all__ = [
    "PROMISED",
    "Reclaim",
    "ReservedSeats",
    "idle_capacity",
    "loans_of",
    "planning_capacity",
    "reclaims_for",
    "with_seats",
]

PROMISED: Final = -2
"""Member number of learners whose seats spot jobs have to give back first."""

ReservedSeats = Mapping[str, tuple[Shape, tuple[Seat, ...]]]
"""Job -> seats that it gets once they are free."""


def planning_capacity(pool: Pool) -> FreeCapacity:
    """Return the free capacity for planning. It includes seats being released or lent, which are taken last."""
    capacity = free_of(pool.nodes, (*pool.jobs.values(), *pool.taken))
    capacity.lent = (*pool.leaving, *pool.lent)
    return capacity


def idle_capacity(pool: Pool) -> FreeCapacity:
    """Return the idle capacity, held by no job."""
    capacity = free_of(pool.nodes, (*pool.jobs.values(), *pool.taken))
    for loan in pool.lent:
        capacity.claim(loan.shape, loan.seats)
    return capacity


def loans_of(jobs: Iterable[Job], may_shrink: Callable[[Job], bool]) -> tuple[Loan, ...]:
    """Return the seats of these spot jobs, in the order in which they are reclaimed.

    First seats that are being released already, then learners beyond the least size of jobs that may shrink, then whole
    jobs: lowest priority and youngest first.
    """
    loans: list[tuple[tuple[float, ...], Loan]] = []
    for job in jobs:
        gang, shape = [m.seat for m in job.gang], shape_of(job)
        least = min(job.spec.learners_min, len(gang)) if may_shrink(job) else len(gang)
        age = (job.priority, -(job.seated_s or 0.0), -job.number)
        old = _left_beside(job)

        def note(kind: int, *seats: Seat, job: Job = job, shape: Shape = shape, age: tuple[float, ...] = age) -> None:
            loans.append(((kind, *age, -len(loans)), Loan(job.id, job.spec.queue, shape, seats)))

        if old:
            note(0, *old)
        if gang[:least]:
            note(2 if _may_stop(job) else 0, *gang[:least])
        for seat in gang[least:]:
            note(1, seat)
    return tuple(loan for _, loan in sorted(loans, key=lambda entry: entry[0]))


def _left_beside(job: Job) -> tuple[Seat, ...]:
    """Return the seats of learners that still leave, beside those of the gang. Seats without devices may be equal."""
    leaving = Counter(m.seat for m in job.members if m.generation != job.generation)
    used_again = Counter(m.seat for m in job.gang if m.seat.devices or not job.is_live)
    return tuple((leaving - used_again).elements())


def _may_stop(job: Job) -> bool:
    """Return whether the job may be stopped: it is not leaving already, nor writing its results."""
    return job.goal is Goal.RUN and not job.state.is_final and job.state is not State.STORING


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Reclaim from a spot job for `winner`. The job keeps these seats; without any, it stops."""

    job: str
    winner: str
    given: int
    """Number of devices; number of learners if no devices are requested."""
    kept: tuple[Seat, ...]
    is_due: bool
    """True if the job must still be asked; False if it is releasing the seats already, or ends."""


def reclaims_for(
    capacity: FreeCapacity, reserved: ReservedSeats, loans: Sequence[Loan], jobs: Mapping[str, Job]
) -> dict[str, Reclaim]:
    """Return the reclaims that free all reserved seats.

    `capacity`: capacity after pending changes, in which lent seats are taken.
    """
    left, given, winners = list(loans), dict[str, list[Loan]](), dict[str, str]()
    for winner, (shape, seats) in reserved.items():
        for loan in blocking_loans(capacity, shape, seats, left):
            left.remove(loan)
            capacity.give(loan.shape, loan.seats)
            given.setdefault(loan.job, []).append(loan)
            winners.setdefault(loan.job, winner)
        capacity.claim(shape, seats)
    reclaims: dict[str, Reclaim] = {}
    for name, own_loans in sorted(given.items()):
        job = jobs[name]
        gone = Counter(seat for loan in own_loans for seat in loan.seats)
        kept = tuple((Counter(m.seat for m in job.gang) - gone).elements())
        if len(kept) < job.spec.learners_min:
            kept = ()
        each = shape_of(job).gpus or 1
        is_due = _may_stop(job) and len(kept) < len(job.gang)
        given_up = len(gone) if kept and not is_due else len(job.gang) - len(kept)
        reclaims[name] = Reclaim(name, winners[name], given_up * each, kept, is_due)
    return reclaims


def with_seats(job: Job, seats: Iterable[Seat], member: int = -1) -> Job:
    """Return the job as if it held these seats in addition to its own. `member`: number of these learners."""
    more = [Member(member=member, generation=job.generation, rank=0, seat=seat) for seat in seats]
    return replace(job, members=(*job.members, *more))
