"""Event-driven scheduler, shared by the engine, the simulator and the start-time forecast.

Waiting jobs with the same shape, number of learners and queue form one equivalence class. Each class keeps one heap
per expected length, and only the heads of these heaps are examined. The cost of an event therefore grows with the
number of classes, not with the number of waiting jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.placement.gang_placement import FreeCapacity
from dlaas_server.core.scheduling.backfill import Backfill, Reservation, reserve
from dlaas_server.core.scheduling.decision import IDLE, PassResult, Preempted
from dlaas_server.core.scheduling.defragmentation import gathered
from dlaas_server.core.scheduling.equivalence_class import EquivalenceClass
from dlaas_server.core.scheduling.fit import fits, most, seated
from dlaas_server.core.scheduling.gang_request import GangRequest, Key
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import SLACK_S, Learnt, Order, made
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.core.scheduling.preemption import Rank, VictimIndex, borrowers, victims_for
from dlaas_server.core.scheduling.running_set import ExpectedEnds, oldest
from dlaas_server.core.scheduling.waiting_queue import FIRST, LIFT, RANK, READY, VICTIM

__all__ = ["PassResult", "Policy", "Preempted", "Scheduler", "Share"]


_Todo = tuple[int, float, Key, EquivalenceClass]
"""Priority (highest first), share of the queue in use, key of the head, class: sorts, and detects a changed head."""
NO_SHARE: Final = Share()
MANY: Final = 64
"""Number of equivalence classes above which empty ones are deleted."""
SAME_S: Final = 1e-6
MOST_VICTIMS: Final = 1024
"""Maximum number of victims examined for one waiting job."""


class Scheduler(Backfill):
    """State of a pool: free capacity, running jobs, waiting jobs. Mutable, but without clock or randomness."""

    def __init__(self, capacity: FreeCapacity, policy: Policy, order: Order | None = None) -> None:
        super().__init__(capacity)
        self.charged: Mapping[str, float] = {}
        """Queue -> extra usage that counts against its share: its spot jobs, at the spot price."""
        self._take_policy(policy, made(policy.order) if order is None else order)

    def _take_policy(self, policy: Policy, order: Order) -> None:
        self.begin(policy, order)
        self._priority: int | None = None
        self._used: dict[str, int] = {}
        """Queue -> devices in use. Only maintained in order `fair`."""
        self._has_ranks = bool(self.order.gap)
        """True if the order can preempt or move a running job because of its rank."""
        self._on: dict[str, dict[int, GangRequest]] = {}
        """Node -> running jobs with one learner there, by job number. Only maintained in orders with ranks."""
        self._may_preempt = policy.preempts and (self._is_fair or self._has_ranks)
        """True if preemption is enabled and ranks or priorities differ.

        Otherwise no job is ever preempted, and the passage of time alone changes nothing.
        """
        self._ends = ExpectedEnds()
        self._victims = VictimIndex()
        self._reservation: Reservation | None = None
        """Last reservation, valid as long as every job ends at its expected time."""
        self._is_strict = policy.is_strict
        self._admitted: GangRequest | None = None
        """Last job that was admitted past the reservation."""
        self._refused: list[EquivalenceClass] = []
        """Classes that fit now but would have delayed the reservation."""
        self._starts: list[GangRequest] = []
        """Jobs that start in this pass."""

    # -- events -------------------------------------------------------------------------------------------------------

    def enqueue(self, request: GangRequest, now_s: float, queued_s: float | None = None) -> None:
        """Add a job to the queue, waiting since `queued_s` (default: now)."""
        self.waiting += 1
        if request.priority != self._priority:
            self._meet(request.priority, now_s)
        request.queued_s = now_s if queued_s is None else queued_s
        if self._is_by_age:
            self._age(request, now_s)
        else:
            request.rank = self.order.rank(request, now_s)
            self._note_bound(request, now_s)
        self._line_up(request)

    def _meet(self, priority: int, now_s: float) -> None:
        """Record the priority. From the second distinct priority on, track which jobs may be preempted."""
        if priority == self._priority:
            return
        is_second, self._priority = self._priority is not None, priority
        if is_second and self.policy.preempts and not self._may_preempt:
            self._may_preempt = True
            for request in self.running.values():
                self._note_victim(request, now_s)

    def seat(self, request: GangRequest, seats: tuple[Seat, ...], now_s: float) -> None:
        """Record that the job runs on these seats, which are taken already."""
        request.seats, request.began_s = seats, now_s
        request.since_s = now_s + request.restart_s if request.starts else now_s
        request.starts += 1
        request.version += 1
        request.patience_s = -1.0
        self.running[request.number] = request
        self._note_running(request, now_s)

    def _note_running(self, request: GangRequest, now_s: float) -> None:
        self._ends.add(request, now_s)
        if self._is_fair:
            self._used[request.queue] = self._used.get(request.queue, 0) + request.weight
        if self._has_ranks:
            if request.learners == 1 and request.seats:
                self._on.setdefault(request.seats[0].node, {})[request.number] = request
            self._note_rank(request, now_s)
        elif self._may_preempt:
            self._note_victim(request, now_s)

    def _note_rank(self, request: GangRequest, now_s: float) -> None:
        request.rank, changes_s = self._rank(request, now_s)
        if changes_s is not None:
            heappush(self._timers, (changes_s, request.number, RANK, request.version, request))
        if self._may_preempt:
            self._note_victim(request, now_s)

    def _note_victim(self, request: GangRequest, now_s: float) -> None:
        if request.is_preemptible:
            safe_s = request.began_s + self.policy.ran_factor * request.restart_s
            if request.lateness is Lateness.STARVING:
                safe_s = max(safe_s, request.began_s + self._bound_s(request))
            if safe_s <= now_s:
                self._victims.add(request)
            else:
                heappush(self._timers, (safe_s, request.number, VICTIM, request.version, request))

    def add_running(
        self, request: GangRequest, seats: tuple[Seat, ...], now_s: float, began_s: float | None = None
    ) -> None:
        """Record a job that already runs, on seats that are not free, since `began_s`. Call in order of `began_s`."""
        self._meet(request.priority, now_s)
        request.seats, request.patience_s = seats, -1.0
        if began_s is None:
            request.since_s, request.began_s = now_s, now_s - request.executed_s
        else:
            request.began_s, request.since_s = began_s, began_s + request.restart_s if request.starts else began_s
            request.executed_s -= max(now_s - request.since_s, 0.0)
            self._note_start(request)
        request.starts += 1
        self.running[request.number] = request
        self._note_running(request, now_s)

    def remove(self, request: GangRequest, now_s: float, *, has_ended: bool = True) -> None:
        """Remove a job that ended or was withdrawn."""
        if request.since_s is None:
            self.waiting -= 1
            request.version += 1
            if self._forgotten.waiting:
                self._forgotten.leaves(request)
            group = self._groups[request.shape, request.learners, request.queue]
            if group.head is request:
                group.refresh()
                group.is_shut, self._is_open = False, True
            if request.lateness:
                self.reopen()  # what was kept for it is free for all
        else:
            self.capacity.give(request.shape, request.seats)
            self._unseat(request, now_s)
            is_lesson = has_ended and not self._is_by_age
            if is_lesson and (learnt := self.order.learn(request.executed_s * request.weight, request.wrong)):
                self._rerank_all(learnt, now_s)

    def set_policy(self, policy: Policy, now_s: float) -> None:
        """Replace the policy. Running and waiting jobs stay; learned state is kept if the order stays the same."""
        waiting, running = self.queue_order(), list(self.running.values())
        self._take_policy(policy, self.order if policy.order == self.policy.order else made(policy.order))
        self.running = {}
        for request in running:
            request.version, request.rank, request.is_victim, request.patience_s = request.version + 1, 0, False, -1.0
            self._meet(request.priority, now_s)
            self._note_start(request)
            self.running[request.number] = request
            self._note_running(request, now_s)
        for request in waiting:
            request.version, request.rank, request.lateness, request.patience_s = (
                request.version + 1,
                0,
                Lateness.ON_TIME,
                -1.0,
            )
            self.enqueue(request, now_s, request.queued_s)

    def _rank(self, request: GangRequest, now_s: float) -> tuple[int, float | None]:
        """Return the rank of a running job, and the time at which it changes.

        A job that was lifted makes room only for late jobs (-1). A late job makes room for none (-2) until it has held
        its seats for as long as its bound.
        """
        if request.lateness is Lateness.LIFTED:
            return -1, None
        is_safe = request.lateness and (not self._is_fair or request.lateness is Lateness.STARVING)
        safe_s = request.began_s + self._bound_s(request) if is_safe else now_s
        return (
            (-2, safe_s) if now_s < safe_s else (self.order.rank(request, now_s), self.order.changes_s(request, now_s))
        )

    def _unseat(self, request: GangRequest, now_s: float) -> None:
        """Remove the job from the running set. Its seats have been given back already."""
        request.executed_s = request.executed(now_s)
        request.since_s = None
        request.version += 1
        if self._forgotten.running:
            self._forgotten.ends(request)
        if request.is_victim:
            self._victims.drop(request)
        del self.running[request.number]
        if self._is_fair:
            self._used[request.queue] -= request.weight
        if self._has_ranks and request.learners == 1 and request.seats:
            del self._on[request.seats[0].node][request.number]
        end_s, request.ends_s = request.ends_s, None
        if end_s is None or abs(end_s - now_s) > SAME_S:
            self._reservation = None
        request.seats = ()
        if self.waiting:
            self.reopen()

    def capacity_changed(self) -> None:
        """Reconsider every class after `capacity` changed without a job of this scheduler starting or ending."""
        self._reservation = None
        for group in self._groups.values():
            group.could_fit = None
        for entry in self._without_room:
            heappush(self._lates, entry)
        self._without_room = []
        self.reopen()

    # -- timers -------------------------------------------------------------------------------------------------------

    def _tick(self, now_s: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            _, _, kind, stamp, request = heappop(timers)
            if stamp != request.version:
                continue
            if kind == LIFT:
                self._move(request, now_s)
            elif kind == READY:
                self.reopen()
            elif kind == VICTIM:
                self._victims.add(request)
                self.reopen()
            else:
                self._rerank(request, now_s)

    def update_estimate(self, request: GangRequest, now_s: float) -> None:
        """Recompute the job's place in the queue, or its expected end, after its estimate changed."""
        if request.since_s is None:
            request.rank = self.order.rank(request, now_s)
            self._move(request, now_s)
            return
        self._ends.add(request, now_s)
        self._reservation = None
        self._rerank(request, now_s)

    def _rerank_all(self, learnt: Learnt, now_s: float) -> None:
        """Rerank the affected jobs after the order learned from a finished job."""
        for _, request in self._entries():
            if learnt is Learnt.RANKS or request.lateness:
                request.rank = self.order.rank(request, now_s)
                self._move(request, now_s)
        for request in self.running.values() if learnt is Learnt.RANKS else ():
            self._victims.drop(request)
            request.version, request.patience_s = request.version + 1, -1.0
            self._note_rank(request, now_s)

    def _rerank(self, request: GangRequest, now_s: float) -> None:
        was_victim = request.is_victim
        self._victims.drop(request)
        before = request.rank
        request.rank, changes_s = self._rank(request, now_s)
        if was_victim:
            self._victims.add(request)
            if request.rank > before:
                self.reopen()
        if changes_s is not None:
            heappush(self._timers, (max(changes_s, now_s + SLACK_S), request.number, RANK, request.version, request))

    def _wake_s(self) -> float | None:
        timers = self._timers
        while timers and timers[0][3] != timers[0][4].version:
            heappop(timers)
        return timers[0][0] if timers else None

    # -- pass ---------------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> PassResult:
        """Run one scheduling pass: start jobs that fit, and preempt victims for others, in queue order."""
        if self._timers and self._timers[0][0] <= now_s:
            self._tick(now_s)
        if not self.waiting:
            return IDLE
        if self._ages and self._ages[0][0] <= now_s:
            self._grow_old(now_s)
        if self._forgotten.waiting:
            for one in self._forgotten.changed(self.could_fit):
                self._move(one, now_s)
        if not self._promises_first:
            self._note_promised()
        if not self._is_open:
            wake_s = self._wake_s() if self._may_preempt or self._relaxes else None
            return IDLE if wake_s is None else PassResult(wake_s=wake_s)
        starts: list[GangRequest] = []
        self._starts = starts
        stops: list[Preempted] = []
        reservation: Reservation | None = None
        capacity, is_strict, may_preempt = self.capacity, self._is_strict, self._may_preempt
        todo = self._open()
        while todo:
            _, _, key, group = heappop(todo)
            request = group.head
            if request is None or group.key != key:
                continue
            if group.is_shut:  # only in strict order
                if self._could_fit(group):
                    break
                continue
            if may_preempt or group.devices_min <= capacity.devices:
                holder = self._holder(key)
                if holder is None or (reservation is not None and reservation.request is not holder):
                    reservation = None
                if holder and reservation is None and (self._is_overdue(holder, now_s) or fits(capacity, request)):
                    reservation = self._reserve(holder, now_s)
                before = len(starts), len(stops)
                chosen = self._chosen(group, request, holder, reservation, now_s, stops)
                if chosen is not None:
                    is_changed = self._is_fair or before != (len(starts), len(stops))
                    if chosen is not self._admitted:
                        self._reservation = reservation = None  # the reservation was not checked against this start
                    self._start(chosen, group, now_s, starts)
                    if is_changed:
                        todo = self._open()
                    elif group.key is not None:
                        heappush(todo, (group.key[0], 0.0, group.key, group))
                    continue
            group.is_shut = True
            if is_strict:
                if self._could_fit(group):
                    break
            elif self._promises_first and (self._first is None or key < self._first[0]) and self._could_fit(group):
                self._first = (key, request)
                if self._note_promised():
                    todo = self._open()
        wake_s = self._wake_s() if self.waiting and (self._may_preempt or self._relaxes or self._refused) else None
        if self._refused:
            for group in self._refused:  # jobs that start meanwhile may leave seats free that delay nobody
                group.is_shut = False
                if reservation is None and group.key is not None and (holder := self._holder(group.key)):
                    reservation = self._reserve(holder, now_s)  # recomputed after the last start
            self._refused, self._is_open = [], True
            wake_s = self._passes_s(reservation, now_s, inf if wake_s is None else wake_s)
        if reservation is not None:
            return PassResult(starts, stops, wake_s, reservation.request, reservation.at_s)
        return PassResult(starts, stops, wake_s) if starts or stops or wake_s is not None else IDLE

    def _open(self) -> list[_Todo]:
        """Return a heap of the classes whose heads are to be tried; in strict order, of all classes.

        Classes that need more devices than are free are closed at once, unless preemption is possible.
        """
        is_strict, is_fair, promises_first = self._is_strict, self._is_fair, self._promises_first
        devices = inf if is_strict or self._may_preempt else self.capacity.devices
        todo: list[_Todo] = []
        first: EquivalenceClass | None = None
        first_key: Key | None = None
        for group in self._groups.values():
            key = group.key
            if key is None:
                continue
            if group.devices_min > devices:
                group.is_shut = True
            if is_strict or not group.is_shut:
                todo.append((key[0], self._use(group) if is_fair else 0.0, key, group))
            elif promises_first and (first_key is None or key < first_key) and self._could_fit(group):
                first, first_key = group, key
        if promises_first:
            self._first = None if first is None or first_key is None or first.head is None else (first_key, first.head)
            if self._note_promised():
                return self._open()
        self._is_open = is_strict
        if len(todo) > 1:
            heapify(todo)
        return todo

    def _use(self, group: EquivalenceClass) -> float:
        """Return the usage of the queue of this class divided by its share size; FIRST if its head is late."""
        assert group.head is not None
        queue = group.head.queue
        if group.head.lateness:
            return FIRST
        return (self._used.get(queue, 0) + self.charged.get(queue, 0.0)) / self._share(queue).size

    def _is_entitled(self, request: GangRequest) -> bool:
        """Return whether the queue stays within its guaranteed share if this job starts."""
        return self._used.get(request.queue, 0) + request.weight <= self._share(request.queue).guaranteed

    def _share(self, queue: str) -> Share:
        return self.policy.shares.get(queue, NO_SHARE)

    def _chosen(
        self,
        group: EquivalenceClass,
        request: GangRequest,
        holder: GangRequest | None,
        reservation: Reservation | None,
        now_s: float,
        stops: list[Preempted],
    ) -> GangRequest | None:
        """Return the job of this class that starts now, with its seats taken, by preemption if necessary; None if none.

        `reservation`: that of `holder`, a job ahead in the queue; None if this start cannot take anything from it.
        """
        if reservation is not None and not (self._is_fair and self._is_entitled(request)):
            if fits(self.capacity, request):
                passing = self._passing(group, reservation, now_s)
                if passing is not None:
                    return passing
                self._refused.append(group)
            if reservation.is_strict:
                self._kept_for = self._promised()
                return None
            seats = None
        else:
            seats = seated(self.capacity, request, now_s) if group.devices_min <= self.capacity.devices else None
        if seats is None and self._may_preempt:
            seats = self._make_room(request, now_s, stops)
            if seats is None and holder is None:
                seats = self._gathered(request, now_s, stops)
            elif seats is None:
                self._kept_for = self._promised()
        if seats is None:
            return None
        request.seats = seats
        return request

    def _start(self, request: GangRequest, group: EquivalenceClass, now_s: float, starts: list[GangRequest]) -> None:
        self.waiting -= 1
        if self._forgotten.waiting and self._forgotten.leaves(request):
            request.lateness = Lateness.STARVING
            self._forgotten.runs(request)
        self.seat(request, request.seats, now_s)
        group.refresh()
        if group.key is None and len(self._groups) > MANY:
            del self._groups[request.shape, request.learners, request.queue]
        starts.append(request)
        if self._is_fair and self._used[request.queue] > self._share(request.queue).guaranteed:
            self.reopen()  # it borrows, and other queues may reclaim that

    # -- reservations -------------------------------------------------------------------------------------------------

    def _reserve(self, request: GangRequest, now_s: float) -> Reservation:
        found, is_strict = self._reservation, self._is_overdue(request, now_s)
        holds = found is not None and found.request is request and now_s < found.at_s and not is_strict
        if found is not None and holds and not self._ends.is_behind(now_s):
            return found
        running = self.running.values()
        releases = oldest(running) if is_strict else self._ends.in_order(running, now_s)
        self._reservation = reserve(request, self.capacity, releases, now_s, is_strict=is_strict)
        return self._reservation

    def _passes_s(self, reservation: Reservation | None, now_s: float, next_s: float) -> float | None:
        """Return the earliest time, at most `next_s`, at which backfill may admit other jobs.

        A job that has not ended by its expected end delays the reservation. In orders by age the holder also becomes
        overdue.
        """
        end_s = self._ends.first_s()
        if now_s < end_s:
            next_s = min(next_s, end_s + SLACK_S / 2)
        if reservation is not None and self._is_by_age and not reservation.is_strict:
            next_s = min(next_s, self._overdue_s(reservation.request))
        return next_s if next_s < inf else None

    def _passing(self, group: EquivalenceClass, reservation: Reservation, now_s: float) -> GangRequest | None:
        """Return the first job of a class that fits now and does not delay the reservation; its seats are taken.

        All jobs of a class get the same seats. A job is admitted if it ends before the reservation starts, or if the
        reservation can spare the seats.
        """
        assert group.head is not None
        seats = seated(self.capacity, group.head, now_s)
        if seats is None:
            return None
        self._admitted = found = reservation.first_admitted(group.heads(), seats, self.capacity, now_s)
        if found is None:
            self.capacity.give(group.shape, seats)
        else:
            found.seats = seats
        return found

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _candidates(self, request: GangRequest, now_s: float) -> list[Rank]:
        """Return the (priority, rank) pairs whose jobs may be preempted for this job now."""
        gap = self.order.gap if self._is_patient_no_more(request, now_s) else 0
        rank = -1 if request.lateness >= Lateness.LATE else request.rank + gap
        return [
            named
            for named, weight in self._victims.weights.items()
            if weight and (named[0] < request.priority or (gap and named[0] == request.priority and named[1] >= rank))
        ]

    def _is_patient_no_more(self, request: GangRequest, now_s: float) -> bool:
        """Return whether the job has waited long enough to preempt for its rank. Often another job ends before that."""
        if not self.order.gap or (self.order.needs_lengths and request.estimate_s is None):
            return False
        ready_s = request.queued_s + self.policy.patience_factor * request.restart_s
        if ready_s <= now_s or self._by_turn:
            return True
        if request.patience_s != ready_s:
            request.patience_s = ready_s
            heappush(self._timers, (ready_s, request.number, READY, request.version, request))
        return False

    def _make_room(self, request: GangRequest, now_s: float, stops: list[Preempted]) -> tuple[Seat, ...] | None:
        """Return the job's seats after preempting as few victims as needed, or None."""
        ranks = self._candidates(request, now_s)
        candidates: Iterator[GangRequest] = iter(())
        if ranks and sum(self._victims.weights[one] for one in ranks) + most(self.capacity, request) >= request.weight:
            candidates = (self.running[number] for number in self._victims.of(ranks))
        elif self._is_fair and self._is_entitled(request):
            candidates = borrowers(request, self.running.values(), self._used, self._share)
        victims = victims_for(request, self.capacity, islice(candidates, MOST_VICTIMS))
        held = [(victim, victim.seats) for victim in victims]
        for victim in victims:
            self.capacity.give(victim.shape, victim.seats)
        seats = seated(self.capacity, request, now_s) if victims else None
        given = len(self._starts) - len(stops)
        for victim, its in reversed(held):
            if self.capacity.has(victim.shape, its):
                self.capacity.claim(victim.shape, its)
            else:
                self._preempt(victim, request, now_s, stops)
        if seats is not None and given == len(self._starts) - len(stops):  # only free seats, kept for a job ahead
            self.capacity.give(request.shape, seats)
            return None
        return seats

    def _gathered(self, request: GangRequest, now_s: float, stops: list[Preempted]) -> tuple[Seat, ...] | None:
        """Return seats on one node, freed by moving a small job away: enough devices are free, but fragmented."""
        is_one = (
            request.learners == 1 and not request.shape.is_share and 1 < request.shape.gpus <= self.capacity.devices
        )
        if not is_one or not self._is_patient_no_more(request, now_s):
            return None
        found = gathered(request, self.capacity, self._on, now_s, self.policy.ran_factor)
        if isinstance(found, list):
            self._note_brief(found, now_s)
            return None
        seats, (mover, its) = found
        self._unseat(mover, now_s)
        stops.append(Preempted(mover, request))
        mover.queued_s = now_s
        mover.lateness, _ = self._late(mover, now_s + SLACK_S)
        self.seat(mover, its, now_s)
        self._starts.append(mover)
        return seats

    def _note_brief(self, brief: list[GangRequest], now_s: float) -> None:
        """Set a timer just after the expected end of each of these jobs; those still running then may be moved."""
        for mover in brief:
            over_s = (mover.end_s(now_s) or now_s) + SLACK_S / 2
            if abs(over_s - mover.patience_s) > SAME_S:
                mover.patience_s = over_s
                heappush(self._timers, (over_s, mover.number, READY, mover.version, mover))

    def _preempt(self, victim: GangRequest, winner: GangRequest, now_s: float, stops: list[Preempted]) -> None:
        """Return the victim to the queue after its seats were given back.

        A victim that started in this very pass keeps its place in the queue and does not count as preempted.
        """
        self._unseat(victim, now_s)
        if victim in self._starts:
            self._starts.remove(victim)
            victim.starts -= 1
            self.enqueue(victim, now_s, victim.queued_s)
        else:
            stops.append(Preempted(victim, winner))
            self.enqueue(victim, now_s)
