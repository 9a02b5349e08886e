"""Expected ends of running jobs."""

from __future__ import annotations

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.running_set import ExpectedEnds


def running(number: int, length: float | None) -> GangRequest:
    shape = Shape(1, 0.0, 0, None, Layout.PACK)
    return GangRequest(number, shape, 1, 0.0, length, since_s=0.0, id=f"j{number}")


def in_order(ends: ExpectedEnds, *requests: GangRequest, now_s: float = 0.0) -> list[tuple[float, int]]:
    return [(end_s, request.number) for end_s, request in ends.in_order(requests, now_s)]


def test_changed_expected_end_occurs_once() -> None:
    ends, first, other, longer = ExpectedEnds(), running(0, 10.0), running(1, 20.0), running(2, 15.0)
    for request in (first, other, longer):
        ends.add(request, 0.0)
    assert in_order(ends, first, other, longer) == [(10.0, 0), (15.0, 2), (20.0, 1)]

    longer.estimate_s = 30.0
    ends.add(longer, 0.0)

    assert in_order(ends, first, other, longer) == [(10.0, 0), (20.0, 1), (30.0, 2)]


def test_overrun_jobs_end_later_and_unknown_ones_last() -> None:
    ends, overran, other, unknown = ExpectedEnds(), running(0, 10.0), running(1, 15.0), running(2, None)
    for request in (overran, other, unknown):
        ends.add(request, 0.0)

    assert in_order(ends, overran, other, unknown, now_s=12.0)[:2] == [(15.0, 1), (20.0, 0)]
    assert in_order(ends, overran, other, unknown, now_s=12.0)[2][1] == 2
