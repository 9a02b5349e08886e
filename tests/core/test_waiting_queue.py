"""Waiting queue: order, equivalence classes, and blocked classes."""

from __future__ import annotations

from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import new_order
from dlaas_server.core.scheduling.timers import Timers
from dlaas_server.core.scheduling.waiting_queue import WaitingQueue
from tests.core.scheduler_parts import capacity, gang


def queue_of(*requests: GangRequest, order: str = "fifo-skip") -> WaitingQueue:
    queue = WaitingQueue(capacity(4), new_order(order), Timers())
    for request in requests:
        request.queued_s = request.submitted_s
        queue.insert(request)
    return queue


def test_priority_comes_before_age() -> None:
    queue = queue_of(gang(1), gang(2, priority=1), gang(3))

    assert [request.number for request in queue.in_order()] == [2, 1, 3]
    assert queue.head is not None
    assert (queue.count, queue.head.number) == (3, 2)


def test_equal_requests_form_one_equivalence_class() -> None:
    queue = queue_of(gang(1), gang(2, length_s=9.0), gang(3, 2), gang(4, queue="other"))

    assert [alike.head and alike.head.number for alike in queue.classes.values()] == [1, 3, 4]


def test_shorter_job_becomes_the_head_of_a_blocked_class() -> None:
    queue = queue_of(gang(1, rank=2), order="shortest")
    alike = queue.class_of(gang(2))
    alike.is_blocked, queue.is_open = True, False

    queue.insert(gang(2, rank=1))

    assert (alike.head and alike.head.number, alike.is_blocked, queue.is_open) == (2, False, True)


def test_withdrawn_head_is_replaced_by_the_next_job() -> None:
    first, second = gang(1), gang(2)
    queue = queue_of(first, second)

    queue.withdraw(first)

    assert (queue.head, queue.count, queue.in_order()) == (second, 1, [second])


def test_moved_job_takes_the_place_of_its_new_rank() -> None:
    first, second = gang(1), gang(2)
    queue = queue_of(first, second, order="las")

    queue.take_out(first)
    first.rank = 3
    queue.insert(first)

    assert queue.in_order() == [second, first]
