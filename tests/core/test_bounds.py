"""By when a job starts at the latest where others go first: of a higher priority, or of a queue with a guarantee."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from dlaas_server.core.asks import Ask, Late
from dlaas_server.core.orders import ORDERS
from dlaas_server.core.place import Layout, Shape
from dlaas_server.core.policy import Policy, Share
from dlaas_server.core.scheduler import Choice
from tests.core.streams import SIZES, Coming, Drive, drive

POOL = sum(SIZES)
ONE = Shape(1, 0.0, 0, None, Layout.PACK)
AGE_S = 100.0
LONGEST_S = 150.0
GANG_S = 10.0
COME_UNTIL_S = 6000.0


def without_end(chance: Random, devices: int, *, priority: int = 0, queue: str = "default") -> list[Coming]:
    """Jobs of one device that together keep so many busy: on each, the next comes when the last would end."""
    found: list[Coming] = []
    for _ in range(devices):
        now_s = chance.uniform(0.0, 50.0)
        while now_s < COME_UNTIL_S:
            length_s = chance.uniform(50.0, LONGEST_S)
            ask = Ask(0, ONE, 1, now_s, length_s, usual_s=length_s, priority=priority, queue=queue, restart_s=1.0)
            found.append(Coming(ask, length_s))
            now_s += length_s
    return found


def waited_s(policy: Policy, learners: int, queue: str, others: list[Coming]) -> float:
    """How long a gang of so many learners waits among these."""
    gang = Ask(0, ONE, learners, 100.0, GANG_S, usual_s=GANG_S, queue=queue, restart_s=1.0)
    coming = sorted([Coming(gang, GANG_S), *others], key=lambda one: one.ask.submitted_s)
    for number, one in enumerate(coming):
        one.ask.number, one.ask.id = number, f"j{number}"
    return drive(policy, coming, nothing).first[gang.number] - gang.submitted_s


def nothing(_: Drive, __: float) -> Callable[[Choice], None]:
    return lambda _: None


def bound_s(policy: Policy) -> float:
    """Of the gang, in every order."""
    return Late.OVERDUE * max(policy.age_s, 10.0 * GANG_S) + LONGEST_S + 2.0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("preempts", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_who_is_left_room_by_higher_priorities_starts_within_its_bound(order: str, preempts: bool, seed: int) -> None:
    chance = Random(seed)
    higher = chance.randint(1, POOL - 2)
    learners = chance.randint(2, POOL - higher)
    others = [*without_end(chance, higher, priority=1), *without_end(chance, POOL - higher + 2)]
    policy = Policy(order=order, age_s=AGE_S, preempts=preempts)

    assert waited_s(policy, learners, "default", others) <= bound_s(policy)


@pytest.mark.parametrize("order", ORDERS)
def test_who_is_left_no_room_by_higher_priorities_has_no_bound_though_half_of_the_pool_is_idle(order: str) -> None:
    others = without_end(Random(0), POOL // 2, priority=1)

    assert waited_s(Policy(order=order, age_s=AGE_S), POOL, "default", others) > COME_UNTIL_S - 200.0


@pytest.mark.parametrize("seed", range(3))
def test_a_borrower_that_guarantees_leave_room_starts_within_its_bound(seed: int) -> None:
    chance = Random(seed)
    guaranteed = chance.randint(1, POOL - 2)
    policy = Policy(order="fair", age_s=AGE_S, shares={"owners": Share(guaranteed=guaranteed)})
    others = [*without_end(chance, guaranteed, queue="owners"), *without_end(chance, POOL - guaranteed + 2)]

    assert waited_s(policy, chance.randint(2, POOL - guaranteed), "default", others) <= bound_s(policy)


def test_a_borrower_of_what_is_guaranteed_and_wanted_has_no_bound() -> None:
    policy = Policy(order="fair", age_s=AGE_S, shares={"owners": Share(guaranteed=POOL // 2)})
    others = without_end(Random(0), POOL // 2, queue="owners")

    assert waited_s(policy, POOL, "default", others) > COME_UNTIL_S - 200.0
