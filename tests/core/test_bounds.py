"""Bounds on the wait of jobs behind higher priorities or guarantees of queues."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.core.scheduling.scheduler import PassResult
from tests.core.streams import SIZES, Coming, Drive, drive

POOL = sum(SIZES)
ONE = Shape(1, 0.0, 0, None, Layout.PACK)
AGE_S = 100.0
LONGEST_S = 150.0
GANG_S = 10.0
COME_UNTIL_S = 6000.0
STARVING_S = Lateness.STARVING * AGE_S


def without_end(
    chance: Random, devices: int, *, priority: int = 0, queue: str = "default", until_s: float = COME_UNTIL_S
) -> list[Coming]:
    """Jobs of one device that together keep so many busy: on each, the next comes when the last would end."""
    found: list[Coming] = []
    for _ in range(devices):
        now_s = chance.uniform(0.0, 50.0)
        while now_s < until_s:
            length_s = chance.uniform(50.0, LONGEST_S)
            request = GangRequest(
                0, ONE, 1, now_s, length_s, usual_s=length_s, priority=priority, queue=queue, restart_s=1.0
            )
            found.append(Coming(request, length_s))
            now_s += length_s
    return found


def waited_s(policy: Policy, learners: int, queue: str, others: list[Coming]) -> float:
    """Return the wait of a gang with this number of learners among these jobs."""
    gang = a_gang(learners, 100.0, queue)
    return driven(policy, [gang, *others]).first[gang.request.number] - gang.request.submitted_s


def a_gang(learners: int, submitted_s: float, queue: str = "default") -> Coming:
    request = GangRequest(0, ONE, learners, submitted_s, GANG_S, usual_s=GANG_S, queue=queue, restart_s=0.1)
    return Coming(request, GANG_S)


def driven(policy: Policy, coming: list[Coming]) -> Drive:
    coming = sorted(coming, key=lambda one: one.request.submitted_s)
    for number, one in enumerate(coming):
        one.request.number, one.request.id = number, f"j{number}"
    return drive(policy, coming, nothing)


def nothing(_: Drive, __: float) -> Callable[[PassResult], None]:
    return lambda _: None


def bound_s(policy: Policy) -> float:
    """Of the gang, in every order."""
    return Lateness.OVERDUE * max(policy.age_s, 10.0 * GANG_S) + LONGEST_S + 2.0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("preempts", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_job_with_room_below_higher_priorities_starts_within_its_bound(order: str, preempts: bool, seed: int) -> None:
    chance = Random(seed)
    higher = chance.randint(1, POOL - 2)
    learners = chance.randint(2, POOL - higher)
    others = [*without_end(chance, higher, priority=1), *without_end(chance, POOL - higher + 2)]
    policy = Policy(order=order, age_s=AGE_S, preempts=preempts)

    assert waited_s(policy, learners, "default", others) <= bound_s(policy)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("preempts", [True, False])
@pytest.mark.parametrize("busy", [POOL // 2, POOL])
def test_starvation_guard_helps_a_job_blocked_by_higher_priorities(order: str, preempts: bool, busy: int) -> None:
    """A gang of the whole pool, which is half or quite full of others with a higher priority all the time."""
    others = without_end(Random(0), busy, priority=1, until_s=2 * STARVING_S)
    policy = Policy(order=order, age_s=AGE_S, preempts=preempts)

    assert STARVING_S <= waited_s(policy, POOL, "default", others) <= STARVING_S + LONGEST_S + 2.0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("learners", [1, POOL // 2 + 1])
def test_starving_jobs_run_one_at_a_time_oldest_first_unpreempted(order: str, learners: int) -> None:
    """Priorities would mean nothing, else, in a pool that has had too much to do for days."""
    gangs = [a_gang(learners, 100.0 + number) for number in range(3)]
    others = without_end(Random(1), POOL + 2, priority=1, until_s=2 * STARVING_S)

    on = driven(Policy(order=order, age_s=AGE_S), [*gangs, *others])

    times = [(on.first[one.request.number], on.ended[one.request.number]) for one in gangs]
    assert times == sorted(times)
    assert all(ends <= begins for (_, ends), (begins, _) in pairwise(times))
    assert times[0][0] >= STARVING_S
    assert [ends - begins for begins, ends in times] == pytest.approx([GANG_S] * 3)
    assert times[-1][1] <= STARVING_S + 3 * (LONGEST_S + GANG_S + 2.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_borrower_that_guarantees_leave_room_starts_within_its_bound(seed: int) -> None:
    chance = Random(seed)
    guaranteed = chance.randint(1, POOL - 2)
    policy = Policy(order="fair", age_s=AGE_S, shares={"owners": Share(guaranteed=guaranteed)})
    others = [*without_end(chance, guaranteed, queue="owners"), *without_end(chance, POOL - guaranteed + 2)]

    assert waited_s(policy, chance.randint(2, POOL - guaranteed), "default", others) <= bound_s(policy)


def test_borrower_of_guaranteed_devices_in_demand_has_no_bound() -> None:
    policy = Policy(order="fair", age_s=AGE_S, shares={"owners": Share(guaranteed=POOL // 2)})
    others = without_end(Random(0), POOL // 2, queue="owners")

    assert waited_s(policy, POOL, "default", others) > COME_UNTIL_S - 200.0
