"""Orders, ageing, reservations and preemption, event by event."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from random import Random

import pytest

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout, free_of
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import ORDERS, new_order
from dlaas_server.core.scheduling.run_length import History
from dlaas_server.core.scheduling.scheduler import PassResult, Policy, Scheduler, Share
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import Timers
from tests.core.builders import node

HOUR = 3600.0


def request(
    number: int,
    gpus: int = 1,
    *,
    learners: int = 1,
    length: float | None = HOUR,
    priority: int = 0,
    at: float = 0.0,
    restart: float = 1.0,
) -> GangRequest:
    shape = Shape(gpus, 0.0, 0, None, Layout.PACK)
    return GangRequest(
        number, shape, learners, at, length, usual_s=length, priority=priority, restart_s=restart, id=f"j{number}"
    )


def scheduler(order: str = "shortest", *sizes: int) -> Scheduler:
    nodes = [node(f"n{i}", size) for i, size in enumerate(sizes or (4,))]
    return Scheduler(free_of(nodes, ()), Policy(order=order))


def entered(on: Scheduler, now_s: float, *requests: GangRequest) -> PassResult:
    for one in requests:
        on.enqueue(one, now_s)
    return on.decide(now_s)


def numbers(requests: Iterable[GangRequest]) -> list[int]:
    return [one.number for one in requests]


def test_shortest_job_goes_first_and_ties_go_by_age() -> None:
    on = scheduler()
    entered(on, 0.0, request(0, 4))
    entered(on, 1.0, request(1, 4, length=100 * HOUR), request(2, 4), request(3, 4, length=1.1 * HOUR))

    assert numbers(on.queue_order()) == [2, 3, 1]


def test_much_shorter_job_preempts_after_its_patience() -> None:
    on = scheduler()
    long, brief = request(0, 4, length=100 * HOUR), request(1, 4, length=60.0, at=5.0)
    entered(on, 0.0, long)

    first = entered(on, 5.0, brief)
    assert first.stops == []
    assert first.wake_s is not None

    later = on.decide(105.0)
    assert [(one.victim.number, one.winner.number) for one in later.stops] == [(0, 1)]
    assert numbers(later.starts) == [1]


def test_preempted_job_continues_its_work() -> None:
    on = scheduler()
    long, brief = request(0, 4, length=100 * HOUR), request(1, 4, length=60.0, at=5.0)
    entered(on, 0.0, long)
    entered(on, 5.0, brief)
    on.decide(105.0)
    on.remove(brief, 166.0)

    assert numbers(on.decide(166.0).starts) == [0]
    assert long.executed_s == 105.0
    assert long.since_s == 167.0  # its restart is no work


def test_same_class_is_not_preempted() -> None:
    on = scheduler()
    entered(on, 0.0, request(0, 4, length=2 * HOUR))
    entered(on, 5.0, request(1, 4, length=1.9 * HOUR, at=5.0))

    assert on.decide(1000.0).stops == []


def test_next_class_is_not_preempted() -> None:
    on = scheduler()
    entered(on, 0.0, request(0, 4, length=2 * HOUR))
    entered(on, 5.0, request(1, 4, length=HOUR / 3, at=5.0))

    assert on.decide(1000.0).stops == []

    entered(on, 1000.0, request(2, 4, length=HOUR / 30, at=1000.0))
    assert [(one.victim.number, one.winner.number) for one in on.decide(1100.0).stops] == [(0, 2)]


def test_higher_priority_preempts_at_once_and_as_few_as_needed() -> None:
    on = scheduler("fifo-skip", 4)
    entered(on, 0.0, *(request(n) for n in range(4)))

    found = entered(on, 20.0, request(9, 2, priority=1, length=100 * HOUR, at=20.0))

    assert sorted((one.victim.number, one.winner.number) for one in found.stops) == [(2, 9), (3, 9)]
    assert numbers(on.queue_order()) == [2, 3]


def test_a_job_that_just_began_is_not_preempted() -> None:
    on = scheduler("fifo-skip", 4)
    entered(on, 0.0, *(request(n, restart=60.0) for n in range(4)))

    assert entered(on, 599.0, request(9, priority=1, at=599.0)).stops == []
    assert len(on.decide(600.0).stops) == 1


def test_no_preemption_if_the_policy_forbids_it() -> None:
    on = Scheduler(free_of([node("n0", 4)], ()), Policy(preempts=False))
    entered(on, 0.0, request(0, 4, length=100 * HOUR))

    assert not entered(on, HOUR, request(1, 4, length=1.0, priority=5, at=HOUR)).stops


def test_a_passing_job_may_not_delay_the_first_in_line() -> None:
    on = scheduler("fifo-skip", 4)
    entered(on, 0.0, request(0, 2, length=100.0))
    entered(on, 1.0, request(1, 4, length=50.0, at=1.0))

    found = entered(on, 2.0, request(2, 2, length=2000.0, at=2.0), request(3, 2, length=90.0, at=2.0))

    assert numbers(found.starts) == [3]
    assert (found.reserved and found.reserved.number, found.reserved_s) == (1, 100.0)


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_held_back_job_is_retried_once_the_reservation_ends(*, is_withdrawn: bool) -> None:
    on = scheduler("fifo-skip", 4)
    on.set_policy(Policy(order="fifo-skip", age_s=1.0), 0.0)
    entered(on, 0.0, request(0, 3, priority=5), request(1, priority=-1))
    overdue = request(2, 4, length=None, at=1.0)
    entered(on, 1.0, overdue)
    assert entered(on, 20.0, request(3, at=20.0)).stops == [], "all that ends is kept for job 2"

    if is_withdrawn:
        on.remove(overdue, 21.0, has_ended=False)
    else:
        on.enqueue(request(4, 2, learners=2, priority=1, at=21.0), 21.0)

    assert [(one.victim.number, one.winner.number) for one in on.decide(21.0).stops] == [(1, 3)]


def test_no_wake_up_for_a_job_that_left() -> None:
    on = scheduler("fifo-skip", 4)
    brief = request(0, 2, length=100.0)
    entered(on, 0.0, brief, request(1, 2, length=500.0))
    entered(on, 1.0, request(2, 4, at=1.0))
    on.remove(brief, 2.0)

    found = entered(on, 2.0, request(3, 2, length=2000.0, at=2.0))

    assert (found.starts, found.reserved_s) == ([], 500.0)
    assert found.wake_s is not None
    assert found.wake_s >= 500.0


def test_backfilled_job_may_use_unreserved_seats() -> None:
    on = scheduler("fifo-skip", 4, 4)
    entered(on, 0.0, request(0, 4, length=100.0), request(1, 2, length=500.0))
    entered(on, 1.0, request(2, 4, length=50.0, at=1.0))

    assert numbers(entered(on, 2.0, request(3, 2, length=10_000.0, at=2.0)).starts) == [3]


def test_start_ahead_of_a_reservation_counts_against_its_spare_devices() -> None:
    on = scheduler("fifo-skip", 8)
    holder, admitted = request(2, 4, length=50.0), request(3, length=50.0)
    first = entered(on, 0.0, request(0, 3, length=100.0), request(1, 3, length=200.0), holder, admitted)
    assert (numbers(first.starts), first.reserved_s) == ([0, 1, 3], 100.0)

    on.remove(admitted, 50.0)  # at its expected end, so that the reservation still holds
    admitted.priority, admitted.estimate_s = 1, None
    found = entered(on, 50.0, admitted, request(5, length=None))

    assert numbers(found.starts) == [3], "the holder needs the last free device at 100 s"


def test_fifo_stops_at_the_first_that_does_not_fit() -> None:
    on = scheduler("fifo", 4)
    entered(on, 0.0, request(0, 2))

    assert not entered(on, 1.0, request(1, 4, at=1.0), request(2, 1, at=1.0)).starts


def test_overdue_job_goes_before_the_middle_class() -> None:
    on = scheduler()
    entered(on, 0.0, request(0, 4, restart=1e9))
    entered(on, 1.0, request(1, 4, length=30 * HOUR, at=1.0, restart=1e9))
    entered(on, 95 * HOUR, request(2, 4, length=25 * HOUR, at=95 * HOUR), request(3, 4, length=HOUR, at=95 * HOUR))

    assert numbers(on.queue_order()) == [3, 1, 2]


@pytest.mark.parametrize(("guess_s", "usual_s"), [(HOUR, 3 * HOUR), (3 * HOUR, HOUR)])
def test_lift_uses_the_longer_of_estimate_and_usual_length(guess_s: float, usual_s: float) -> None:
    one = request(0, 1, length=guess_s)
    one.usual_s = usual_s
    guard = StarvationGuard(Policy(age_s=HOUR), new_order("shortest"), Timers())

    assert guard.lateness(one, 29 * HOUR) == (Lateness.ON_TIME, 30 * HOUR)
    assert guard.lateness(one, 30 * HOUR) == (Lateness.LIFTED, 120 * HOUR)


def test_las_runs_the_least_attained_service_first() -> None:
    on = scheduler("las")
    entered(on, 0.0, request(0, 4, length=None))
    entered(on, 2 * HOUR, request(1, 4, length=None, at=2 * HOUR))

    assert [one.victim.number for one in on.decide(2 * HOUR + 100.0).stops] == [0]


def test_jobs_take_turns() -> None:
    on = scheduler("time-slice")
    entered(on, 0.0, request(0, 4, length=None), request(1, 4, length=None))

    turns = [numbers(on.decide(at).starts) for at in (600.0, 1200.0, 1801.0)]

    assert turns == [[1], [], [0]] or turns == [[1], [0], [1]]


def test_accurate_estimates_are_kept_and_poor_ones_shrunk() -> None:
    right, wild, chance = History(), History(), Random(0)
    for _ in range(50):
        actual_s = chance.lognormvariate(8, 1)
        right.learn(actual_s, actual_s, 1)
        wild.learn(actual_s * chance.lognormvariate(0, 2), actual_s, 1)

    assert right.expected_s(1e6, 1) == pytest.approx(1e6)
    drawn = wild.expected_s(1e6, 1)
    assert drawn is not None
    assert 3000 < drawn < 2e5


@pytest.mark.parametrize(("wrong", "first"), [(0.0, 1), (2.0, 0)])
def test_fair_finish_tries_long_estimates_only_if_unreliable(wrong: float, first: int) -> None:
    order = ORDERS["fair-finish"]()
    for number in range(50):
        order.learn(HOUR, wrong * (-1) ** number)
    long, short = request(0, length=8 * HOUR), request(1, length=2 * HOUR, at=4 * HOUR)

    assert min((order.rank(one, 5 * HOUR), one.number) for one in (long, short))[1] == first


def test_fair_finish_trusts_a_job_that_counts_steps() -> None:
    order = ORDERS["fair-finish"]()
    for number in range(50):
        order.learn(HOUR, 2.0 * (-1) ** number)
    estimated, declared = request(0, length=8 * HOUR), request(1, length=8 * HOUR)
    declared.spread = 0.0

    assert order.rank(estimated, 0.0) < order.rank(declared, 0.0) == 60 * 4 * 8


def test_reported_length_of_a_running_job_moves_the_reservation() -> None:
    on = scheduler("fifo-skip", 4)
    running = request(0, 2, length=100.0)
    entered(on, 0.0, running)
    assert (
        entered(on, 1.0, request(1, 4, length=50.0, at=1.0), request(2, 2, length=2000.0, at=1.0)).reserved_s == 100.0
    )

    running.estimate_s = 500.0
    on.update_estimate(running, 2.0)

    assert entered(on, 2.0, request(3, 2, length=2000.0, at=2.0)).reserved_s == 500.0


def test_job_without_estimate_is_expected_to_be_usual() -> None:
    history = History()
    assert history.expected_s(None, 4) is None
    for actual_s in (10.0, 20.0, 40.0) * 4:
        history.learn(None, actual_s, 4)

    assert history.expected_s(None, 4) == pytest.approx(20.0)


def _stream(chance: Random, count: int) -> list[GangRequest]:
    now_s, found = 0.0, []
    for number in range(count):
        now_s += chance.expovariate(1 / 200)
        gpus, learners = chance.choice([(1, 1), (1, 1), (2, 1), (4, 1), (2, 3), (1, 5)])
        actual_s = chance.lognormvariate(6, 1.5)
        one = request(number, gpus, learners=learners, length=actual_s * chance.lognormvariate(0, 1), at=now_s)
        one.priority = chance.choice([0, 0, 0, 0, 1])
        one.id = repr(actual_s)
        found.append(one)
    return found


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(12))
def test_streams_have_exclusive_devices_whole_gangs_and_all_end(order: str, seed: int) -> None:
    chance = Random(seed)
    on, coming = scheduler(order, 4, 4, 2), _stream(chance, 120)
    todo: list[tuple[float, int, int]] = [(one.submitted_s, one.number, 0) for one in coming]
    heapq.heapify(todo)
    ended: set[int] = set()
    wake_s: float | None = None
    while todo or wake_s is not None:
        now_s = min([*([todo[0][0]] if todo else []), *([wake_s] if wake_s is not None else [])])
        while todo and todo[0][0] <= now_s:
            _, number, starts = heapq.heappop(todo)
            one = coming[number]
            if not starts:
                on.enqueue(one, now_s)
            elif one.starts == starts and one.since_s is not None:
                on.remove(one, now_s)
                ended.add(number)
        found = on.decide(now_s)
        for begun in found.starts:
            assert begun.since_s is not None
            left_s = max(float(begun.id) - begun.executed_s, 1e-3)
            heapq.heappush(todo, (begun.since_s + left_s, begun.number, begun.starts))
        _check(on)
        wake_s = found.wake_s
        if not todo and not on.waiting_count and not on.running:
            break

    assert ended == set(range(len(coming)))


def _check(on: Scheduler) -> None:
    used = [(seat.node, device) for one in on.running.values() for seat in one.seats for device in seat.devices]
    free = [(one.name, device) for one in on.capacity for _, device in one.devices]
    assert len(used) + len(free) == len({*used, *free}) == 10
    for one in on.running.values():
        assert len(one.seats) == one.learners
        assert all(len(seat.devices) == one.shape.gpus for seat in one.seats)


def fair(*, guaranteed: dict[str, int]) -> Scheduler:
    shares = {queue: Share(guaranteed=count) for queue, count in guaranteed.items()}
    return Scheduler(free_of([node("n0", 10)], ()), Policy(order="fair", shares=shares))


def of_queue(queue: str, *numbers: int, at: float = 0.0) -> list[GangRequest]:
    found = [request(number, at=at) for number in numbers]
    for one in found:
        one.queue = queue
    return found


def test_queues_get_their_guarantees_in_any_order() -> None:
    on = fair(guaranteed={"a": 6, "b": 4})
    found = entered(on, 0.0, *of_queue("a", *range(20)), *of_queue("b", *range(20, 40)))

    assert sum(one.queue == "a" for one in found.starts) == 6
    assert len(found.starts) == 10


def test_idle_guarantee_is_lent_and_reclaimed_from_the_youngest() -> None:
    on = fair(guaranteed={"a": 6, "b": 4})
    assert len(entered(on, 0.0, *of_queue("a", *range(8))).starts) == 8
    assert len(entered(on, 5.0, *of_queue("a", 8, 9, at=5.0)).starts) == 2

    found = entered(on, 100.0, *of_queue("b", *range(20, 26), at=100.0))

    assert sorted(one.victim.number for one in found.stops) == [6, 7, 8, 9]
    assert numbers(found.starts) == [20, 21, 22, 23]
    assert on.decide(200.0).stops == []


def test_job_behind_a_reservation_says_so_despite_entitled_starts() -> None:
    shares = {"a": Share(guaranteed=4), "b": Share(guaranteed=4)}
    on = Scheduler(free_of([node("n0", 8)], ()), Policy(order="fair", shares=shares, age_s=1.0))
    (runs, entitled), (overdue, waits) = of_queue("a", 0, 3), of_queue("b", 1, 2)
    runs.learners = runs.weight = 3
    overdue.learners = overdue.weight = 6
    waits.learners = waits.weight = 5
    overdue.estimate_s = overdue.usual_s = 1.0
    entered(on, 0.0, runs, overdue)

    found = entered(on, 300.0, waits, entitled)

    assert numbers(found.starts) == [3]
    assert found.reserved is overdue


def test_job_displaced_in_its_starting_pass_never_started() -> None:
    shares = {"a": Share(weight=100.0), "b": Share(guaranteed=4)}
    on = Scheduler(free_of([node("n0", 4)], ()), Policy(order="fair", shares=shares))
    (borrower,), (owner,) = of_queue("a", 0), of_queue("b", 1)
    borrower.learners = owner.learners = borrower.weight = owner.weight = 4
    borrower.restart_s = owner.restart_s = 0.0

    found = entered(on, 0.0, borrower, owner)

    assert (numbers(found.starts), found.stops) == ([1], [])
    assert (numbers(on.queue_order()), borrower.starts) == ([0], 0)
