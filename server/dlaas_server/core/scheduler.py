"""Who runs, kept up to date event by event: the engine, the simulator and the forecast decide with this.

Waiting jobs lie in one group per shape of gang and queue, in each group one line per expected length; only the heads of
lines are looked at. So an event costs what shapes there are, not what jobs wait.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from dlaas_server.core.asks import Ask, Key
from dlaas_server.core.groups import Group
from dlaas_server.core.model import Seat
from dlaas_server.core.orders import ORDERS, Fair, Order, Slices
from dlaas_server.core.place import Frees, Shape, place
from dlaas_server.core.reserve import Reservation, reserve, victims_for

__all__ = ["Choice", "Policy", "Preemption", "Scheduler", "Share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a queue of a `fair` pool is entitled to. What it leaves idle, others may borrow until it wants it back."""

    guaranteed: int = 0
    """Devices."""
    weight: float = 1.0
    """How idle devices are divided among queues without a guarantee."""

    @property
    def size(self) -> float:
        """What the queue's use is measured by."""
        return self.guaranteed or self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a pool is shared. The same record steers the engine, the simulator and the forecast."""

    order: str = "shortest"
    shares: Mapping[str, Share] = field(default_factory=dict)
    """Queue -> its share, in order `fair`; a queue that is missing has weight 1."""
    age_s: float = 3600.0
    """A job that waited longer than this, and than the order's factor times its own expected length, is lifted."""
    ran_factor: float = 10.0
    """Nobody is preempted before it ran so many times what its stop and restart cost."""
    preempts: bool = True
    """Whether running jobs are stopped for others at all."""
    patience_factor: float = 100.0
    """Nobody preempts for its rank (for its priority it does) before it waited so many times what that costs."""

    @property
    def is_strict(self) -> bool:
        """The first that does not fit stops the queue."""
        return self.order == "fifo"


@dataclass(frozen=True, slots=True)
class Preemption:
    """This job gives its seats up for that one."""

    victim: Ask
    winner: Ask


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pass decided. `wake_s`: pass again then, though nothing else happens."""

    starts: Sequence[Ask] = ()
    stops: Sequence[Preemption] = ()
    wake_s: float | None = None
    reserved: Ask | None = None
    reserved_s: float | None = None


_Todo = tuple[int, float, Key, Group]
"""Priority (the highest first), use of the queue's share, the head's key: to sort by, and to see whether it changed."""
IDLE: Final = Choice()
NO_SHARE: Final = Share()
MANY: Final = 64
"""Beyond so many groups, empty ones are forgotten."""
SAME_S: Final = 1e-6
LATE: Final = 4
MOST_VICTIMS: Final = 1024
"""So many are looked at for one newcomer."""
LIFT: Final = 0
VICTIM: Final = 1
RANK: Final = 2
READY: Final = 3


class Scheduler:
    """The state of a pool: what is free, who runs, who waits. Mutable, but pure: no clock, no chance."""

    def __init__(self, frees: Frees, policy: Policy, order: Order | None = None) -> None:
        self.frees = frees
        self.policy = policy
        self.order: Order = ORDERS[policy.order]() if order is None else order
        self.running: dict[int, Ask] = {}
        self.waiting = 0
        self._priority: int | None = None
        self._is_fair = isinstance(self.order, Fair)
        self._used: dict[str, int] = {}
        self._may_preempt = policy.preempts and (self._is_fair or bool(self.order.gap))
        """Ranks or priorities differ; else nobody is ever preempted, and time alone changes nothing."""
        self._by_turn = isinstance(self.order, Slices)
        self._groups: dict[tuple[Shape, int, str], Group] = {}
        self._timers: list[tuple[float, int, int, int, Ask]] = []
        self._ends: list[tuple[float, int]] = []
        self._end_of: dict[int, float] = {}
        self._victims: dict[tuple[int, int], list[tuple[float, int]]] = {}
        self._weights: dict[tuple[int, int], int] = {}
        self._promised: dict[int, float] = {}
        self._reservation: Reservation | None = None
        """The last one: it holds as long as everything ends when it was expected to."""
        self._held: tuple[Key, Ask, int] | None = None
        """Who holds the reservation, in short, and with which stamp."""
        self._refused: list[Group] = []
        """Groups that fit and would have delayed the reservation."""

    # -- what happens -------------------------------------------------------------------------------------------------

    def enter(self, ask: Ask, now_s: float, queued_s: float | None = None) -> None:
        """The job waits from now on, or has waited since `queued_s`."""
        self.waiting += 1
        if ask.priority != self._priority:
            self._meet(ask.priority, now_s)
        ask.queued_s = now_s if queued_s is None else queued_s
        ask.rank = self.order.rank(ask, now_s)
        self._note_bound(ask, now_s)
        self._line_up(ask)

    def _note_bound(self, ask: Ask, now_s: float) -> None:
        if not ask.is_lifted and self.order.age_factor:
            lift_s = ask.submitted_s + ask.executed_s + self._bound_s(ask)
            if lift_s <= now_s:
                ask.is_lifted = True
            else:
                heapq.heappush(self._timers, (lift_s, ask.number, LIFT, ask.stamp, ask))

    def _meet(self, priority: int, now_s: float) -> None:
        """Another priority than that of the last job: from now on it matters who may be preempted."""
        is_second, self._priority = self._priority is not None, priority
        if is_second and self.policy.preempts and not self._may_preempt:
            self._may_preempt = True
            for ask in self.running.values():
                self._note_victim(ask, now_s)

    def _bound_s(self, ask: Ask) -> float:
        """How long it may wait in all before it is lifted."""
        known = [guess_s for guess_s in (ask.estimate_s, ask.usual_s) if guess_s is not None]
        return max(self.policy.age_s, self.order.age_factor * min(known, default=0.0))

    def _line_up(self, ask: Ask) -> None:
        named = (ask.shape, ask.learners, ask.queue)
        group = self._groups.get(named)
        if group is None:
            group = self._groups[named] = Group(ask.shape, ask.learners)
        if group.push(self._key(ask), ask):
            group.is_shut = False

    def _key(self, ask: Ask) -> Key:
        if ask.is_lifted:
            return (-ask.priority, min(ask.rank, self.order.lifted), -1, ask.submitted_s, ask.number)
        return (-ask.priority, ask.rank, 0, ask.queued_s if self._by_turn else ask.submitted_s, ask.number)

    def seat(self, ask: Ask, seats: tuple[Seat, ...], now_s: float) -> None:
        """The job runs on these seats, which are taken already."""
        ask.seats, ask.began_s = seats, now_s
        ask.since_s = now_s + ask.restart_s if ask.starts else now_s
        ask.starts += 1
        ask.stamp += 1
        self.running[ask.number] = ask
        self._note_running(ask, now_s)

    def _note_running(self, ask: Ask, now_s: float) -> None:
        self._used[ask.queue] = self._used.get(ask.queue, 0) + ask.weight
        end_s = ask.end_s(now_s)
        if end_s is not None:
            self._end_of[ask.number] = end_s
            insort(self._ends, (end_s, ask.number))
        if self.order.gap:
            ask.rank = self._rank(ask, now_s)
            changes_s = self.order.changes_s(ask, now_s)
            if changes_s is not None:
                heapq.heappush(self._timers, (changes_s, ask.number, RANK, ask.stamp, ask))
        if self._may_preempt:
            self._note_victim(ask, now_s)

    def _note_victim(self, ask: Ask, now_s: float) -> None:
        if ask.may_stop:
            safe_s = ask.began_s + self.policy.ran_factor * ask.restart_s
            if safe_s <= now_s:
                self._add_victim(ask)
            else:
                heapq.heappush(self._timers, (safe_s, ask.number, VICTIM, ask.stamp, ask))

    def adopt(self, ask: Ask, seats: tuple[Seat, ...], now_s: float) -> None:
        """The job runs already, on seats that are not free."""
        if ask.priority != self._priority:
            self._meet(ask.priority, now_s)
        ask.seats, ask.since_s, ask.began_s = seats, now_s, now_s - ask.executed_s
        ask.starts = 1
        self.running[ask.number] = ask
        self._note_running(ask, now_s)

    def line(self) -> list[Ask]:
        """All that wait, first in line first."""
        entries = [
            (key, ask)
            for group in self._groups.values()
            for line in group.lines.values()
            for key, stamp, ask in line
            if stamp == ask.stamp
        ]
        entries.sort(key=lambda entry: entry[0])
        return [ask for _, ask in entries]

    def leave(self, ask: Ask, now_s: float, *, has_ended: bool = True) -> None:
        """The job ended, or was withdrawn."""
        if ask.since_s is None:
            self.waiting -= 1
            ask.stamp += 1
            group = self._groups[ask.shape, ask.learners, ask.queue]
            if group.head is ask:
                group.refresh()
                group.is_shut = False
        else:
            self._unseat(ask, now_s)
            if has_ended:
                self.order.learn(ask.executed_s * ask.weight)
        self._promised.pop(ask.number, None)

    def _rank(self, ask: Ask, now_s: float) -> int:
        """The rank of a running job: one that was lifted makes room for late ones only, a late one for none."""
        if ask.is_lifted:
            return -2 if self._is_late(ask, now_s) else -1
        return self.order.rank(ask, now_s)

    def _unseat(self, ask: Ask, now_s: float) -> None:
        ask.executed_s = ask.executed(now_s)
        ask.since_s = None
        ask.stamp += 1
        self._drop_victim(ask)
        del self.running[ask.number]
        self._used[ask.queue] -= ask.weight
        end_s = self._end_of.pop(ask.number, None)
        if end_s is None or abs(end_s - now_s) > SAME_S:
            self._reservation = None
        if end_s is not None:
            del self._ends[bisect_left(self._ends, (end_s, ask.number))]
        self.frees.give(ask.shape, ask.seats)
        ask.seats = ()
        self.reopen()

    def reopen(self) -> None:
        """Something became possible: every head is tried again."""
        for group in self._groups.values():
            group.is_shut = False

    def _add_victim(self, ask: Ask) -> None:
        named = (ask.priority, ask.rank)
        insort(self._victims.setdefault(named, []), (ask.began_s, ask.number))
        self._weights[named] = self._weights.get(named, 0) + ask.weight
        ask.is_victim = True

    def _drop_victim(self, ask: Ask) -> None:
        if ask.is_victim:
            named = (ask.priority, ask.rank)
            victims = self._victims[named]
            del victims[bisect_left(victims, (ask.began_s, ask.number))]
            self._weights[named] -= ask.weight
            ask.is_victim = False

    # -- time passes --------------------------------------------------------------------------------------------------

    def _tick(self, now_s: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            _, _, kind, stamp, ask = heapq.heappop(timers)
            if stamp != ask.stamp:
                continue
            if kind == LIFT:
                self._lift(ask)
            elif kind == READY:
                self.reopen()
            elif kind == VICTIM:
                self._add_victim(ask)
                self.reopen()
            else:
                self._rerank(ask, now_s)

    def reconsider(self, ask: Ask, now_s: float) -> None:
        """What is known of a waiting job changed: it takes another place in line."""
        ask.rank = self.order.rank(ask, now_s)
        self._move(ask)
        self._note_bound(ask, now_s)

    def _lift(self, ask: Ask) -> None:
        ask.is_lifted = True
        self._move(ask)

    def _move(self, ask: Ask) -> None:
        group = self._groups[ask.shape, ask.learners, ask.queue]
        ask.stamp += 1
        group.is_shut = False
        if group.head is ask:
            group.refresh()
        self._line_up(ask)

    def _rerank(self, ask: Ask, now_s: float) -> None:
        was_victim = ask.is_victim
        self._drop_victim(ask)
        ask.rank, before = self._rank(ask, now_s), ask.rank
        if was_victim:
            self._add_victim(ask)
            if ask.rank > before:
                self.reopen()
        changes_s = self.order.changes_s(ask, now_s)
        if changes_s is not None:
            heapq.heappush(self._timers, (max(changes_s, now_s + 1.0), ask.number, RANK, ask.stamp, ask))

    def _wake_s(self) -> float | None:
        if not self.waiting or not self._may_preempt:
            return None
        timers = self._timers
        while timers and timers[0][3] != timers[0][4].stamp:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    # -- one pass -----------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> Choice:
        """Start what fits and what others must make room for, first in order first."""
        if self._timers and self._timers[0][0] <= now_s:
            self._tick(now_s)
        if not self.waiting:
            return IDLE
        starts: list[Ask] = []
        stops: list[Preemption] = []
        reservation: Reservation | None = None
        todo = self._open()
        while todo:
            _, _, key, group = heapq.heappop(todo)
            ask = group.head
            if ask is None or group.key != key:
                continue
            if group.is_shut:
                break  # only in strict order
            if reservation is None and self._held is not None and self._is_held(key) and self._fits(ask):
                reservation = self._reserve(self._held[1], now_s)
            stopped = len(stops)
            chosen = self._chosen(group, ask, reservation, now_s, stops)
            if chosen is not None:
                self._start(chosen, group, now_s, starts)
                if self._is_fair or len(stops) > stopped:
                    todo = self._open()
                elif group.key is not None:
                    heapq.heappush(todo, (group.key[0], 0.0, group.key, group))
                continue
            group.is_shut = True
            if self.policy.is_strict:
                break
            if (self._held is None or key < self._held[0]) and self._is_reserved_for(ask, now_s) and self.frees.devices:
                self._held = (key, ask, ask.stamp)
                reservation = self._reserve(ask, now_s)
        for group in self._refused:  # what starts meanwhile may leave them seats that are in nobody's way
            group.is_shut = False
        self._refused.clear()
        return Choice(
            starts,
            stops,
            self._wake_s(),
            reservation.ask if reservation else None,
            reservation.at_s if reservation else None,
        )

    def _room(self, ask: Ask) -> int:
        return self.frees.devices if ask.shape.gpus else ask.weight

    def _fits(self, ask: Ask) -> bool:
        return ask.weight <= self._room(ask) and self.frees.room(ask.shape, ask.learners) >= ask.learners

    def _open(self) -> list[_Todo]:
        """The groups whose heads are to be tried, as a heap; in strict order all groups."""
        all_of_them, is_fair = self.policy.is_strict, self._is_fair
        todo: list[_Todo] = []
        for group in self._groups.values():
            key = group.key
            if key is not None and (all_of_them or not group.is_shut):
                todo.append((key[0], self._use(group) if is_fair else 0.0, key, group))
        if len(todo) > 1:
            heapq.heapify(todo)
        return todo

    def _use(self, group: Group) -> float:
        """How much of its share the queue of this group uses."""
        assert group.head is not None
        queue = group.head.queue
        return self._used.get(queue, 0) / self._share(queue).size

    def _share(self, queue: str) -> Share:
        return self.policy.shares.get(queue, NO_SHARE)

    def _chosen(
        self, group: Group, ask: Ask, reservation: Reservation | None, now_s: float, stops: list[Preemption]
    ) -> Ask | None:
        """Who of this group starts now; its seats are taken, by preempting others if need be."""
        if reservation is not None and ask is not reservation.ask:
            if self._fits(ask):
                passing = self._passing(group, reservation, now_s)
                if passing is not None:
                    return passing
                self._refused.append(group)
            seats = None
        else:
            seats = place(self.frees, ask.shape, ask.learners) if ask.weight <= self._room(ask) else None
        if seats is None and self._may_preempt:
            seats = self._make_room(ask, now_s, stops)
        if seats is None:
            return None
        ask.seats = seats
        return ask

    @property
    def head(self) -> Ask | None:
        """The first in line."""
        if not self.waiting:
            return None
        heads = [(group.key, group.head) for group in self._groups.values() if group.key is not None]
        return min(heads, key=lambda entry: entry[0])[1] if heads else None

    def _start(self, ask: Ask, group: Group, now_s: float, starts: list[Ask]) -> None:
        self.waiting -= 1
        self.seat(ask, ask.seats, now_s)
        group.refresh()
        if group.key is None and len(self._groups) > MANY:
            del self._groups[ask.shape, ask.learners, ask.queue]
        starts.append(ask)

    # -- reservations -------------------------------------------------------------------------------------------------

    def _is_reserved_for(self, ask: Ask, now_s: float) -> bool:
        """The head of `fifo-skip`; in the other orders one that is late."""
        return self.policy.order == "fifo-skip" or self._is_late(ask, now_s)

    def _is_late(self, ask: Ask, now_s: float) -> bool:
        """It waited four times its bound: going first did not help."""
        return ask.is_lifted and now_s - ask.submitted_s - ask.executed_s >= LATE * self._bound_s(ask)

    def _is_held(self, key: Key) -> bool:
        """Whether somebody who is ahead of this key waits and was promised not to be delayed."""
        if self._held is None:
            return False
        held_key, ask, stamp = self._held
        if ask.stamp != stamp or ask.since_s is not None:
            self._held = None
            return False
        return held_key < key

    def _reserve(self, ask: Ask, now_s: float) -> Reservation:
        found = self._reservation
        if found is not None and found.ask is ask and now_s < found.at_s:
            return found
        found = self._reservation = reserve(ask, self.frees, self._releases(now_s), now_s)
        promised_s = self._promised.setdefault(ask.number, found.at_s)
        found.is_late = ask.is_lifted and now_s > promised_s
        return found

    def _releases(self, now_s: float) -> Iterator[tuple[float, Ask]]:
        """Running jobs by expected end; those that overran are expected to run as long again."""
        while self._ends and self._ends[0][0] <= now_s:
            _, number = self._ends.pop(0)
            end_s = self.running[number].end_s(now_s)
            assert end_s is not None
            self._end_of[number] = end_s = max(end_s, now_s + 1e-3)
            insort(self._ends, (end_s, number))
        for end_s, number in self._ends:
            yield end_s, self.running[number]
        for ask in self.running.values():
            if ask.number not in self._end_of:
                yield float("inf"), ask

    def _passing(self, group: Group, reservation: Reservation, now_s: float) -> Ask | None:
        """The first of a group that fits now and does not delay the reservation; its seats are taken.

        All of a group get the same seats: who ends before the reservation may have them, or whoever is first if the
        reservation can spare them.
        """
        assert group.head is not None
        seats = place(self.frees, group.shape, group.learners)
        if seats is None:
            return None
        found = reservation.first_admitted(group.heads(), seats, self.frees, now_s)
        if found is None:
            self.frees.give(group.shape, seats)
            return None
        found.seats = seats
        return found

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _candidates(self, ask: Ask, now_s: float) -> list[tuple[int, int]]:
        """(priority, rank) of those that may be preempted for this job now."""
        gap = self.order.gap if self._is_patient_no_more(ask, now_s) else 0
        rank = -1 if self._is_late(ask, now_s) else ask.rank + gap
        return [
            named
            for named, weight in self._weights.items()
            if weight and (named[0] < ask.priority or (gap and named[0] == ask.priority and named[1] >= rank))
        ]

    def _is_patient_no_more(self, ask: Ask, now_s: float) -> bool:
        """Whether it waited long enough that somebody will be stopped for its rank: often somebody just ends."""
        if not self.order.gap or (self.order.needs_lengths and ask.estimate_s is None):
            return False
        ready_s = ask.queued_s + self.policy.patience_factor * ask.restart_s
        if ready_s <= now_s or self._by_turn:
            return True
        if ask.patience_s != ready_s:
            ask.patience_s = ready_s
            heapq.heappush(self._timers, (ready_s, ask.number, READY, ask.stamp, ask))
        return False

    def _make_room(self, ask: Ask, now_s: float, stops: list[Preemption]) -> tuple[Seat, ...] | None:
        """Seats that become free when others are preempted; only as many as needed are."""
        named = self._candidates(ask, now_s)
        candidates: Iterator[Ask] = iter(())
        if named and sum(self._weights[one] for one in named) + self._room(ask) >= ask.weight:
            named.sort(key=lambda one: (one[0], -one[1]))
            candidates = (self.running[number] for one in named for _, number in reversed(self._victims[one]))
        elif self._is_fair:
            candidates = self._borrowers(ask)
        victims = victims_for(ask, self.frees, islice(candidates, MOST_VICTIMS))
        held = [(victim, victim.seats) for victim in victims]
        for victim in victims:
            self.frees.give(victim.shape, victim.seats)
        seats = place(self.frees, ask.shape, ask.learners) if victims else None
        for victim, its in reversed(held):
            if self.frees.has(victim.shape, its):
                self.frees.claim(victim.shape, its)
            else:
                self._preempt(victim, now_s)
                stops.append(Preemption(victim, ask))
        return seats

    def _borrowers(self, ask: Ask) -> Iterator[Ask]:
        """The youngest jobs of queues that have more than is theirs, for one whose queue has less."""
        if self._used.get(ask.queue, 0) + ask.weight > self._share(ask.queue).guaranteed:
            return
        used = dict(self._used)
        running = sorted(self.running.values(), key=lambda one: (one.priority, -one.began_s, -one.number))
        for one in running:
            over = used[one.queue] - self._share(one.queue).guaranteed
            if one.is_victim and one.priority <= ask.priority and one.queue != ask.queue and over >= one.weight:
                used[one.queue] -= one.weight
                yield one

    def _preempt(self, victim: Ask, now_s: float) -> None:
        """Back to the queue, with its place; its seats were given back."""
        victim.seats = ()
        self._unseat(victim, now_s)
        self.enter(victim, now_s)
