"""Locality of gangs in the incremental scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlaas_server.core.model.job import Profile
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import free_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.placement.topology import FIRST_S
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.scheduler import Policy, Scheduler
from tests.core.builders import job, node, pool, seats, training


def request(number: int, learners: int, layout: Layout = Layout.TOPOLOGY, milli: int = 1000) -> GangRequest:
    return GangRequest(number, Shape(1, 0.0, 0, None, layout, milli=milli), learners, 0.0, 100.0)


@pytest.mark.parametrize("order", ["fifo", "fifo-skip", "shortest"])
def test_gang_is_retried_when_its_locality_relaxes(order: str) -> None:
    scheduler = Scheduler(free_of([node("a", 4), node("b", 4)], ()), Policy(order=order))
    for number in (1, 2):
        scheduler.enqueue(request(number, 2 + number % 2), 0.0)
    assert len(scheduler.decide(0.0).starts) == 2  # 3 on one node, 2 on the other
    gang = request(3, 3)
    scheduler.enqueue(gang, 10.0)

    choice = scheduler.decide(10.0)

    assert not choice.starts
    assert choice.wake_s is not None
    assert choice.wake_s <= 10.0 + FIRST_S
    assert scheduler.decide(10.0 + FIRST_S).starts == [gang]
    assert {seat.node for seat in gang.seats} == {"a", "b"}


@pytest.mark.parametrize("order", ["fifo-skip", "shortest"])
def test_jobs_behind_a_gang_keep_its_starvation_guard(order: str) -> None:
    scheduler = Scheduler(free_of([node("a", 4), node("b", 4)], ()), Policy(order=order, preempts=False))
    for number in (1, 2):
        scheduler.enqueue(request(number, 2 + number % 2), 0.0)
    scheduler.decide(0.0)
    scheduler.enqueue(request(3, 3), 10.0)
    relaxes_s = scheduler.decide(10.0).wake_s
    assert relaxes_s is not None
    scheduler.enqueue(request(4, 3), 11.0)

    choice = scheduler.decide(11.0)

    assert not choice.starts
    assert choice.wake_s == relaxes_s


def test_shares_start_though_no_device_is_whole() -> None:
    scheduler = Scheduler(free_of([node("a", 1)], ()), Policy(order="fifo"))
    halves = [request(number, 1, Layout.FGD, 500) for number in range(3)]
    for one in halves:
        scheduler.enqueue(one, 0.0)

    assert scheduler.decide(0.0).starts == halves[:2]
    scheduler.remove(halves[0], 5.0)
    assert scheduler.decide(5.0).starts == halves[2:]


def test_job_with_little_communication_does_not_wait_for_locality() -> None:
    asked = job(2, (2, 2))
    gang = replace(asked, spec=replace(asked.spec, placement=None))
    beside = training(job(1, (2, 2)), *seats("n1", 1), *seats("n2", 1))
    policy = Policy(placement=Layout.TOPOLOGY)

    def starts(profile: Profile) -> list[str]:
        picture = pool([node("n1", 2), node("n2", 2)], beside, replace(gang, profile=profile))
        return [start.job for start in plan(picture, 10.0, policy).starts]

    assert starts(Profile()) == []
    assert starts(Profile(skew=0.9)) == []
    assert starts(Profile(skew=0.1)) == [gang.id]
    assert starts(Profile(communication=0.01, skew=0.9)) == [gang.id]
    assert starts(Profile(communication=0.3, skew=0.1)) == []
