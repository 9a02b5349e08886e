"""When running jobs are expected to end."""

from __future__ import annotations

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.core.scheduling.gang_request import Ask
from dlaas_server.core.scheduling.running_set import Ends


def running(number: int, length: float | None) -> Ask:
    shape = Shape(1, 0.0, 0, None, Layout.PACK)
    return Ask(number, shape, 1, 0.0, length, since_s=0.0, id=f"j{number}")


def in_order(ends: Ends, *asks: Ask, now_s: float = 0.0) -> list[tuple[float, int]]:
    return [(end_s, ask.number) for end_s, ask in ends.in_order(asks, now_s)]


def test_who_is_expected_to_end_at_another_time_ends_once_and_then() -> None:
    ends, first, other, longer = Ends(), running(0, 10.0), running(1, 20.0), running(2, 15.0)
    for ask in (first, other, longer):
        ends.add(ask, 0.0)
    assert in_order(ends, first, other, longer) == [(10.0, 0), (15.0, 2), (20.0, 1)]

    longer.estimate_s = 30.0
    ends.add(longer, 0.0)

    assert in_order(ends, first, other, longer) == [(10.0, 0), (20.0, 1), (30.0, 2)]


def test_who_overran_is_expected_to_run_as_long_again_and_who_nobody_knows_of_comes_last() -> None:
    ends, overran, other, unknown = Ends(), running(0, 10.0), running(1, 15.0), running(2, None)
    for ask in (overran, other, unknown):
        ends.add(ask, 0.0)

    assert in_order(ends, overran, other, unknown, now_s=12.0)[:2] == [(15.0, 1), (20.0, 0)]
    assert in_order(ends, overran, other, unknown, now_s=12.0)[2][1] == 2
