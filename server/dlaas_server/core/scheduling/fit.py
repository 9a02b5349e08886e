"""Whether a job that waits has room, and which seats it gets: by what it asks for and how long it has waited."""

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
"""How close together, in words."""


def most(frees: Frees, ask: Ask) -> int:
    """No more than so much of its weight has room: a bound that costs nothing."""
    return frees.devices if ask.shape.gpus and not ask.shape.is_share else ask.weight


def fits(frees: Frees, ask: Ask) -> bool:
    """Whether the whole gang has room, however far apart."""
    return ask.weight <= most(frees, ask) and frees.room(ask.shape, ask.learners) >= ask.learners


def seated(frees: Frees, ask: Ask, now_s: float) -> tuple[Seat, ...] | None:
    """Its seats, taken from `frees`; None where it has no room, or still waits for seats closer together."""
    return place(frees, ask.shape, ask.learners, now_s - ask.queued_s)


def relaxes_s(frees: Frees, ask: Ask) -> Sequence[float]:
    """When it may sit further apart than before: it is tried again then."""
    if ask.weight == 1 or ask.shape.placement != Layout.TOPOLOGY:
        return ()
    return [ask.queued_s + relaxes_after_s(steps) for steps in range(1, len(levels(frees)))]


def closer(frees: Frees, shape: Shape, learners: int, waited_s: float) -> str:
    """ " Waits for seats on one node; takes them further apart after 2 min."; "" for who waits for something else."""
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
