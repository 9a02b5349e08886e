"""Spot scheduling: spot jobs use devices that ordinary jobs leave idle, until an ordinary job reclaims them.

Two schedulers share one pool. Ordinary jobs are scheduled as if nothing were lent: no spot job affects their starts.
Spot jobs then get what is left, by the same order. A spot job leaves if an ordinary job gets one of its seats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Loan, Shape
from dlaas_server.core.placement.gang_placement import Frees
from dlaas_server.core.scheduling.gang_request import Ask
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.core.scheduling.scheduler import Choice, Preemption, Scheduler

__all__ = ["Lending", "charged", "in_the_way"]


def in_the_way(frees: Frees, shape: Shape, seats: Sequence[Seat], loans: Iterable[Loan]) -> list[Loan]:
    """Return the loans to reclaim so that these seats become free. `frees`, in which they are taken, is unchanged."""
    wanted = {(seat.node, device) for seat in seats for device in seat.devices}
    nodes = {seat.node for seat in seats}
    found: list[Loan] = []
    others: list[Loan] = []
    for loan in loans:
        if any((seat.node, device) in wanted for seat in loan.seats for device in seat.devices):
            frees.give(loan.shape, loan.seats)
            found.append(loan)
        elif any(seat.node in nodes for seat in loan.seats):
            others.append(loan)
    while others and not frees.has(shape, seats):  # CPUs or memory
        loan = others.pop(0)
        frees.give(loan.shape, loan.seats)
        found.append(loan)
    for loan in found:
        frees.claim(loan.shape, loan.seats)
    return found


def charged(loans: Iterable[Loan], price: float) -> dict[str, float]:
    """Return the usage that each queue is charged for its loans, in devices."""
    held: dict[str, int] = {}
    for loan in loans:
        held[loan.queue] = held.get(loan.queue, 0) + loan.weight
    return {queue: price * weight for queue, weight in held.items()}


def _among_spot(policy: Policy) -> Policy:
    """Return the policy among spot jobs: no queue has a guarantee."""
    return replace(policy, shares={queue: Share(weight=share.size) for queue, share in policy.shares.items()})


class Lending:
    """A scheduler for ordinary jobs and one for spot jobs, with the interface of `Scheduler`."""

    def __init__(self, frees: Frees, policy: Policy, order: Order | None = None) -> None:
        self.ordinary = Scheduler(Frees((free.copy() for free in frees), frees.usual), policy, order)
        """Scheduler in which lent seats are free."""
        self.spot = Scheduler(frees, _among_spot(policy))
        """Scheduler of spot jobs. Its order learns nothing, since spot jobs say nothing about others.

        The spot price does not affect ranks, also in `las` and `gittins`: all spot jobs have the same price.
        """
        self._held: dict[int, tuple[Shape, tuple[Seat, ...]]] = {}
        """Seats of ordinary jobs, as recorded for the spot scheduler."""

    @property
    def frees(self) -> Frees:
        """Idle capacity, held by no job."""
        return self.spot.frees

    @property
    def policy(self) -> Policy:
        """Policy of the pool."""
        return self.ordinary.policy

    @property
    def order(self) -> Order:
        """Order of ordinary jobs."""
        return self.ordinary.order

    @property
    def waiting(self) -> int:
        """Number of waiting jobs."""
        return self.ordinary.waiting + self.spot.waiting

    @property
    def running(self) -> Mapping[int, Ask]:
        """All running jobs."""
        return {**self.ordinary.running, **self.spot.running}

    @property
    def head(self) -> Ask | None:
        """First job in queue order."""
        return self.ordinary.head or self.spot.head

    def line(self) -> list[Ask]:
        """Return all waiting jobs in queue order; spot jobs come behind all others."""
        return self.ordinary.line() + self.spot.line()

    def could_fit(self, ask: Ask) -> bool:
        """Return whether a waiting job would fit if nothing ran; a spot job: if no other spot job ran."""
        return self._of(ask).could_fit(ask)

    def _of(self, ask: Ask) -> Scheduler:
        return self.spot if ask.is_spot else self.ordinary

    def enter(self, ask: Ask, now_s: float, queued_s: float | None = None) -> None:
        """Add a job to the queue, waiting since `queued_s` (default: now)."""
        self._of(ask).enter(ask, now_s, queued_s)

    def adopt(self, ask: Ask, seats: tuple[Seat, ...], now_s: float, began_s: float | None = None) -> None:
        """Record a job that already runs, on seats that are not free."""
        self._of(ask).adopt(ask, seats, now_s, began_s)
        if ask.is_spot:
            self.ordinary.frees.give(ask.shape, seats)
        else:
            self._held[ask.number] = ask.shape, seats

    def leave(self, ask: Ask, now_s: float, *, has_ended: bool = True) -> None:
        """Remove a job that ended or was withdrawn."""
        self._of(ask).leave(ask, now_s, has_ended=has_ended and not ask.is_spot)
        self._released(ask)

    def reconsider(self, ask: Ask, now_s: float) -> None:
        """Recompute a job's place in the queue, or its expected end, after its estimate changed."""
        self._of(ask).reconsider(ask, now_s)

    def obey(self, policy: Policy, now_s: float) -> None:
        """Replace the policy."""
        self.ordinary.obey(policy, now_s)
        self.spot.obey(_among_spot(policy), now_s)

    def _released(self, ask: Ask) -> None:
        held = self._held.pop(ask.number, None)
        if held is not None:
            self.spot.frees.give(*held)
            self.spot.look_again()

    def decide(self, now_s: float) -> Choice:
        """Run one pass: start ordinary jobs, preempt spot jobs on their seats, start spot jobs on the rest."""
        loans = self._loans() if self.ordinary.waiting else []
        self.ordinary.frees.lent = loans
        if self.ordinary.policy.order == "fair":
            self.ordinary.charged = charged(loans, self.policy.spot_price)
        first = self.ordinary.decide(now_s)
        stops = list(first.stops)
        for stop in first.stops:
            self._released(stop.victim)
        for ask in first.starts:
            stops += self._make_way(ask, loans, now_s)
            self.spot.frees.claim(ask.shape, ask.seats)
            self._held[ask.number] = ask.shape, ask.seats
            self.spot.look_again()
        then = self.spot.decide(now_s)
        wakes = [wake_s for wake_s in (first.wake_s, then.wake_s) if wake_s is not None]
        reserved = first if first.reserved is not None else then
        return Choice(
            [*first.starts, *then.starts],
            [*stops, *then.stops],
            min(wakes, default=None),
            reserved.reserved,
            reserved.reserved_s,
        )

    def _loans(self) -> list[Loan]:
        """Return the loans, lowest priority and youngest first."""
        running = sorted(self.spot.running.values(), key=lambda one: (one.priority, -one.began_s, -one.number))
        return [Loan(str(one.number), one.queue, one.shape, one.seats) for one in running]

    def _make_way(self, ask: Ask, loans: Sequence[Loan], now_s: float) -> list[Preemption]:
        """Return the spot jobs on these seats to the queue, with their place."""
        there = [loan for loan in loans if int(loan.job) in self.spot.running]
        victims = [self.spot.running[int(one.job)] for one in in_the_way(self.spot.frees, ask.shape, ask.seats, there)]
        for victim in victims:
            self.spot.leave(victim, now_s, has_ended=False)
            self.spot.enter(victim, now_s)
        return [Preemption(victim, ask) for victim in victims]
