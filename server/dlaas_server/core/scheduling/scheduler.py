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
from dlaas_server.core.placement.gang_placement import Frees
from dlaas_server.core.scheduling.backfill import Promises, Reservation, reserve
from dlaas_server.core.scheduling.decision import IDLE, Choice, Preemption
from dlaas_server.core.scheduling.defragmentation import gathered
from dlaas_server.core.scheduling.equivalence_class import Group
from dlaas_server.core.scheduling.fit import fits, most, seated
from dlaas_server.core.scheduling.gang_request import Ask, Key
from dlaas_server.core.scheduling.lateness import Late
from dlaas_server.core.scheduling.ordering import SLACK_S, Learnt, Order, made
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.core.scheduling.preemption import Rank, Victims, borrowers, victims_for
from dlaas_server.core.scheduling.running_set import Ends, oldest
from dlaas_server.core.scheduling.waiting_queue import FIRST, LIFT, RANK, READY, VICTIM

__all__ = ["Choice", "Policy", "Preemption", "Scheduler", "Share"]


_Todo = tuple[int, float, Key, Group]
"""Priority (highest first), share of the queue in use, key of the head, class: sorts, and detects a changed head."""
NO_SHARE: Final = Share()
MANY: Final = 64
"""Number of equivalence classes above which empty ones are deleted."""
SAME_S: Final = 1e-6
MOST_VICTIMS: Final = 1024
"""Maximum number of victims examined for one waiting job."""


class Scheduler(Promises):
    """State of a pool: free capacity, running jobs, waiting jobs. Mutable, but without clock or randomness."""

    def __init__(self, frees: Frees, policy: Policy, order: Order | None = None) -> None:
        super().__init__(frees)
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
        self._on: dict[str, dict[int, Ask]] = {}
        """Node -> running jobs with one learner there, by job number. Only maintained in orders with ranks."""
        self._may_preempt = policy.preempts and (self._is_fair or self._has_ranks)
        """True if preemption is enabled and ranks or priorities differ.

        Otherwise no job is ever preempted, and the passage of time alone changes nothing.
        """
        self._ends = Ends()
        self._victims = Victims()
        self._reservation: Reservation | None = None
        """Last reservation, valid as long as every job ends at its expected time."""
        self._is_strict = policy.is_strict
        self._admitted: Ask | None = None
        """Last job that was admitted past the reservation."""
        self._refused: list[Group] = []
        """Classes that fit now but would have delayed the reservation."""
        self._starts: list[Ask] = []
        """Jobs that start in this pass."""

    # -- events -------------------------------------------------------------------------------------------------------

    def enter(self, ask: Ask, now_s: float, queued_s: float | None = None) -> None:
        """Add a job to the queue, waiting since `queued_s` (default: now)."""
        self.waiting += 1
        if ask.priority != self._priority:
            self._meet(ask.priority, now_s)
        ask.queued_s = now_s if queued_s is None else queued_s
        if self._is_by_age:
            self._age(ask, now_s)
        else:
            ask.rank = self.order.rank(ask, now_s)
            self._note_bound(ask, now_s)
        self._line_up(ask)

    def _meet(self, priority: int, now_s: float) -> None:
        """Record the priority. From the second distinct priority on, track which jobs may be preempted."""
        if priority == self._priority:
            return
        is_second, self._priority = self._priority is not None, priority
        if is_second and self.policy.preempts and not self._may_preempt:
            self._may_preempt = True
            for ask in self.running.values():
                self._note_victim(ask, now_s)

    def seat(self, ask: Ask, seats: tuple[Seat, ...], now_s: float) -> None:
        """Record that the job runs on these seats, which are taken already."""
        ask.seats, ask.began_s = seats, now_s
        ask.since_s = now_s + ask.restart_s if ask.starts else now_s
        ask.starts += 1
        ask.stamp += 1
        ask.patience_s = -1.0
        self.running[ask.number] = ask
        self._note_running(ask, now_s)

    def _note_running(self, ask: Ask, now_s: float) -> None:
        self._ends.add(ask, now_s)
        if self._is_fair:
            self._used[ask.queue] = self._used.get(ask.queue, 0) + ask.weight
        if self._has_ranks:
            if ask.learners == 1 and ask.seats:
                self._on.setdefault(ask.seats[0].node, {})[ask.number] = ask
            self._note_rank(ask, now_s)
        elif self._may_preempt:
            self._note_victim(ask, now_s)

    def _note_rank(self, ask: Ask, now_s: float) -> None:
        ask.rank, changes_s = self._rank(ask, now_s)
        if changes_s is not None:
            heappush(self._timers, (changes_s, ask.number, RANK, ask.stamp, ask))
        if self._may_preempt:
            self._note_victim(ask, now_s)

    def _note_victim(self, ask: Ask, now_s: float) -> None:
        if ask.may_stop:
            safe_s = ask.began_s + self.policy.ran_factor * ask.restart_s
            if ask.late is Late.FORGOTTEN:
                safe_s = max(safe_s, ask.began_s + self._bound_s(ask))
            if safe_s <= now_s:
                self._victims.add(ask)
            else:
                heappush(self._timers, (safe_s, ask.number, VICTIM, ask.stamp, ask))

    def adopt(self, ask: Ask, seats: tuple[Seat, ...], now_s: float, began_s: float | None = None) -> None:
        """Record a job that already runs, on seats that are not free, since `began_s`. Call in order of `began_s`."""
        self._meet(ask.priority, now_s)
        ask.seats, ask.patience_s = seats, -1.0
        if began_s is None:
            ask.since_s, ask.began_s = now_s, now_s - ask.executed_s
        else:
            ask.began_s, ask.since_s = began_s, began_s + ask.restart_s if ask.starts else began_s
            ask.executed_s -= max(now_s - ask.since_s, 0.0)
            self._note_start(ask)
        ask.starts += 1
        self.running[ask.number] = ask
        self._note_running(ask, now_s)

    def leave(self, ask: Ask, now_s: float, *, has_ended: bool = True) -> None:
        """Remove a job that ended or was withdrawn."""
        if ask.since_s is None:
            self.waiting -= 1
            ask.stamp += 1
            if self._forgotten.waiting:
                self._forgotten.leaves(ask)
            group = self._groups[ask.shape, ask.learners, ask.queue]
            if group.head is ask:
                group.refresh()
                group.is_shut, self._is_open = False, True
            if ask.late:
                self.reopen()  # what was kept for it is free for all
        else:
            self.frees.give(ask.shape, ask.seats)
            self._unseat(ask, now_s)
            is_lesson = has_ended and not self._is_by_age
            if is_lesson and (learnt := self.order.learn(ask.executed_s * ask.weight, ask.wrong)):
                self._rerank_all(learnt, now_s)

    def obey(self, policy: Policy, now_s: float) -> None:
        """Replace the policy. Running and waiting jobs stay; learned state is kept if the order stays the same."""
        waiting, running = self.line(), list(self.running.values())
        self._take_policy(policy, self.order if policy.order == self.policy.order else made(policy.order))
        self.running = {}
        for ask in running:
            ask.stamp, ask.rank, ask.is_victim, ask.patience_s = ask.stamp + 1, 0, False, -1.0
            self._meet(ask.priority, now_s)
            self._note_start(ask)
            self.running[ask.number] = ask
            self._note_running(ask, now_s)
        for ask in waiting:
            ask.stamp, ask.rank, ask.late, ask.patience_s = ask.stamp + 1, 0, Late.NOT, -1.0
            self.enter(ask, now_s, ask.queued_s)

    def _rank(self, ask: Ask, now_s: float) -> tuple[int, float | None]:
        """Return the rank of a running job, and the time at which it changes.

        A job that was lifted makes room only for late jobs (-1). A late job makes room for none (-2) until it has held
        its seats for as long as its bound.
        """
        if ask.late is Late.LIFTED:
            return -1, None
        is_safe = ask.late and (not self._is_fair or ask.late is Late.FORGOTTEN)
        safe_s = ask.began_s + self._bound_s(ask) if is_safe else now_s
        return (-2, safe_s) if now_s < safe_s else (self.order.rank(ask, now_s), self.order.changes_s(ask, now_s))

    def _unseat(self, ask: Ask, now_s: float) -> None:
        """Remove the job from the running set. Its seats have been given back already."""
        ask.executed_s = ask.executed(now_s)
        ask.since_s = None
        ask.stamp += 1
        if self._forgotten.running:
            self._forgotten.ends(ask)
        if ask.is_victim:
            self._victims.drop(ask)
        del self.running[ask.number]
        if self._is_fair:
            self._used[ask.queue] -= ask.weight
        if self._has_ranks and ask.learners == 1 and ask.seats:
            del self._on[ask.seats[0].node][ask.number]
        end_s, ask.ends_s = ask.ends_s, None
        if end_s is None or abs(end_s - now_s) > SAME_S:
            self._reservation = None
        ask.seats = ()
        if self.waiting:
            self.reopen()

    def look_again(self) -> None:
        """Reconsider every class after `frees` changed without a job of this scheduler starting or ending."""
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
            _, _, kind, stamp, ask = heappop(timers)
            if stamp != ask.stamp:
                continue
            if kind == LIFT:
                self._move(ask, now_s)
            elif kind == READY:
                self.reopen()
            elif kind == VICTIM:
                self._victims.add(ask)
                self.reopen()
            else:
                self._rerank(ask, now_s)

    def reconsider(self, ask: Ask, now_s: float) -> None:
        """Recompute the job's place in the queue, or its expected end, after its estimate changed."""
        if ask.since_s is None:
            ask.rank = self.order.rank(ask, now_s)
            self._move(ask, now_s)
            return
        self._ends.add(ask, now_s)
        self._reservation = None
        self._rerank(ask, now_s)

    def _rerank_all(self, learnt: Learnt, now_s: float) -> None:
        """Rerank the affected jobs after the order learned from a finished job."""
        for _, ask in self._entries():
            if learnt is Learnt.RANKS or ask.late:
                ask.rank = self.order.rank(ask, now_s)
                self._move(ask, now_s)
        for ask in self.running.values() if learnt is Learnt.RANKS else ():
            self._victims.drop(ask)
            ask.stamp, ask.patience_s = ask.stamp + 1, -1.0
            self._note_rank(ask, now_s)

    def _rerank(self, ask: Ask, now_s: float) -> None:
        was_victim = ask.is_victim
        self._victims.drop(ask)
        before = ask.rank
        ask.rank, changes_s = self._rank(ask, now_s)
        if was_victim:
            self._victims.add(ask)
            if ask.rank > before:
                self.reopen()
        if changes_s is not None:
            heappush(self._timers, (max(changes_s, now_s + SLACK_S), ask.number, RANK, ask.stamp, ask))

    def _wake_s(self) -> float | None:
        timers = self._timers
        while timers and timers[0][3] != timers[0][4].stamp:
            heappop(timers)
        return timers[0][0] if timers else None

    # -- pass ---------------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> Choice:
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
            return IDLE if wake_s is None else Choice(wake_s=wake_s)
        starts: list[Ask] = []
        self._starts = starts
        stops: list[Preemption] = []
        reservation: Reservation | None = None
        frees, is_strict, may_preempt = self.frees, self._is_strict, self._may_preempt
        todo = self._open()
        while todo:
            _, _, key, group = heappop(todo)
            ask = group.head
            if ask is None or group.key != key:
                continue
            if group.is_shut:  # only in strict order
                if self._could_fit(group):
                    break
                continue
            if may_preempt or group.devices_min <= frees.devices:
                holder = self._holder(key)
                if holder is None or (reservation is not None and reservation.ask is not holder):
                    reservation = None
                if holder and reservation is None and (self._is_overdue(holder, now_s) or fits(frees, ask)):
                    reservation = self._reserve(holder, now_s)
                before = len(starts), len(stops)
                chosen = self._chosen(group, ask, holder, reservation, now_s, stops)
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
                self._first = (key, ask)
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
            return Choice(starts, stops, wake_s, reservation.ask, reservation.at_s)
        return Choice(starts, stops, wake_s) if starts or stops or wake_s is not None else IDLE

    def _open(self) -> list[_Todo]:
        """Return a heap of the classes whose heads are to be tried; in strict order, of all classes.

        Classes that need more devices than are free are closed at once, unless preemption is possible.
        """
        is_strict, is_fair, promises_first = self._is_strict, self._is_fair, self._promises_first
        devices = inf if is_strict or self._may_preempt else self.frees.devices
        todo: list[_Todo] = []
        first: Group | None = None
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

    def _use(self, group: Group) -> float:
        """Return the usage of the queue of this class divided by its share size; FIRST if its head is late."""
        assert group.head is not None
        queue = group.head.queue
        if group.head.late:
            return FIRST
        return (self._used.get(queue, 0) + self.charged.get(queue, 0.0)) / self._share(queue).size

    def _is_entitled(self, ask: Ask) -> bool:
        """Return whether the queue stays within its guaranteed share if this job starts."""
        return self._used.get(ask.queue, 0) + ask.weight <= self._share(ask.queue).guaranteed

    def _share(self, queue: str) -> Share:
        return self.policy.shares.get(queue, NO_SHARE)

    def _chosen(
        self,
        group: Group,
        ask: Ask,
        holder: Ask | None,
        reservation: Reservation | None,
        now_s: float,
        stops: list[Preemption],
    ) -> Ask | None:
        """Return the job of this class that starts now, with its seats taken, by preemption if necessary; None if none.

        `reservation`: that of `holder`, a job ahead in the queue; None if this start cannot take anything from it.
        """
        if reservation is not None and not (self._is_fair and self._is_entitled(ask)):
            if fits(self.frees, ask):
                passing = self._passing(group, reservation, now_s)
                if passing is not None:
                    return passing
                self._refused.append(group)
            if reservation.is_strict:
                self._kept_for = self._promised()
                return None
            seats = None
        else:
            seats = seated(self.frees, ask, now_s) if group.devices_min <= self.frees.devices else None
        if seats is None and self._may_preempt:
            seats = self._make_room(ask, now_s, stops)
            if seats is None and holder is None:
                seats = self._gathered(ask, now_s, stops)
            elif seats is None:
                self._kept_for = self._promised()
        if seats is None:
            return None
        ask.seats = seats
        return ask

    def _start(self, ask: Ask, group: Group, now_s: float, starts: list[Ask]) -> None:
        self.waiting -= 1
        if self._forgotten.waiting and self._forgotten.leaves(ask):
            ask.late = Late.FORGOTTEN
            self._forgotten.runs(ask)
        self.seat(ask, ask.seats, now_s)
        group.refresh()
        if group.key is None and len(self._groups) > MANY:
            del self._groups[ask.shape, ask.learners, ask.queue]
        starts.append(ask)
        if self._is_fair and self._used[ask.queue] > self._share(ask.queue).guaranteed:
            self.reopen()  # it borrows, and other queues may reclaim that

    # -- reservations -------------------------------------------------------------------------------------------------

    def _reserve(self, ask: Ask, now_s: float) -> Reservation:
        found, is_strict = self._reservation, self._is_overdue(ask, now_s)
        holds = found is not None and found.ask is ask and now_s < found.at_s and not is_strict
        if found is not None and holds and not self._ends.is_behind(now_s):
            return found
        running = self.running.values()
        releases = oldest(running) if is_strict else self._ends.in_order(running, now_s)
        self._reservation = reserve(ask, self.frees, releases, now_s, is_strict=is_strict)
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
            next_s = min(next_s, self._overdue_s(reservation.ask))
        return next_s if next_s < inf else None

    def _passing(self, group: Group, reservation: Reservation, now_s: float) -> Ask | None:
        """Return the first job of a class that fits now and does not delay the reservation; its seats are taken.

        All jobs of a class get the same seats. A job is admitted if it ends before the reservation starts, or if the
        reservation can spare the seats.
        """
        assert group.head is not None
        seats = seated(self.frees, group.head, now_s)
        if seats is None:
            return None
        self._admitted = found = reservation.first_admitted(group.heads(), seats, self.frees, now_s)
        if found is None:
            self.frees.give(group.shape, seats)
        else:
            found.seats = seats
        return found

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _candidates(self, ask: Ask, now_s: float) -> list[Rank]:
        """Return the (priority, rank) pairs whose jobs may be preempted for this job now."""
        gap = self.order.gap if self._is_patient_no_more(ask, now_s) else 0
        rank = -1 if ask.late >= Late.LATE else ask.rank + gap
        return [
            named
            for named, weight in self._victims.weights.items()
            if weight and (named[0] < ask.priority or (gap and named[0] == ask.priority and named[1] >= rank))
        ]

    def _is_patient_no_more(self, ask: Ask, now_s: float) -> bool:
        """Return whether the job has waited long enough to preempt for its rank. Often another job ends before that."""
        if not self.order.gap or (self.order.needs_lengths and ask.estimate_s is None):
            return False
        ready_s = ask.queued_s + self.policy.patience_factor * ask.restart_s
        if ready_s <= now_s or self._by_turn:
            return True
        if ask.patience_s != ready_s:
            ask.patience_s = ready_s
            heappush(self._timers, (ready_s, ask.number, READY, ask.stamp, ask))
        return False

    def _make_room(self, ask: Ask, now_s: float, stops: list[Preemption]) -> tuple[Seat, ...] | None:
        """Return the job's seats after preempting as few victims as needed, or None."""
        ranks = self._candidates(ask, now_s)
        candidates: Iterator[Ask] = iter(())
        if ranks and sum(self._victims.weights[one] for one in ranks) + most(self.frees, ask) >= ask.weight:
            candidates = (self.running[number] for number in self._victims.of(ranks))
        elif self._is_fair and self._is_entitled(ask):
            candidates = borrowers(ask, self.running.values(), self._used, self._share)
        victims = victims_for(ask, self.frees, islice(candidates, MOST_VICTIMS))
        held = [(victim, victim.seats) for victim in victims]
        for victim in victims:
            self.frees.give(victim.shape, victim.seats)
        seats = seated(self.frees, ask, now_s) if victims else None
        given = len(self._starts) - len(stops)
        for victim, its in reversed(held):
            if self.frees.has(victim.shape, its):
                self.frees.claim(victim.shape, its)
            else:
                self._preempt(victim, ask, now_s, stops)
        if seats is not None and given == len(self._starts) - len(stops):  # only free seats, kept for a job ahead
            self.frees.give(ask.shape, seats)
            return None
        return seats

    def _gathered(self, ask: Ask, now_s: float, stops: list[Preemption]) -> tuple[Seat, ...] | None:
        """Return seats on one node, freed by moving a small job away: enough devices are free, but fragmented."""
        is_one = ask.learners == 1 and not ask.shape.is_share and 1 < ask.shape.gpus <= self.frees.devices
        if not is_one or not self._is_patient_no_more(ask, now_s):
            return None
        found = gathered(ask, self.frees, self._on, now_s, self.policy.ran_factor)
        if isinstance(found, list):
            self._note_brief(found, now_s)
            return None
        seats, (mover, its) = found
        self._unseat(mover, now_s)
        stops.append(Preemption(mover, ask))
        mover.queued_s = now_s
        mover.late, _ = self._late(mover, now_s + SLACK_S)
        self.seat(mover, its, now_s)
        self._starts.append(mover)
        return seats

    def _note_brief(self, brief: list[Ask], now_s: float) -> None:
        """Set a timer just after the expected end of each of these jobs; those still running then may be moved."""
        for mover in brief:
            over_s = (mover.end_s(now_s) or now_s) + SLACK_S / 2
            if abs(over_s - mover.patience_s) > SAME_S:
                mover.patience_s = over_s
                heappush(self._timers, (over_s, mover.number, READY, mover.stamp, mover))

    def _preempt(self, victim: Ask, winner: Ask, now_s: float, stops: list[Preemption]) -> None:
        """Return the victim to the queue after its seats were given back.

        A victim that started in this very pass keeps its place in the queue and does not count as preempted.
        """
        self._unseat(victim, now_s)
        if victim in self._starts:
            self._starts.remove(victim)
            victim.starts -= 1
            self.enter(victim, now_s, victim.queued_s)
        else:
            stops.append(Preemption(victim, winner))
            self.enter(victim, now_s)
