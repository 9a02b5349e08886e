"""What holds in every stream of jobs, whatever the order. A failure names its seed and order: run that one alone.

STREAM_SEEDS=200 tries more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest

from dlaas_server.core.orders import ORDERS
from dlaas_server.core.plan import scheduled
from dlaas_server.core.scheduler import Choice, Policy, Share
from tests.core.streams import Drive, drive, stream

SEEDS = int(os.environ.get("STREAM_SEEDS") or 5)


def policy(order: str, **fields: float) -> Policy:
    """Bounds are short, so that jobs are late, too."""
    shares = {"a": Share(guaranteed=6), "b": Share(guaranteed=4)}
    return Policy(order=order, shares=shares if order == "fair" else {}, **({"age_s": 300.0} | fields))  # type: ignore[arg-type]


def said(choice: Choice) -> tuple[object, ...]:
    starts = [(ask.number, ask.seats) for ask in choice.starts]
    return starts, [(stop.victim.number, stop.winner.number) for stop in choice.stops]


def as_the_whole_plan(on: Drive, now_s: float) -> Callable[[Choice], None]:
    whole, _ = scheduled(on.picture(now_s), now_s, on.on.policy, (), on.on.order)
    wanted = said(whole.decide(now_s))

    def after(choice: Choice) -> None:
        assert said(choice) == wanted, f"at {now_s}"

    return after


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_event_by_event_the_same_is_decided_as_from_the_whole_picture(order: str, seed: int) -> None:
    chance = Random(seed)
    coming = stream(chance, 30, gap_s=chance.choice([100.0, 300.0, 1000.0]))
    looks = [chance.uniform(0.0, coming[-1].ask.submitted_s + 5000.0) for _ in range(30)]

    drive(policy(order), coming, as_the_whole_plan, looks)
