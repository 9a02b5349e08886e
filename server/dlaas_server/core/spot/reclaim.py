"""What spot jobs of a pool hold, and which of them give how much of it back, for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, Member
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Loan, Shape
from dlaas_server.core.placement.free_capacity import Frees, free_of
from dlaas_server.core.placement.shape import shape_of
from dlaas_server.core.spot.spot_scheduler import in_the_way
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import State

__all__ = ["Back", "Promised", "free_in", "given_back", "holding", "idle_in", "loans_of"]

Promised = Mapping[str, tuple[Shape, tuple[Seat, ...]]]
"""Job -> seats that it gets as soon as they are free."""


def free_in(pool: Pool) -> Frees:
    """What is free for the jobs that are decided on: also what is being given up or lent, which is taken last."""
    frees = free_of(pool.nodes, (*pool.jobs.values(), *pool.taken))
    frees.lent = (*pool.leaving, *pool.lent)
    return frees


def idle_in(pool: Pool) -> Frees:
    """What nobody has."""
    frees = free_of(pool.nodes, (*pool.jobs.values(), *pool.taken))
    for loan in pool.lent:
        frees.claim(loan.shape, loan.seats)
    return frees


def loans_of(jobs: Iterable[Job], may_shrink: Callable[[Job], bool]) -> tuple[Loan, ...]:
    """What these spot jobs hold, in the order in which it is given back.

    First what is being given up already, then the learners beyond the least size of those that may shrink, then whole
    jobs: of the lowest priority, the youngest.
    """
    found: list[tuple[tuple[float, ...], Loan]] = []
    for job in jobs:
        gang, shape = [m.seat for m in job.gang], shape_of(job)
        least = min(job.spec.learners_min, len(gang)) if may_shrink(job) else len(gang)
        age = (job.priority, -(job.seated_s or 0.0), -job.number)
        old = tuple(m.seat for m in job.members if m.seat not in gang)

        def note(kind: int, *seats: Seat, job: Job = job, shape: Shape = shape, age: tuple[float, ...] = age) -> None:
            found.append(((kind, *age, -len(found)), Loan(job.id, job.spec.queue, shape, seats)))

        if old:
            note(0, *old)
        if gang[:least]:
            note(2 if _may_stop(job) else 0, *gang[:least])
        for seat in gang[least:]:
            note(1, seat)
    return tuple(loan for _, loan in sorted(found, key=lambda one: one[0]))


def _may_stop(job: Job) -> bool:
    """Not of one that leaves already, or just writes its results and ends."""
    return job.goal is Goal.RUN and not job.state.is_final and job.state is not State.STORING


@dataclass(frozen=True, slots=True)
class Back:
    """A spot job gives devices back for this winner, and keeps these seats; none: it stops."""

    job: str
    winner: str
    given: int
    """Devices; learners where no devices are asked for."""
    kept: tuple[Seat, ...]
    is_due: bool
    """It is to be told; else it is just doing so, or ends."""


def given_back(frees: Frees, promised: Promised, loans: Sequence[Loan], jobs: Mapping[str, Job]) -> dict[str, Back]:
    """Who gives what back, so that all can have what is promised to them.

    `frees`: what is free when those have left who are leaving; what is lent is taken there.
    """
    left, given, winners = list(loans), dict[str, list[Loan]](), dict[str, str]()
    for winner, (shape, seats) in promised.items():
        for loan in in_the_way(frees, shape, seats, left):
            left.remove(loan)
            frees.give(loan.shape, loan.seats)
            given.setdefault(loan.job, []).append(loan)
            winners.setdefault(loan.job, winner)
        frees.claim(shape, seats)
    out: dict[str, Back] = {}
    for name, theirs in sorted(given.items()):
        job = jobs[name]
        gone = Counter(seat for loan in theirs for seat in loan.seats)
        kept = tuple((Counter(m.seat for m in job.gang) - gone).elements())
        if len(kept) < job.spec.learners_min:
            kept = ()
        each = shape_of(job).gpus or 1
        is_due = _may_stop(job) and len(kept) < len(job.gang)
        given_up = len(gone) if kept and not is_due else len(job.gang) - len(kept)
        out[name] = Back(name, winners[name], given_up * each, kept, is_due)
    return out


def holding(job: Job, seats: Iterable[Seat]) -> Job:
    """The job as if it had these seats already, beside its own."""
    more = [Member(member=-1, generation=job.generation, rank=0, seat=seat) for seat in seats]
    return replace(job, members=(*job.members, *more))
