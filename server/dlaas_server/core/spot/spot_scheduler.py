"""Spot scheduling: spot jobs use devices that ordinary jobs leave idle, until an ordinary job reclaims them.

Two schedulers share one pool. Ordinary jobs are scheduled as if nothing were lent: no spot job affects their starts.
Spot jobs then get what is left, by the same order. A spot job leaves if an ordinary job gets one of its seats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Loan, Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.core.scheduling.scheduler import PassResult, Preempted, Scheduler

__all__ = ["SpotScheduler", "blocking_loans", "spot_usage"]


def blocking_loans(capacity: FreeCapacity, shape: Shape, seats: Sequence[Seat], loans: Iterable[Loan]) -> list[Loan]:
    """Return the loans to reclaim so that these seats become free. `capacity`, where they are taken, is unchanged."""
    wanted = {(seat.node, device) for seat in seats for device in seat.devices}
    nodes = {seat.node for seat in seats}
    found: list[Loan] = []
    others: list[Loan] = []
    for loan in loans:
        if any((seat.node, device) in wanted for seat in loan.seats for device in seat.devices):
            capacity.give(loan.shape, loan.seats)
            found.append(loan)
        elif any(seat.node in nodes for seat in loan.seats):
            others.append(loan)
    while others and not capacity.has(shape, seats):  # CPUs or memory
        loan = others.pop(0)
        capacity.give(loan.shape, loan.seats)
        found.append(loan)
    for loan in found:
        capacity.claim(loan.shape, loan.seats)
    return found


def spot_usage(loans: Iterable[Loan], price: float) -> dict[str, float]:
    """Return the usage that each queue is charged for its loans, in devices."""
    held: dict[str, int] = {}
    for loan in loans:
        held[loan.queue] = held.get(loan.queue, 0) + loan.weight
    return {queue: price * weight for queue, weight in held.items()}


def _among_spot(policy: Policy) -> Policy:
    """Return the policy among spot jobs: no queue has a guarantee."""
    return replace(policy, shares={queue: Share(weight=share.size) for queue, share in policy.shares.items()})


class SpotScheduler:
    """A scheduler for ordinary jobs and one for spot jobs, with the interface of `Scheduler`."""

    def __init__(self, capacity: FreeCapacity, policy: Policy, order: Order | None = None) -> None:
        self.ordinary = Scheduler(FreeCapacity((free.copy() for free in capacity), capacity.usual), policy, order)
        """Scheduler in which lent seats are free."""
        self.spot = Scheduler(capacity, _among_spot(policy))
        """Scheduler of spot jobs. Its order learns nothing, since spot jobs say nothing about others.

        The spot price does not affect ranks, also in `las` and `gittins`: all spot jobs have the same price.
        """
        self._held: dict[int, tuple[Shape, tuple[Seat, ...]]] = {}
        """Seats of ordinary jobs, as recorded for the spot scheduler."""

    @property
    def capacity(self) -> FreeCapacity:
        """Idle capacity, held by no job."""
        return self.spot.capacity

    @property
    def policy(self) -> Policy:
        """Policy of the pool."""
        return self.ordinary.policy

    @property
    def order(self) -> Order:
        """Order of ordinary jobs."""
        return self.ordinary.order

    @property
    def waiting_count(self) -> int:
        """Number of waiting jobs."""
        return self.ordinary.waiting_count + self.spot.waiting_count

    @property
    def running(self) -> Mapping[int, GangRequest]:
        """All running jobs."""
        return {**self.ordinary.running, **self.spot.running}

    @property
    def head(self) -> GangRequest | None:
        """First job in queue order."""
        return self.ordinary.head or self.spot.head

    def queue_order(self) -> list[GangRequest]:
        """Return all waiting jobs in queue order; spot jobs come behind all others."""
        return self.ordinary.queue_order() + self.spot.queue_order()

    def could_fit(self, request: GangRequest) -> bool:
        """Return whether a waiting job would fit if nothing ran; a spot job: if no other spot job ran."""
        return self._of(request).could_fit(request)

    def _of(self, request: GangRequest) -> Scheduler:
        return self.spot if request.is_spot else self.ordinary

    def enqueue(self, request: GangRequest, now_s: float, queued_s: float | None = None) -> None:
        """Add a job to the queue, waiting since `queued_s` (default: now)."""
        self._of(request).enqueue(request, now_s, queued_s)

    def add_running(
        self, request: GangRequest, seats: tuple[Seat, ...], now_s: float, began_s: float | None = None
    ) -> None:
        """Record a job that already runs, on seats that are not free."""
        self._of(request).add_running(request, seats, now_s, began_s)
        if request.is_spot:
            self.ordinary.capacity.give(request.shape, seats)
        else:
            self._held[request.number] = request.shape, seats

    def remove(self, request: GangRequest, now_s: float, *, has_ended: bool = True) -> None:
        """Remove a job that ended or was withdrawn."""
        self._of(request).remove(request, now_s, has_ended=has_ended and not request.is_spot)
        self._released(request)

    def update_estimate(self, request: GangRequest, now_s: float) -> None:
        """Recompute a job's place in the queue, or its expected end, after its estimate changed."""
        self._of(request).update_estimate(request, now_s)

    def set_policy(self, policy: Policy, now_s: float) -> None:
        """Replace the policy."""
        self.ordinary.set_policy(policy, now_s)
        self.spot.set_policy(_among_spot(policy), now_s)

    def _released(self, request: GangRequest) -> None:
        held = self._held.pop(request.number, None)
        if held is not None:
            self.spot.capacity.give(*held)
            self.spot.capacity_changed()

    def decide(self, now_s: float) -> PassResult:
        """Run one pass: start ordinary jobs, preempt spot jobs on their seats, start spot jobs on the rest."""
        loans = self._loans() if self.ordinary.waiting_count else []
        self.ordinary.capacity.lent = loans
        if self.ordinary.policy.order == "fair":
            self.ordinary.charge_spot_usage(spot_usage(loans, self.policy.spot_price))
        first = self.ordinary.decide(now_s)
        stops = list(first.stops)
        for stop in first.stops:
            self._released(stop.victim)
        for request in first.starts:
            stops += self._make_way(request, loans, now_s)
            self.spot.capacity.claim(request.shape, request.seats)
            self._held[request.number] = request.shape, request.seats
            self.spot.capacity_changed()
        then = self.spot.decide(now_s)
        wakes = [wake_s for wake_s in (first.wake_s, then.wake_s) if wake_s is not None]
        reserved = first if first.reserved is not None else then
        return PassResult(
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

    def _make_way(self, request: GangRequest, loans: Sequence[Loan], now_s: float) -> list[Preempted]:
        """Return the spot jobs on these seats to the queue, with their place."""
        there = [loan for loan in loans if int(loan.job) in self.spot.running]
        victims = [
            self.spot.running[int(one.job)]
            for one in blocking_loans(self.spot.capacity, request.shape, request.seats, there)
        ]
        for victim in victims:
            self.spot.remove(victim, now_s, has_ended=False)
            self.spot.enqueue(victim, now_s)
        return [Preempted(victim, request) for victim in victims]
