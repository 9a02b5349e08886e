"""Invariants of random streams of jobs, in every order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from dlaas_server.core.planning.scheduler_snapshot import scheduler_of
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.scheduler import PassResult, Policy, Share
from tests.core.streams import SIZES, Coming, Drive, drive, in_streams, stream


def policy(order: str, **fields: float) -> Policy:
    """Bounds are short, so that jobs are late, too."""
    shares = {"a": Share(guaranteed=6), "b": Share(guaranteed=4)}
    return Policy(order=order, shares=shares if order == "fair" else {}, **({"age_s": 300.0} | fields))  # type: ignore[arg-type]


def said(choice: PassResult) -> tuple[object, ...]:
    starts = [(request.number, request.seats) for request in choice.starts]
    return starts, [(stop.victim.number, stop.winner.number) for stop in choice.stops]


def as_the_whole_plan(on: Drive, now_s: float) -> Callable[[PassResult], None]:
    whole, _ = scheduler_of(on.picture(now_s), now_s, on.on.policy, on.on.order)
    wanted = said(whole.decide(now_s))

    def after(choice: PassResult) -> None:
        assert said(choice) == wanted, f"at {now_s}"

    return after


@pytest.mark.parametrize("order", ORDERS)
def test_incremental_decisions_equal_those_from_a_snapshot(order: str) -> None:
    def tried(chance: Random) -> None:
        coming = stream(chance, 30, gap_s=chance.choice([100.0, 300.0, 1000.0]))
        looks = [chance.uniform(0.0, coming[-1].request.submitted_s + 5000.0) for _ in range(30)]
        drive(policy(order), coming, as_the_whole_plan, looks)

    in_streams(1, tried)


def nothing_wrong(on: Drive, now_s: float) -> Callable[[PassResult], None]:
    def after(choice: PassResult) -> None:
        used = [(s.node, device) for one in on.on.running.values() for s in one.seats for device in s.devices]
        free = [(one.name, device) for one in on.on.capacity for _, device in one.devices]
        assert len(used) + len(free) == len({*used, *free}) == sum(SIZES), "a device is given twice, or lost"
        for one in on.on.running.values():
            assert len(one.seats) == one.learners, "a gang is held in part"
            assert all(len(seat.devices) == one.shape.gpus for seat in one.seats)
        if not choice.stops:  # a preempted job may start elsewhere at once
            for one in on.on.queue_order():
                if (
                    one.weight <= on.on.capacity.devices
                    and on.on.capacity.fit_count(one.shape, one.learners) >= one.learners
                ):
                    assert choice.reserved is not None or on.on.policy.order == "fifo", "a job fits and waits"

    return after


def is_ahead(on: Drive, _: float) -> Callable[[PassResult], None]:
    """Check that lower priorities do not start before equal requests of higher ones, except starving jobs."""
    before = {one.number for one in on.on.running.values()}

    def after(choice: PassResult) -> None:
        waiting = on.on.queue_order()
        for begun in choice.starts:
            for one in waiting:
                is_new = begun.number not in before and begun.since_s is not None and begun.lateness < Lateness.STARVING
                if is_new and one.priority > begun.priority and choice.reserved is None and not choice.stops:
                    alike = (one.shape, one.learners, one.queue) == (begun.shape, begun.learners, begun.queue)
                    assert not alike, (begun.number, one.number)

    return after


def both(on: Drive, now_s: float) -> Callable[[PassResult], None]:
    looks = [nothing_wrong(on, now_s), is_ahead(on, now_s)]

    def after(choice: PassResult) -> None:
        for look in looks:
            look(choice)

    return after


@pytest.mark.parametrize("order", ORDERS)
def test_devices_are_exclusive_gangs_whole_and_priorities_first(order: str) -> None:
    def tried(chance: Random) -> None:
        drive(policy(order), stream(chance, 40, gap_s=chance.choice([50.0, 300.0, 1000.0])), both)

    in_streams(25, tried)


def against_one_large_gang(chance: Random, count: int = 150) -> list[Coming]:
    """Return a gang as large as the pool, and endless small jobs that fill nine tenths of it."""
    coming = stream(chance, count, gap_s=1e-9, priorities=(0,))
    now_s = 0.0
    for number, one in enumerate(coming):
        one.request.learners, one.request.shape = 1, replace(one.request.shape, gpus=1)
        one.actual_s, one.withdrawn_s = chance.choice([chance.uniform(50.0, 150.0), 100.0]), None
        one.request.estimate_s = one.request.usual_s = chance.choice([None, one.actual_s / 10, one.actual_s])
        one.request.submitted_s = now_s
        if number == 10:
            one.request.learners, one.request.restart_s = sum(SIZES), 1.0
        one.request.weight = one.request.learners
        now_s += 100.0 / (0.9 * sum(SIZES))
    return coming


def none(_: Drive, __: float) -> Callable[[PassResult], None]:
    return lambda _: None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("preempts", [True, False])
def test_whole_pool_gang_starts_within_its_bound(order: str, preempts: bool) -> None:
    def tried(chance: Random) -> None:
        coming = against_one_large_gang(chance, 600)
        policy_s = Policy(order=order, age_s=100.0, preempts=preempts)
        large = coming[10].request
        overdue_s = Lateness.OVERDUE * large.bound_s(policy_s.age_s, 10.0)

        found = drive(policy_s, coming, none)

        longest_s = max(one.actual_s for one in coming)
        assert found.first[10] - large.submitted_s <= overdue_s + longest_s + 2 * large.restart_s

    in_streams(1, tried)


@pytest.mark.parametrize("after", ORDERS)
def test_policy_changed_at_run_time_decides_like_a_constant_one(after: str) -> None:
    """Nothing is lost, and from then on it is as if a plan were made from the whole picture under the new policy."""

    def look(on: Drive, now_s: float) -> Callable[[PassResult], None]:
        if len(on.ended) >= 10 and on.on.policy.order != after:
            on.on.set_policy(policy(after), now_s)
        return as_the_whole_plan(on, now_s)

    for seed, before in enumerate(ORDERS):
        found = drive(policy(before), stream(Random(seed), 30), look)

        assert (len(found.ended), found.on.policy.order) == (30, after)
