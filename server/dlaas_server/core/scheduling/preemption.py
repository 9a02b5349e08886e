"""Preemption: the running jobs that may be stopped for a waiting one, and the choice of victims among them.

A job may be preempted for a higher priority at once, and for a better rank after the waiting job was patient. In order
`fair`, a queue within its guarantee reclaims devices that other queues borrow.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.placement.future_capacity import NodeResources, learners_gained, learners_that_fit
from dlaas_server.core.scheduling.fair_share import FairShare
from dlaas_server.core.scheduling.fit import max_fitting_weight, take_seats
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import SLACK_S, Order, Slices
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.running_set import RunningSet
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import RANK, RETRY, VICTIM, Timers

__all__ = ["Preemption", "VictimIndex", "victims_for"]

MAX_VICTIMS: Final = 1024
"""Maximum number of victims examined for one waiting job."""
Rank = tuple[int, int]
"""Priority and rank."""


@dataclass(slots=True)
class VictimIndex:
    """Jobs that may be preempted, by priority and rank, then by start time."""

    weights: dict[Rank, int] = field(default_factory=dict)
    """(priority, rank) -> devices that these jobs hold."""
    _by_rank: dict[Rank, list[tuple[float, int]]] = field(default_factory=dict)

    def add(self, request: GangRequest) -> None:
        """Add a job that may be preempted from now on."""
        rank = (request.priority, request.rank)
        insort(self._by_rank.setdefault(rank, []), (request.began_s, request.number))
        self.weights[rank] = self.weights.get(rank, 0) + request.weight
        request.is_victim = True

    def drop(self, request: GangRequest) -> None:
        """Remove a job; do nothing if it is not a possible victim."""
        if request.is_victim:
            rank = (request.priority, request.rank)
            victims = self._by_rank[rank]
            del victims[bisect_left(victims, (request.began_s, request.number))]
            self.weights[rank] -= request.weight
            request.is_victim = False

    def of(self, ranks: Iterable[Rank]) -> Iterator[int]:
        """Yield the numbers of jobs of these ranks: lowest priority, then worst rank, then youngest first."""
        for rank in sorted(ranks, key=lambda rank: (rank[0], -rank[1])):
            for _, number in reversed(self._by_rank[rank]):
                yield number


def victims_for(request: GangRequest, capacity: FreeCapacity, candidates: Iterable[GangRequest]) -> list[GangRequest]:
    """Return the shortest prefix of candidates whose seats, with the free ones, suffice for the gang; [] if none does.

    Candidates that free nothing on the nodes that fit the gang are left out.
    """
    shape = request.shape
    fitting = capacity.fit_count(shape, request.learners)
    by_node: dict[str, NodeResources] = {}
    prefix: list[GangRequest] = []
    for victim in candidates:
        prefix.append(victim)
        fitting += learners_gained(by_node, capacity, shape, victim.shape, victim.seats)
        if fitting >= request.learners:
            useful = {name for name, resources in by_node.items() if learners_that_fit(resources, shape)}
            return [victim for victim in prefix if any(seat.node in useful for seat in victim.seats)]
    return []


class Preemption:
    """Index of possible victims, kept up to date, and the choice of victims for a waiting job."""

    def __init__(
        self,
        capacity: FreeCapacity,
        policy: Policy,
        order: Order,
        running: RunningSet,
        guard: StarvationGuard,
        timers: Timers,
        fair_share: FairShare | None,
    ) -> None:
        self._capacity, self._policy, self._order = capacity, policy, order
        self._running, self._guard, self._timers, self._fair_share = running, guard, timers, fair_share
        self.watches_all = bool(order.gap)
        """True if the order can preempt or move a running job because of its rank: then each one is watched."""
        self._is_by_turn = isinstance(order, Slices)
        self._victims = VictimIndex()
        self.priority: int | None = None
        """Last priority that was seen."""
        self.is_possible = policy.preempts and (fair_share is not None or self.watches_all)
        """True if preemption is enabled and ranks or priorities differ.

        Otherwise no job is ever preempted, and the passage of time alone changes nothing.
        """

    # -- possible victims ---------------------------------------------------------------------------------------------

    def see_priority(self, priority: int, now_s: float) -> None:
        """Record the priority. From the second distinct priority on, running jobs may be preempted."""
        if priority == self.priority:
            return
        is_second, self.priority = self.priority is not None, priority
        if is_second and self._policy.preempts and not self.is_possible:
            self.is_possible = True
            for request in self._running.jobs.values():
                self._watch_protection(request, now_s)

    def watch(self, request: GangRequest, now_s: float) -> None:
        """Start to watch a job that runs: its rank, and the end of its protection from preemption."""
        if self.watches_all:
            request.rank, changes_s = self._rank(request, now_s)
            if changes_s is not None:
                self._timers.add(changes_s, RANK, request)
        if self.is_possible:
            self._watch_protection(request, now_s)

    def _watch_protection(self, request: GangRequest, now_s: float) -> None:
        if request.is_preemptible:
            safe_s = request.began_s + self._policy.ran_factor * request.restart_s
            if request.lateness is Lateness.STARVING:
                safe_s = max(safe_s, request.began_s + self._guard.bound_s(request))
            if safe_s <= now_s:
                self._victims.add(request)
            else:
                self._timers.add(safe_s, VICTIM, request)

    def end_protection(self, request: GangRequest) -> None:
        """Allow the preemption of a job whose protection ended."""
        self._victims.add(request)

    def drop(self, request: GangRequest) -> None:
        """Remove a possible victim that no longer runs."""
        self._victims.drop(request)

    def _rank(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        """Return the rank of a running job, and the time at which it changes.

        A job that was lifted makes room only for late jobs (-1). A late job makes room for none (-2) until it has held
        its seats for as long as its bound.
        """
        if request.lateness is Lateness.LIFTED:
            return -1, None
        is_safe = request.lateness and (self._fair_share is None or request.lateness is Lateness.STARVING)
        safe_s = request.began_s + self._guard.bound_s(request) if is_safe else now_s
        if now_s < safe_s:
            return -2, safe_s
        return self._order.rank_until(request, now_s)

    def rerank(self, request: GangRequest, now_s: float) -> bool:
        """Recompute the rank of a running job. Return whether more jobs may preempt it now."""
        was_victim, before = request.is_victim, request.rank
        self._victims.drop(request)
        request.rank, changes_s = self._rank(request, now_s)
        if was_victim:
            self._victims.add(request)
        if changes_s is not None:
            self._timers.add(max(changes_s, now_s + SLACK_S), RANK, request)
        return was_victim and request.rank > before

    def reset(self, request: GangRequest, now_s: float) -> None:
        """Rank a running job again, after its order learned new run lengths."""
        self._victims.drop(request)
        request.version, request.patience_s = request.version + 1, -1.0
        self.watch(request, now_s)

    # -- choice -------------------------------------------------------------------------------------------------------

    def preempt_for(self, request: GangRequest, now_s: float) -> tuple[tuple[Seat, ...] | None, list[GangRequest]]:
        """Return seats for the job, taken, and the victims that hold some of them, as few as needed; or None and []."""
        candidates = self._candidates(request, now_s)
        if candidates is None:
            return None, []
        victims = victims_for(request, self._capacity, islice(candidates, MAX_VICTIMS))
        for victim in victims:
            self._capacity.give(victim.shape, victim.seats)
        seats = take_seats(self._capacity, request, now_s) if victims else None
        preempted: list[GangRequest] = []
        for victim in reversed(victims):
            if self._capacity.has(victim.shape, victim.seats):
                self._capacity.claim(victim.shape, victim.seats)
            else:
                preempted.append(victim)
        if seats is not None and not preempted:  # only free seats, kept for a job ahead
            self._capacity.give(request.shape, seats)
            return None, []
        return seats, preempted

    def _candidates(self, request: GangRequest, now_s: float) -> Iterator[GangRequest] | None:
        """Return the possible victims of this job, the first to be preempted first; None if they hold too little."""
        ranks, jobs = self._ranks_behind(request, now_s), self._running.jobs
        victims = self._victims
        fitting = max_fitting_weight(self._capacity, request)
        if ranks and sum(victims.weights[rank] for rank in ranks) + fitting >= request.weight:
            return (jobs[number] for number in victims.of(ranks))
        if self._fair_share is not None and self._fair_share.is_entitled(request):
            return self._fair_share.borrowers(request, jobs.values())
        return None

    def _ranks_behind(self, request: GangRequest, now_s: float) -> list[Rank]:
        """Return the (priority, rank) pairs whose jobs may be preempted for this job now."""
        gap = self._order.gap if self.has_been_patient(request, now_s) else 0
        rank = -1 if request.lateness >= Lateness.LATE else request.rank + gap
        return [
            pair
            for pair, weight in self._victims.weights.items()
            if weight and (pair[0] < request.priority or (gap and pair[0] == request.priority and pair[1] >= rank))
        ]

    def has_been_patient(self, request: GangRequest, now_s: float) -> bool:
        """Return whether the job has waited long enough to preempt for its rank. Often another job ends before that."""
        if not self._order.gap or (self._order.needs_lengths and request.estimate_s is None):
            return False
        ready_s = request.queued_s + self._policy.patience_factor * request.restart_s
        if ready_s <= now_s or self._is_by_turn:
            return True
        if request.patience_s != ready_s:
            request.patience_s = ready_s
            self._timers.add(ready_s, RETRY, request)
        return False
