"""Starvation guard: lateness of waiting jobs, and the turn of a starving one."""

from __future__ import annotations

from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import new_order
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import LATENESS, Timers
from tests.core.scheduler_parts import gang

BOUND_S = 1000.0  # ten times the length of 100 s


def guard_of(order: str = "shortest", timers: Timers | None = None) -> StarvationGuard:
    return StarvationGuard(Policy(order=order, age_s=1.0), new_order(order), timers or Timers())


def starving(number: int, guard: StarvationGuard) -> GangRequest:
    request = gang(number)
    guard.update(request, Lateness.STARVING * BOUND_S + number)
    return request


def test_each_step_of_lateness_sets_a_timer_for_the_next() -> None:
    timers, request = Timers(), gang(0)

    guard_of(timers=timers).update(request, Lateness.LATE * BOUND_S)

    assert (request.lateness, timers.next_s()) == (Lateness.LATE, Lateness.OVERDUE * BOUND_S)
    assert list(timers.due(Lateness.OVERDUE * BOUND_S)) == [(LATENESS, request)]


def test_oldest_starving_job_that_could_fit_gets_the_turn() -> None:
    guard = guard_of()
    oldest, older, _ = (starving(number, guard) for number in range(3))

    assert guard.pass_turn(lambda request: request is not oldest) == [older]
    assert guard.turn is older


def test_no_job_gets_the_turn_while_a_starved_one_runs() -> None:
    guard = guard_of()
    first, second = starving(0, guard), starving(1, guard)
    guard.start(first)

    assert (guard.pass_turn(lambda _: True), guard.turn) == ([], None)

    guard.end(first)
    assert guard.pass_turn(lambda _: True) == [second]


def test_starving_job_without_the_turn_counts_as_overdue() -> None:
    guard = guard_of()

    assert starving(0, guard).lateness is Lateness.OVERDUE


def test_orders_by_age_find_starving_jobs_by_dates() -> None:
    timers, request = Timers(), gang(5)
    guard = guard_of("fifo-skip", timers)
    request.queued_s = 5.0

    guard.watch(request, 5.0)
    guard.update_aged(5.0 + Lateness.STARVING - 1e-3)
    assert (guard.starving, timers.next_s()) == ({}, None)

    guard.update_aged(5.0 + Lateness.STARVING)
    assert guard.starving == {5: request}
