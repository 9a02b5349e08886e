"""Refused seats: devices, or nodes, that could not take a learner although they looked free. Pure.

The plan leaves them out for a while, which doubles with each refusal in a row. A learner that starts there ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.suspect_devices import withheld
from jupyter_dlaas.wire.journal import Fact, LearnerUp, SeatRefused

__all__ = ["RefusedSeat", "left_out", "proven", "refused_again", "retried", "retry_s"]

FIRST_S: Final = 15.0
"""Time for which a seat is left out after its first refusal."""
LONGEST_S: Final = 600.0
WINDOW_S: Final = 3600.0
"""Time after which a refusal no longer counts as one in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSeat:
    """Device, or node (empty `device`: a seat without devices), that could not take a learner."""

    node: str
    device: str = ""
    at_s: float
    """Time of the last refusal."""
    count: int = 1
    """Number of refusals in a row."""
    what: str = ""
    is_left_out: bool = True

    @property
    def until_s(self) -> float:
        """Time until which no learner is placed there."""
        return self.at_s + min(FIRST_S * 2.0 ** min(self.count - 1, 16), LONGEST_S)

    @property
    def reason(self) -> str:
        """Reason shown for not placing learners there."""
        return f"a learner could not be placed here: {self.what}"


def refused_again(
    seats: Mapping[str, RefusedSeat], job: Job, refused: Sequence[SeatRefused], now_s: float
) -> Mapping[str, RefusedSeat]:
    """Return the seats with these refusals counted. `job`: the job before it gave its seats up."""
    found = dict(seats)
    planned = {m.member: m.seat for m in job.gang}
    for fact in refused:
        seat = planned[fact.member]
        for device in seat.devices or ("",):
            key = f"{seat.node}/{device}"
            before = found.get(key)
            count = 1 if before is None or now_s - before.at_s > WINDOW_S else before.count + 1
            what = (fact.what or f"refused for {job.id}").rstrip(".")
            found[key] = RefusedSeat(node=seat.node, device=device, at_s=now_s, count=count, what=what)
    return found


def proven(seats: Mapping[str, RefusedSeat], job: Job, fact: Fact) -> Mapping[str, RefusedSeat]:
    """Drop the refusals of a seat on which a learner has started."""
    if not seats or not isinstance(fact, LearnerUp):
        return seats
    seat = next((m.seat for m in job.members if m.member == fact.member), None)
    if seat is None:
        return seats
    keys = {f"{seat.node}/{device}" for device in seat.devices or ("",)}
    return seats if not keys & seats.keys() else {key: one for key, one in seats.items() if key not in keys}


def retried(seats: Mapping[str, RefusedSeat], now_s: float) -> Mapping[str, RefusedSeat]:
    """Return the seats whose time is over to the plan; drop those that are not counted any more."""
    found = {
        key: one if now_s < one.until_s else replace(one, is_left_out=False)
        for key, one in seats.items()
        if now_s - one.at_s <= WINDOW_S
    }
    return seats if found == dict(seats) else found


def retry_s(seats: Mapping[str, RefusedSeat]) -> float | None:
    """Return the time at which the next seat is tried again; None if none is left out."""
    return min((one.until_s for one in seats.values() if one.is_left_out), default=None)


def left_out(nodes: Sequence[Node], seats: Mapping[str, RefusedSeat]) -> tuple[Node, ...]:
    """Return the nodes with refused devices out of service and refused nodes cordoned."""
    return withheld(nodes, {(one.node, one.device): one.reason for one in seats.values() if one.is_left_out})
