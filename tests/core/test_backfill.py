"""Backfill: the holder of the reservation, and admission past it."""

from __future__ import annotations

import pytest

from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.scheduling.backfill import Backfill, Reservation, reserve
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import new_order
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.running_set import RunningSet
from dlaas_server.core.scheduling.scheduler import Scheduler
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import Timers
from dlaas_server.core.scheduling.waiting_queue import LAST, WaitingQueue
from tests.core.scheduler_parts import capacity, gang, running


def backfill_of(free: FreeCapacity, *jobs: GangRequest) -> tuple[Backfill, WaitingQueue]:
    policy, order, timers = Policy(order="shortest"), new_order("shortest"), Timers()
    guard = StarvationGuard(policy, order, timers)
    queue, running_jobs = WaitingQueue(free, order, timers), RunningSet(tracks_nodes=False)
    for job in jobs:
        running_jobs.add(job, 0.0)
    return Backfill(free, policy, order, queue, running_jobs, guard), queue


def late(request: GangRequest, backfill: Backfill, queue: WaitingQueue) -> None:
    request.lateness = Lateness.LATE
    backfill.add_late(queue.insert(request), request)


def test_reservation_starts_when_enough_running_jobs_have_ended() -> None:
    free = capacity(4)
    ends = [(10.0, running(gang(0, 2), free)), (20.0, running(gang(1, 1), free)), (30.0, running(gang(2, 1), free))]

    reservation = reserve(gang(9, 3), free, ends, 5.0)

    assert (reservation.at_s, reservation.spare) == (20.0, 0)


@pytest.mark.parametrize(("length_s", "is_admitted"), [(10.0, True), (11.0, False), (None, False)])
def test_job_that_ends_before_the_reservation_is_admitted(length_s: float | None, is_admitted: bool) -> None:
    free = capacity(2)
    reservation = reserve(gang(9, 2), free, [(10.0, running(gang(0), free))], 0.0)
    passing = running(gang(1, length_s=length_s), free)
    passing.since_s = None
    passing.starts = 0

    admitted = reservation.first_admitted([passing], passing.seats, free, 0.0)

    assert (admitted is passing) is is_admitted


def test_reservation_spares_devices_that_its_gang_does_not_need() -> None:
    free = capacity(4)
    reservation = reserve(gang(9, 3), free, [(10.0, running(gang(0, 2), free))], 0.0)
    assert (reservation.at_s, reservation.spare) == (10.0, 1)
    seats = running(gang(1), free).seats

    assert reservation.first_admitted([gang(1, length_s=None)], seats, free, 0.0) is not None
    assert reservation.spare == 0
    assert reservation.first_admitted([gang(2, length_s=None)], running(gang(2), free).seats, free, 0.0) is None


def test_first_late_job_that_could_fit_holds_the_reservation() -> None:
    backfill, queue = backfill_of(capacity(2))
    too_large, fitting = gang(1, 3), gang(2, 2)
    late(too_large, backfill, queue)
    late(fitting, backfill, queue)

    assert backfill.holder(LAST) is fitting
    assert backfill.holder(queue.key_of(fitting)) is None


def test_job_held_back_is_retried_once_the_holder_changes() -> None:
    backfill, queue = backfill_of(capacity(2))
    holder = gang(1, 2)
    late(holder, backfill, queue)
    backfill.hold_back()
    queue.class_of(holder).is_blocked = True

    assert not backfill.retry_if_holder_changed()
    queue.withdraw(holder)

    assert backfill.retry_if_holder_changed()
    assert not queue.class_of(holder).is_blocked


def test_reservation_is_kept_while_jobs_end_as_expected() -> None:
    free = capacity(2)
    backfill, queue = backfill_of(free, running(gang(0, 2), free))
    holder = gang(1, 2)
    late(holder, backfill, queue)

    first = backfill.reserve(holder, 0.0)
    assert isinstance(first, Reservation)
    assert (first.at_s, backfill.reserve(holder, 1.0)) == (100.0, first)

    backfill.discard_reservation()
    assert backfill.reserve(holder, 1.0) is not first


def test_unknown_ends_count_against_an_unknown_reservation_once() -> None:
    """A job that passed the gang is running in the next pass, and no longer among those that take its devices."""
    scheduler = Scheduler(capacity(5), Policy(order="fifo-skip"))
    scheduler.enqueue(gang(0, 2, length_s=None), 0.0)
    scheduler.decide(0.0)
    for waiting in (gang(1, 4, length_s=None), gang(2, length_s=None), gang(3, length_s=None)):
        scheduler.enqueue(waiting, 3.0)

    passed = [[request.number for request in scheduler.decide(now_s).starts] for now_s in (3.0, 4.0, 5.0)]

    assert passed == [[2], [3], []]
