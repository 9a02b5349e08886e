"""Starvation guard: lateness of waiting jobs, and one turn before all priorities for a job that waited too long.

Each job has a bound on its wait, and becomes lifted, late, overdue and at last starving after multiples of it
(`lateness.py`). Only one starving job at a time has the turn. Otherwise a pool that is overloaded for days would
schedule by age, and priorities would have no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import SLACK_S, Fair, Order, is_by_age, length_counts
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.timers import LATENESS, Timers

__all__ = ["StarvationGuard"]


class StarvationGuard:
    """Bounds of waiting jobs, starving jobs, and the one that has the turn."""

    def __init__(self, policy: Policy, order: Order, timers: Timers) -> None:
        self._bound_min_s = policy.age_s
        self._bound_factor = order.age_factor
        self._length_factor = length_counts(order)
        self._is_by_age = is_by_age(order)
        self._timers = timers
        self._steps: tuple[Lateness, ...] = (Lateness.STARVING,)
        """Steps of lateness in this order."""
        if isinstance(order, Fair):
            self._steps = (Lateness.OVERDUE, Lateness.STARVING)
        elif order.lifted is not None:
            self._steps = (Lateness.LIFTED, Lateness.LATE, Lateness.OVERDUE, Lateness.STARVING)
        self._starving_after_s = Lateness.STARVING * policy.age_s
        self._ages: deque[tuple[float, int, GangRequest]] = deque()
        """(earliest time at which it starves, version, job), by time. Only used in orders by age."""
        self.next_starving_s = inf
        """Earliest time of these; infinity if there is none."""
        self.turn: GangRequest | None = None
        """Waiting job that has the turn; everything that it needs is kept for it."""
        self.starving: dict[int, GangRequest] = {}
        """Starving jobs by number. Mostly empty: callers check this first, to save a method call at each event."""
        self.served: set[int] = set()
        """Numbers of running jobs that starved before they started."""
        self._by_age: list[tuple[float, int]] = []
        """Heap of starving jobs: submission time and number."""

    # -- lateness -----------------------------------------------------------------------------------------------------

    def bound_s(self, request: GangRequest) -> float:
        """Return the bound on the job's wait."""
        return request.bound_s(self._bound_min_s, self._bound_factor)

    def lateness(self, request: GangRequest, at_s: float) -> tuple[Lateness, float | None]:
        """Return the lateness that the job reaches if it waits until `at_s`, and the time of the next step.

        Lifting costs other jobs little, so the job's whole wait counts. Later steps cost them much, so only the wait
        since it last ran counts.
        """
        lateness, bound_s = Lateness.ON_TIME, request.bound_s(self._bound_min_s, self._length_factor)
        for step in self._steps:
            since_s = request.submitted_s + request.executed_s if step is Lateness.LIFTED else request.queued_s
            due_s = since_s + step * bound_s
            if due_s > at_s:
                return lateness, due_s
            lateness = step
        return lateness, None

    def lateness_without_turn(self, request: GangRequest, at_s: float) -> tuple[Lateness, bool]:
        """Return the lateness of the job if another one has the turn, and whether it starves. Changes nothing."""
        lateness, _ = self.lateness(request, at_s)
        return (self._behind_turn(), True) if lateness is Lateness.STARVING else (lateness, False)

    def _behind_turn(self) -> Lateness:
        """Return the lateness that a starving job counts as while another job has the turn."""
        return self._steps[-2] if len(self._steps) > 1 else Lateness.ON_TIME

    def update(self, request: GangRequest, now_s: float) -> None:
        """Update the lateness of a waiting job, and set a timer for its next step."""
        request.lateness, next_s = self.lateness(request, now_s)
        if request.lateness is Lateness.STARVING:
            self._starves(request)
            if request is not self.turn:
                request.lateness = self._behind_turn()
        if next_s is not None:
            self._timers.add(next_s, LATENESS, request)

    def watch(self, request: GangRequest, now_s: float) -> None:
        """Start to watch a job that begins to wait, in orders by age, where it is on time until it starves.

        The jobs stand in a queue by time, since a timer per job would cost too much.
        """
        request.lateness = Lateness.ON_TIME
        at_s, ages = request.queued_s + self._starving_after_s, self._ages
        if not ages:
            self.next_starving_s = at_s
        elif at_s < ages[-1][0]:
            self.update(request, now_s)
            return
        ages.append((at_s, request.version, request))

    def update_aged(self, now_s: float) -> None:
        """Update the jobs that starve by now, in orders by age."""
        ages = self._ages
        while ages and ages[0][0] <= now_s:
            _, version, request = ages.popleft()
            if request.version == version:
                self.update(request, now_s)
        self.next_starving_s = ages[0][0] if ages else inf

    def is_overdue(self, request: GangRequest, now_s: float) -> bool:
        """Return whether freed capacity is kept for this waiting job."""
        if self._is_by_age:  # no job is lifted, so no timer marks the step
            return self.overdue_s(request) <= now_s
        return request.lateness >= Lateness.OVERDUE

    def overdue_s(self, request: GangRequest) -> float:
        """Return the time at which a waiting job becomes overdue."""
        return request.queued_s + Lateness.OVERDUE * self.bound_s(request)

    # -- turn ---------------------------------------------------------------------------------------------------------

    def _starves(self, request: GangRequest) -> None:
        if request.number not in self.starving:
            self.starving[request.number] = request
            heappush(self._by_age, (request.submitted_s, request.number))

    def withdraw(self, request: GangRequest) -> bool:
        """Remove a job that no longer waits. Return whether it was starving."""
        if self.turn is request:
            self.turn = None
        return self.starving.pop(request.number, None) is not None

    def start(self, request: GangRequest) -> None:
        """Record the start of a waiting job. If it starved, no other job gets the turn until it ends."""
        if self.withdraw(request):
            request.lateness = Lateness.STARVING
            self.served.add(request.number)

    def adopt(self, request: GangRequest) -> None:
        """Record a job that runs already, with the lateness that it had when it started."""
        request.lateness, _ = self.lateness(request, request.began_s + SLACK_S)
        if request.lateness is Lateness.STARVING:
            self.served.add(request.number)

    def end(self, request: GangRequest) -> None:
        """Record that a job no longer runs."""
        self.served.discard(request.number)

    def pass_turn(self, could_fit: Callable[[GangRequest], bool]) -> list[GangRequest]:
        """Give the turn to the oldest starving job that could fit, if none runs. Return the jobs that it changes."""
        before, self.turn = self.turn, None if self.served else self._oldest(could_fit)
        return [request for request in (before, self.turn) if request is not None and before is not self.turn]

    def _oldest(self, could_fit: Callable[[GangRequest], bool]) -> GangRequest | None:
        by_age, unfit = self._by_age, []
        oldest: GangRequest | None = None
        while by_age and oldest is None:
            request = self.starving.get(by_age[0][1])
            if request is not None and could_fit(request):
                oldest = request
            else:
                entry = heappop(by_age)
                if request is not None:
                    unfit.append(entry)
        for entry in unfit:
            heappush(by_age, entry)
        return oldest
