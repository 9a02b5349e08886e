"""Fit of a waiting job: available seats, given its request and its time in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.phrases import duration
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, place
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.placement.topology import Level, allowed, levels, relaxes_after_s
from dlaas_server.core.scheduling.gang_request import GangRequest

__all__ = ["LEVEL_NAMES", "fits", "locality_wait", "max_fitting_weight", "relaxation_times", "take_seats"]

LEVEL_NAMES: Final = {
    Level.LINK: "within one group of linked devices",
    Level.NODE: "on one node",
    Level.RACK: "in one rack",
    Level.AREA: "in one area",
}
"""Names of topology levels in messages."""


def max_fitting_weight(capacity: FreeCapacity, request: GangRequest) -> int:
    """Return an upper bound for the part of the job's weight that fits, in constant time."""
    return capacity.devices if request.shape.gpus and not request.shape.is_share else request.weight


def fits(capacity: FreeCapacity, request: GangRequest) -> bool:
    """Return whether the whole gang fits, however far apart its learners are."""
    return (
        request.weight <= max_fitting_weight(capacity, request)
        and capacity.fit_count(request.shape, request.learners) >= request.learners
    )


def take_seats(capacity: FreeCapacity, request: GangRequest, now_s: float) -> tuple[Seat, ...] | None:
    """Return seats taken from `capacity`; None if the gang does not fit, or still waits for seats closer together."""
    return place(capacity, request.shape, request.learners, now_s - request.queued_s)


def relaxation_times(capacity: FreeCapacity, request: GangRequest) -> Sequence[float]:
    """Return the times at which the job accepts seats further apart."""
    if request.weight == 1 or request.shape.placement != Layout.TOPOLOGY:
        return ()
    return [request.queued_s + relaxes_after_s(steps) for steps in range(1, len(levels(capacity)))]


def locality_wait(capacity: FreeCapacity, shape: Shape, learners: int, waited_s: float) -> str:
    """Return " Waits for devices on one node; accepts devices further apart after 2 min."; else ""."""
    if shape.placement != Layout.TOPOLOGY or capacity.fit_count(shape, learners) < learners:
        return ""
    seats = place(capacity, shape, learners, waited_s)
    if seats is not None:
        capacity.give(shape, seats)
        return ""
    level = allowed(capacity, shape, learners, waited_s)
    times = (relaxes_after_s(steps) for steps in range(1, len(levels(capacity))))
    next_s = next((at_s for at_s in times if at_s > waited_s), None)
    if level not in LEVEL_NAMES or next_s is None:
        return ""
    return f" Waits for devices {LEVEL_NAMES[level]}; accepts devices further apart after {duration(next_s)}."
