"""Builders for unit tests of the scheduler's parts."""

from __future__ import annotations

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity, free_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.scheduling.fit import take_seats
from dlaas_server.core.scheduling.gang_request import GangRequest
from tests.core.builders import node

__all__ = ["capacity", "gang", "running"]


def capacity(*devices: int) -> FreeCapacity:
    """Return the capacity of empty nodes with so many devices."""
    return free_of([node(f"n{i}", count) for i, count in enumerate(devices)], ())


def gang(
    number: int, learners: int = 1, *, gpus: int = 1, length_s: float | None = 100.0, **fields: object
) -> GangRequest:
    """Return a request for a gang, submitted at the time of its number."""
    shape = Shape(gpus, 0.0, 0, None, Layout.PACK)
    return GangRequest(number, shape, learners, float(number), length_s, usual_s=length_s, **fields)  # type: ignore[arg-type]


def running(request: GangRequest, free: FreeCapacity, began_s: float = 0.0) -> GangRequest:
    """Seat a gang, as the scheduler does when it starts."""
    seats = take_seats(free, request, began_s)
    assert seats is not None
    request.seats, request.began_s, request.since_s, request.starts = seats, began_s, began_s, 1
    return request
