"""Seats that this machine does not have: devices that were lost or repartitioned since they were planned."""

from __future__ import annotations

from collections.abc import Sequence

from dlaas_server.core.model.cluster import Node
from jupyter_dlaas.wire.journal import Goal, SeatRefused, Wanted

__all__ = ["missing_seats"]


def missing_seats(wanted: Wanted, before: Wanted | None, nodes: Sequence[Node]) -> tuple[SeatRefused, ...]:
    """Return the seats of new members whose node or devices do not exist. `before`: document in force until now.

    Members of that document may run already, so theirs are not checked.
    """
    if wanted.goal is not Goal.RUN:
        return ()
    old = frozenset[int]() if before is None else frozenset(m.member for m in before.members)
    devices = {node.name: frozenset(device.id for device in node.devices) for node in nodes}
    refused = []
    for member in wanted.members:
        if member.member in old:
            continue
        if member.node not in devices:
            code, what = "node_gone", f"The pool has no node {member.node} any more."
        elif missing := [device for device in member.devices if device not in devices[member.node]]:
            code, what = "device_gone", f"{member.node} has no device {', '.join(missing)} any more."
        else:
            continue
        advice = "The job starts elsewhere when there is room. `jupyter dlaas pool` lists the devices."
        refused.append(
            SeatRefused(generation=wanted.generation, member=member.member, code=code, what=what, advice=advice)
        )
    return tuple(refused)
