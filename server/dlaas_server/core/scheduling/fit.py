"""Fit of a waiting job: available seats, given its request and its time in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.phrases import duration
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Frees, place
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.placement.topology import Level, allowed, levels, relaxes_after_s
from dlaas_server.core.scheduling.gang_request import Ask

__all__ = ["WHERE", "closer", "fits", "most", "relaxes_s", "seated"]

WHERE: Final = {
    Level.LINK: "within one group of linked devices",
    Level.NODE: "on one node",
    Level.RACK: "in one rack",
    Level.AREA: "in one area",
}
"""Names of topology levels in messages."""


def most(frees: Frees, ask: Ask) -> int:
    """Return an upper bound for the part of the job's weight that fits, in constant time."""
    return frees.devices if ask.shape.gpus and not ask.shape.is_share else ask.weight


def fits(frees: Frees, ask: Ask) -> bool:
    """Return whether the whole gang fits, however far apart its learners are."""
    return ask.weight <= most(frees, ask) and frees.room(ask.shape, ask.learners) >= ask.learners


def seated(frees: Frees, ask: Ask, now_s: float) -> tuple[Seat, ...] | None:
    """Return seats taken from `frees`; None if the gang does not fit, or still waits for seats closer together."""
    return place(frees, ask.shape, ask.learners, now_s - ask.queued_s)


def relaxes_s(frees: Frees, ask: Ask) -> Sequence[float]:
    """Return the times at which the job accepts seats further apart."""
    if ask.weight == 1 or ask.shape.placement != Layout.TOPOLOGY:
        return ()
    return [ask.queued_s + relaxes_after_s(steps) for steps in range(1, len(levels(frees)))]


def closer(frees: Frees, shape: Shape, learners: int, waited_s: float) -> str:
    """Return " Waits for seats on one node; takes them further apart after 2 min."; else ""."""
    if shape.placement != Layout.TOPOLOGY or frees.room(shape, learners) < learners:
        return ""
    seats = place(frees, shape, learners, waited_s)
    if seats is not None:
        frees.give(shape, seats)
        return ""
    level = allowed(frees, shape, learners, waited_s)
    steps = range(1, len(levels(frees)))
    next_s = next((at_s for one in steps if (at_s := relaxes_after_s(one)) > waited_s), None)
    if level not in WHERE or next_s is None:
        return ""
    return f" Waits for seats {WHERE[level]}; takes them further apart after {duration(next_s)}."
