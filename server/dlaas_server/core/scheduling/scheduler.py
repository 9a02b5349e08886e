"""Event-driven scheduler, shared by the engine, the simulator and the start-time forecast.

One pass tries the heads of the queue's equivalence classes in order. A job starts if it fits and if backfill lets it
pass the reservation of a job ahead. Otherwise running jobs may be preempted or moved for it. What each part decides:

- `waiting_queue.WaitingQueue`: order of the waiting jobs
- `starvation_guard.StarvationGuard`: lateness of waiting jobs, and the turn of a starving one
- `backfill.Backfill`: holder of the reservation, and admission past it
- `preemption.Preemption`: victims
- `defragmentation.Defragmentation`: migration of a small job for one that needs a whole node
- `fair_share.FairShare`: usage of the queues, in order `fair`
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.placement.gang_placement import FreeCapacity
from dlaas_server.core.scheduling.backfill import Backfill, Reservation
from dlaas_server.core.scheduling.defragmentation import Defragmentation
from dlaas_server.core.scheduling.equivalence_class import EquivalenceClass
from dlaas_server.core.scheduling.fair_share import FairShare
from dlaas_server.core.scheduling.fit import fits, take_seats
from dlaas_server.core.scheduling.gang_request import GangRequest, Key
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import SLACK_S, Fair, Learnt, Order, is_by_age, new_order
from dlaas_server.core.scheduling.pass_result import IDLE, PassResult, Preempted
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.core.scheduling.preemption import Preemption
from dlaas_server.core.scheduling.running_set import RunningSet
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import LATENESS, RETRY, VICTIM, Timers
from dlaas_server.core.scheduling.waiting_queue import FIRST, WaitingQueue

__all__ = ["PassResult", "Policy", "Preempted", "Scheduler", "Share"]

_Candidate = tuple[int, float, Key, EquivalenceClass]
"""Priority (highest first), usage of the queue, key of the head, class: sorts, and detects a changed head."""
NO_USAGE: Final[Mapping[str, float]] = {}


class _Pass:
    """Decisions of one pass so far."""

    __slots__ = ("displaced", "now_s", "preempted", "reservation", "starts")

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.starts: list[GangRequest] = []
        self.preempted: list[Preempted] = []
        self.displaced = 0
        """Number of jobs that were preempted or migrated, those that had started in this very pass included."""
        self.reservation: Reservation | None = None
        """Reservation of the job ahead of those that are tried now; None if it has to be made, or made again."""


class Scheduler:
    """State of a pool: free capacity, running jobs, waiting jobs. Mutable, but without clock or randomness."""

    def __init__(self, capacity: FreeCapacity, policy: Policy, order: Order | None = None) -> None:
        self.capacity = capacity
        self._spot_usage = NO_USAGE
        self._apply_policy(policy, new_order(policy.order) if order is None else order)

    def _apply_policy(self, policy: Policy, order: Order) -> None:
        """Reset to an empty queue and no running jobs under this policy."""
        capacity = self.capacity
        self.policy, self.order = policy, order
        self._is_by_age = is_by_age(order)
        self._is_strict = policy.is_strict
        self._fair_share = FairShare(policy.shares) if isinstance(order, Fair) else None
        self._timers = timers = Timers()
        self._guard = guard = StarvationGuard(policy, order, timers)
        self._queue = WaitingQueue(capacity, order, timers)
        self._running = running = RunningSet(tracks_nodes=bool(order.gap))
        self._backfill = Backfill(capacity, policy, order, self._queue, running, guard)
        self._preemption = Preemption(capacity, policy, order, running, guard, timers, self._fair_share)
        self._defragmentation = Defragmentation(capacity, policy, running, self._preemption, timers)
        self.charge_spot_usage(self._spot_usage)

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        """Number of waiting jobs."""
        return self._queue.count

    @property
    def running(self) -> Mapping[int, GangRequest]:
        """Running jobs by number, in the order in which they got their seats."""
        return self._running.jobs

    @property
    def head(self) -> GangRequest | None:
        """First job in queue order."""
        return self._queue.head

    def queue_order(self) -> list[GangRequest]:
        """Return all waiting jobs in queue order."""
        return self._queue.in_order()

    def could_fit(self, request: GangRequest) -> bool:
        """Return whether a waiting job would fit if nothing ran."""
        return self._backfill.could_fit(self._queue.class_of(request))

    # -- events -------------------------------------------------------------------------------------------------------

    def enqueue(self, request: GangRequest, now_s: float, queued_s: float | None = None) -> None:
        """Add a job to the queue, waiting since `queued_s` (default: now)."""
        if request.priority != self._preemption.priority:
            self._preemption.see_priority(request.priority, now_s)
        request.queued_s = now_s if queued_s is None else queued_s
        if self._is_by_age:
            self._guard.watch(request, now_s)
        else:
            request.rank = self.order.rank(request, now_s)
            self._guard.update(request, now_s)
        key = self._queue.insert(request)
        if request.lateness >= Lateness.LATE:
            self._backfill.add_late(key, request)

    def add_running(
        self, request: GangRequest, seats: tuple[Seat, ...], now_s: float, began_s: float | None = None
    ) -> None:
        """Record a job that already runs, on seats that are not free, since `began_s`. Call in order of `began_s`."""
        self._preemption.see_priority(request.priority, now_s)
        request.seats, request.patience_s = seats, -1.0
        if began_s is None:
            request.since_s, request.began_s = now_s, now_s - request.executed_s
        else:
            request.began_s, request.since_s = began_s, began_s + request.restart_s if request.starts else began_s
            request.executed_s -= max(now_s - request.since_s, 0.0)
            self._guard.adopt(request)
        request.starts += 1
        self._watch_running(request, now_s)

    def remove(self, request: GangRequest, now_s: float, *, has_ended: bool = True) -> None:
        """Remove a job that ended or was withdrawn."""
        if request.waits:
            if self._guard.starving:
                self._guard.withdraw(request)
            self._queue.withdraw(request)
            if request.lateness:
                self._backfill.retry_all()  # what was kept for it is free for all
            return
        self.capacity.give(request.shape, request.seats)
        self._stop(request, now_s)
        if has_ended and not self._is_by_age:
            learnt = self.order.learn(request.executed_s * request.weight, request.log_error)
            if learnt:
                self._rerank_all(learnt, now_s)

    def update_estimate(self, request: GangRequest, now_s: float) -> None:
        """Update the job's place in the queue, or its expected end, after its estimate changed."""
        if request.waits:
            request.rank = self.order.rank(request, now_s)
            self._move(request, now_s)
            return
        self._running.ends.add(request, now_s)
        self._backfill.discard_reservation()
        self._rerank(request, now_s)

    def set_policy(self, policy: Policy, now_s: float) -> None:
        """Replace the policy. Running and waiting jobs stay; learned state is kept if the order stays the same."""
        waiting, running = self.queue_order(), list(self.running.values())
        self._apply_policy(policy, self.order if policy.order == self.policy.order else new_order(policy.order))
        for request in running:
            request.version, request.rank = request.version + 1, 0
            request.is_victim, request.patience_s = False, -1.0
            self._preemption.see_priority(request.priority, now_s)
            self._guard.adopt(request)
            self._watch_running(request, now_s)
        for request in waiting:
            request.version, request.rank = request.version + 1, 0
            request.lateness, request.patience_s = Lateness.ON_TIME, -1.0
            self.enqueue(request, now_s, request.queued_s)

    def charge_spot_usage(self, usage: Mapping[str, float]) -> None:
        """Count this usage against the share of each queue: its spot jobs, at the spot price. Only for order `fair`."""
        self._spot_usage = usage
        if self._fair_share is not None:
            self._fair_share.spot_usage = usage

    def capacity_changed(self) -> None:
        """Reconsider every job after `capacity` changed without a job of this scheduler starting or ending."""
        self._backfill.capacity_changed()

    def _watch_running(self, request: GangRequest, now_s: float) -> None:
        self._running.add(request, now_s)
        if self._fair_share is not None:
            self._fair_share.add(request)
        if self._preemption.watches_all or self._preemption.is_possible:
            self._preemption.watch(request, now_s)

    def _run(self, request: GangRequest, seats: tuple[Seat, ...], now_s: float) -> None:
        """Record that the job runs on these seats, which are taken already."""
        request.seats, request.began_s = seats, now_s
        request.since_s = now_s + request.restart_s if request.starts else now_s
        request.starts += 1
        request.version += 1
        request.patience_s = -1.0
        self._watch_running(request, now_s)

    def _stop(self, request: GangRequest, now_s: float) -> None:
        """Remove the job from the running jobs. Its seats have been given back already."""
        if self._guard.served:
            self._guard.end(request)
        if request.is_victim:
            self._preemption.drop(request)
        if self._fair_share is not None:
            self._fair_share.remove(request)
        if not self._running.remove(request, now_s):
            self._backfill.discard_reservation()
        if self._queue.count:
            self._backfill.retry_all()

    def _move(self, request: GangRequest, now_s: float) -> None:
        """Move a waiting job to the place that its new rank or lateness gives it."""
        self._queue.take_out(request)
        self._guard.update(request, now_s)
        key = self._queue.insert(request)
        if request.lateness >= Lateness.LATE:
            self._backfill.add_late(key, request)

    def _rerank_all(self, learnt: Learnt, now_s: float) -> None:
        """Rerank the affected jobs after the order learned from a finished job."""
        for request in self._queue.jobs():
            if learnt is Learnt.RANKS or request.lateness:
                request.rank = self.order.rank(request, now_s)
                self._move(request, now_s)
        for request in self.running.values() if learnt is Learnt.RANKS else ():
            self._preemption.reset(request, now_s)

    def _rerank(self, request: GangRequest, now_s: float) -> None:
        if self._preemption.rerank(request, now_s):
            self._backfill.retry_all()

    def _run_timers(self, now_s: float) -> None:
        for kind, request in self._timers.due(now_s):
            if kind == LATENESS:
                self._move(request, now_s)
            elif kind == RETRY:
                self._backfill.retry_all()
            elif kind == VICTIM:
                self._preemption.end_protection(request)
                self._backfill.retry_all()
            else:
                self._rerank(request, now_s)

    # -- pass ---------------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> PassResult:
        """Run one scheduling pass: start jobs that fit, and preempt victims for others, in queue order."""
        queue, guard, backfill = self._queue, self._guard, self._backfill
        if self._timers.first_s <= now_s:
            self._run_timers(now_s)
        if not queue.count:
            return IDLE
        if backfill.is_for_one_pass:
            backfill.discard_reservation()
        if guard.next_starving_s <= now_s:
            guard.update_aged(now_s)
        if guard.starving:
            for request in guard.pass_turn(self.could_fit):
                self._move(request, now_s)
        if not backfill.reserves_first:
            backfill.retry_if_holder_changed()
        if not queue.is_open:
            wake_s = self._timers.next_s() if self._preemption.is_possible or queue.relaxes else None
            return IDLE if wake_s is None else PassResult(wake_s=wake_s)
        current = _Pass(now_s)
        self._try_classes(current)
        return self._result(current)

    def _try_classes(self, current: _Pass) -> None:
        """Try the heads of all open classes, in queue order."""
        backfill, is_strict, may_preempt = self._backfill, self._is_strict, self._preemption.is_possible
        capacity = self.capacity
        candidates = self._open_classes()
        while candidates:
            _, _, key, alike = heappop(candidates)
            request = alike.head
            if request is None or alike.key != key:
                continue
            if alike.is_blocked:  # only in strict order
                if backfill.could_fit(alike):
                    return
                continue
            if may_preempt or alike.devices_min <= capacity.devices:
                displaced = current.displaced
                if self._try_class(alike, request, key, current):
                    if self._fair_share is not None or current.displaced != displaced:
                        candidates = self._open_classes()
                    elif alike.key is not None:
                        heappush(candidates, (alike.key[0], 0.0, alike.key, alike))
                    continue
            alike.is_blocked = True
            if is_strict:
                if backfill.could_fit(alike):
                    return
            elif (
                backfill.reserves_first
                and backfill.is_before_first(key)
                and backfill.could_fit(alike)
                and backfill.set_first((key, request))
            ):
                candidates = self._open_classes()

    def _open_classes(self) -> list[_Candidate]:
        """Return a heap of the classes whose heads are to be tried; in strict order, of all classes.

        Classes that need more devices than are free are blocked at once, unless preemption is possible.
        """
        queue, backfill, fair_share = self._queue, self._backfill, self._fair_share
        is_strict, reserves_first = self._is_strict, backfill.reserves_first
        devices = inf if is_strict or self._preemption.is_possible else self.capacity.devices
        candidates: list[_Candidate] = []
        first: tuple[Key, GangRequest] | None = None
        for alike in queue.classes.values():
            key = alike.key
            if key is None:
                continue
            if alike.devices_min > devices:
                alike.is_blocked = True
            if is_strict or not alike.is_blocked:
                usage = 0.0 if fair_share is None else self._usage(alike, fair_share)
                candidates.append((key[0], usage, key, alike))
            elif reserves_first and (first is None or key < first[0]) and backfill.could_fit(alike):
                assert alike.head is not None
                first = (key, alike.head)
        if reserves_first and backfill.set_first(first):
            return self._open_classes()
        queue.is_open = is_strict
        if len(candidates) > 1:
            heapify(candidates)
        return candidates

    @staticmethod
    def _usage(alike: EquivalenceClass, fair_share: FairShare) -> float:
        """Return the usage of the queue of this class relative to its share; FIRST if its head is late."""
        assert alike.head is not None
        return FIRST if alike.head.lateness else fair_share.usage(alike.head.queue)

    def _try_class(self, alike: EquivalenceClass, request: GangRequest, key: Key, current: _Pass) -> bool:
        """Start a job of this class if one may start now. Return whether one did. `request` is the head of the class.

        A job behind a reservation passes only by backfill, unless its queue is entitled to the devices. If it fits, but
        would delay the reservation, it preempts none either: with a victim's devices it would take reserved ones.
        """
        backfill, capacity, now_s = self._backfill, self.capacity, current.now_s
        holder = backfill.holder(key)
        if holder is None or (current.reservation is not None and current.reservation.request is not holder):
            current.reservation = None
        if holder and not current.reservation and (self._guard.is_overdue(holder, now_s) or fits(capacity, request)):
            current.reservation = backfill.reserve(holder, now_s)
        reservation, chosen = current.reservation, request
        admitted: GangRequest | None = None
        seats: tuple[Seat, ...] | None = None
        if reservation is not None and not (self._fair_share is not None and self._fair_share.is_entitled(request)):
            is_fitting = fits(capacity, request)
            admitted = backfill.admit(alike, reservation, now_s) if is_fitting else None
            if admitted is not None:
                chosen, seats = admitted, admitted.seats
            elif is_fitting or reservation.is_strict:
                if is_fitting:
                    backfill.refuse(alike)
                backfill.hold_back()
                return False
        elif alike.devices_min <= capacity.devices:
            seats = take_seats(capacity, request, now_s)
        if seats is None and self._preemption.is_possible:
            seats = self._preempt_or_migrate(request, holder, current)
        if seats is None:
            return False
        chosen.seats = seats
        if admitted is None:  # the reservation was not checked against this start
            backfill.discard_reservation()
            current.reservation = None
        self._start(chosen, alike, current)
        return True

    def _start(self, request: GangRequest, alike: EquivalenceClass, current: _Pass) -> None:
        if self._guard.starving:
            self._guard.start(request)
        self._run(request, request.seats, current.now_s)
        self._queue.remove_started(request, alike)
        current.starts.append(request)
        if self._fair_share is not None and self._fair_share.is_borrowing(request.queue):
            self._backfill.retry_all()  # other queues may reclaim what it borrows

    def _preempt_or_migrate(
        self, request: GangRequest, holder: GangRequest | None, current: _Pass
    ) -> tuple[Seat, ...] | None:
        """Return the job's seats after preempting victims, or after a migration; None if no room can be made.

        No job is migrated for a job behind a reservation, whose holder is `holder`.
        """
        now_s = current.now_s
        seats, victims = self._preemption.preempt_for(request, now_s)
        for victim in victims:
            self._preempt(victim, request, current)
        if seats is not None:
            return seats
        if holder is not None:
            self._backfill.hold_back()
            return None
        migration = self._defragmentation.migrate_for(request, now_s)
        if migration is None:
            return None
        mover = migration.mover
        self._stop(mover, now_s)
        current.displaced += 1
        current.preempted.append(Preempted(mover, request))
        mover.queued_s = now_s
        mover.lateness, _ = self._guard.lateness(mover, now_s + SLACK_S)
        self._run(mover, migration.mover_seats, now_s)
        current.starts.append(mover)
        return migration.seats

    def _preempt(self, victim: GangRequest, winner: GangRequest, current: _Pass) -> None:
        """Return the victim to the queue after its seats were given back.

        A victim that started in this very pass keeps its place in the queue and does not count as preempted.
        """
        now_s = current.now_s
        self._stop(victim, now_s)
        current.displaced += 1
        if victim in current.starts:
            current.starts.remove(victim)
            victim.starts -= 1
            self.enqueue(victim, now_s, victim.queued_s)
        else:
            current.preempted.append(Preempted(victim, winner))
            self.enqueue(victim, now_s)

    def _result(self, current: _Pass) -> PassResult:
        """Return the decisions of the pass, and the time of the next one if no event occurs before."""
        queue, backfill = self._queue, self._backfill
        starts, preempted, reservation = current.starts, current.preempted, current.reservation
        refused = backfill.refused
        has_timers = queue.count and (refused or queue.relaxes or self._preemption.is_possible)
        wake_s = self._timers.next_s() if has_timers else None
        if refused:
            reservation = backfill.reopen_refused(reservation, current.now_s)
            wake_s = backfill.next_admission_s(reservation, current.now_s, inf if wake_s is None else wake_s)
        if reservation is not None:
            return PassResult(starts, preempted, wake_s, reservation.request, reservation.at_s)
        return PassResult(starts, preempted, wake_s) if starts or preempted or wake_s is not None else IDLE
