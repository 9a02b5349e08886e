"""Spot jobs use idle devices: no job waits for them, and no other decision changes because of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout, free_of
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.scheduler import PassResult, Policy, Share
from dlaas_server.core.spot.spot_scheduler import SpotScheduler
from tests.core.builders import node
from tests.core.streams import Coming, Drive, drive, in_streams, stream
from tests.core.test_streams import as_the_whole_plan, nothing_wrong, policy
from tests.selection import each_nth

ONE: Final = Shape(1, 0.0, 0, None, Layout.PACK)


def mixed(chance: Random, count: int = 40) -> list[Coming]:
    return stream(chance, count, gap_s=chance.choice([50.0, 300.0, 1000.0]), spot=0.4)


@pytest.mark.parametrize("order", each_nth([*ORDERS], 2))
def test_incremental_decisions_equal_those_from_a_snapshot(order: str) -> None:
    def tried(chance: Random) -> None:
        coming = mixed(chance, 30)
        looks = [chance.uniform(0.0, coming[-1].request.submitted_s + 5000.0) for _ in range(30)]
        drive(policy(order), coming, as_the_whole_plan, looks)

    in_streams(1, tried)


def fair_to_ordinary(on: Drive, now_s: float) -> Callable[[PassResult], None]:
    """No ordinary job goes for a spot job, and none that would fit without spot jobs waits beside them."""
    whole = nothing_wrong(on, now_s)

    def after(choice: PassResult) -> None:
        whole(choice)
        assert all(stop.victim.is_spot for stop in choice.stops if stop.winner.is_spot)
        if choice.stops or choice.reserved is not None or on.on.policy.order == "fifo":
            return
        capacity = on.on.ordinary.capacity  # type: ignore[union-attr]
        for one in on.on.queue_order():
            assert one.is_spot or capacity.fit_count(one.shape, one.learners) < one.learners, "it waits for a spot job"

    return after


@pytest.mark.parametrize("order", ORDERS)
def test_devices_are_exclusive_and_no_job_waits_for_spot(order: str) -> None:
    in_streams(10, lambda chance: drive(policy(order), mixed(chance), fair_to_ordinary))


def lives(coming: list[Coming], **fields: object) -> dict[int, tuple[float | None, float]]:
    """Ordinary job -> when it first started, and ended."""
    shares = {"a": Share(guaranteed=6), "b": Share(guaranteed=4)}
    on = Policy(age_s=300.0, shares=shares, spot_price=0.0, **fields)  # type: ignore[arg-type]
    found = drive(on, coming, lambda *_: lambda _: None)
    numbers = [one.request.number for one in coming if not one.request.is_spot]
    return {number: (found.first.get(number), found.ended[number]) for number in numbers}


@pytest.mark.parametrize("preempts", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_spot_jobs_do_not_change_ordinary_decisions(order: str, preempts: bool) -> None:
    """To the second, where all seats are as good: learners of one device each, single ones where some are stopped."""

    def tried(chance: Random) -> None:
        coming = mixed(chance)
        for one in coming:
            one.request.shape, one.request.learners = ONE, 1 if preempts else one.request.learners
            one.request.weight = one.request.learners
        alone = [replace(one, request=replace(one.request)) for one in coming]
        for one in alone:
            if one.request.is_spot:
                one.withdrawn_s = one.request.submitted_s + 1e-9  # it goes as soon as it came
        beside = lives(coming, order=order, preempts=preempts)
        assert beside == lives(alone, order=order, preempts=preempts)

    in_streams(5, tried)


def lending(*sizes: int, **fields: object) -> SpotScheduler:
    nodes = [node(f"n{i}", size) for i, size in enumerate(sizes)]
    return SpotScheduler(free_of(nodes, ()), Policy(**fields))  # type: ignore[arg-type]
