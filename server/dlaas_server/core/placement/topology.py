"""Topology: distance within a gang (pool > area > rack > node > link group), and the wait for the closest seats.

Sources: Jeon et al., "Analysis of large-scale multi-tenant GPU clusters for DNN training workloads", USENIX ATC 2019
(relaxing locality after a time-out, with back-off); Gu et al., "Tiresias", NSDI 2019 (skew of tensors). A gang holds
nothing while it waits.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity, NodeCapacity

__all__ = [
    "FIRST_S",
    "Level",
    "allowed",
    "in_one_group",
    "level_of",
    "levels",
    "relaxes_after_s",
    "tightest_part",
]

FIRST_S: Final = 120.0
"""Seconds that a gang waits for the closest seats; the wait doubles for each further level."""


class Level(IntEnum):
    """Distance within a gang; a smaller value is closer."""

    LINK = 0
    NODE = 1
    RACK = 2
    AREA = 3
    POOL = 4


def levels(capacity: FreeCapacity) -> tuple[Level, ...]:
    """Return the levels that differ in this pool, closest first."""
    has = {Level.LINK: capacity.has_links, Level.RACK: capacity.has_racks, Level.AREA: capacity.has_areas}
    return tuple(level for level in Level if has.get(level, True))


def relaxes_after_s(steps: int) -> float:
    """Return the wait in seconds after which a gang accepts seats `steps` levels further apart: 2, 6, 14 minutes."""
    return FIRST_S * ((1 << steps) - 1)


def allowed(capacity: FreeCapacity, shape: Shape, learners: int, waited_s: float) -> Level:
    """Return the largest distance that a gang accepts after this wait."""
    if waited_s == inf:
        return Level.POOL
    gang = (shape, learners)
    if gang not in capacity.ideals:
        capacity.ideals[gang] = _ideal(capacity, shape, learners)
    ideal = Level(capacity.ideals[gang])
    found, steps = ideal, 0
    for level in levels(capacity):
        if level > ideal:
            steps += 1
            if waited_s >= relaxes_after_s(steps):
                found = level
    return found


def _ideal(capacity: FreeCapacity, shape: Shape, learners: int) -> Level:
    """Return the closest level at which the gang fits on the empty pool."""
    empty = FreeCapacity(free.emptied() for free in capacity)
    if empty.has_links and _groups(empty, shape, learners):
        return Level.LINK
    if empty.tightest(shape, learners) is not None:
        return Level.NODE
    for level in (Level.RACK, Level.AREA):
        if tightest_part(empty, shape, learners, level) is not None:
            return level
    return Level.POOL


def in_one_group(capacity: FreeCapacity, shape: Shape, learners: int) -> tuple[Seat, ...] | None:
    """Return seats in the tightest link group that fits the gang, taken from `capacity`; None if there is none."""
    found = _groups(capacity, shape, learners)
    if not found:
        return None
    _, _, _, devices, free = min(found, key=lambda entry: entry[:3])
    each = shape.gpus
    seats = tuple(Seat(free.name, tuple(devices[i * each : (i + 1) * each])) for i in range(learners))
    capacity.claim(shape, seats)
    return seats


def _groups(capacity: FreeCapacity, shape: Shape, learners: int) -> list[tuple[int, int, str, list[str], NodeCapacity]]:
    """Return link groups that fit the gang: free devices in the group, on the node, name, device ids, node."""
    need = shape.gpus * learners
    found: list[tuple[int, int, str, list[str], NodeCapacity]] = []
    if need < 2 or shape.is_share:  # a single device is always within one group
        return found
    for free in capacity.takers(shape, learners):
        if free.links and free.fits(shape, learners) == learners:
            groups: dict[str, list[str]] = {}
            for _, device in free.devices:
                if device in free.links and free.takes(shape, device):
                    groups.setdefault(free.links[device], []).append(device)
            found += [
                (len(devices), len(free.devices), f"{free.name}/{name}", devices, free)
                for name, devices in groups.items()
                if len(devices) >= need
            ]
    return found


def tightest_part(capacity: FreeCapacity, shape: Shape, learners: int, level: Level) -> list[NodeCapacity] | None:
    """Return the nodes of the tightest rack, else area, that fits the gang, up to this level; None if there is none."""
    for at in (Level.RACK, Level.AREA, Level.POOL):
        if at > level:
            return None
        parts: dict[tuple[str, ...], list[NodeCapacity]] = {}
        for free in capacity:
            parts.setdefault(free.rack[: Level.POOL - at], []).append(free)
        fitting = [
            (sum(len(free.devices) for free in nodes), name, nodes)
            for name, nodes in parts.items()
            if sum(free.fits(shape, learners) for free in nodes) >= learners
        ]
        if fitting:
            return min(fitting, key=lambda entry: entry[:2])[2]
    return None


def level_of(capacity: FreeCapacity, seats: tuple[Seat, ...]) -> Level:
    """Return the distance between these seats."""
    nodes = {seat.node for seat in seats}
    racks = {free.rack for name in nodes if (free := capacity.named(name)) is not None}
    if len(nodes) > 1:
        if len(racks) == 1:
            return Level.RACK
        return Level.AREA if len({area for area, _ in racks}) == 1 else Level.POOL
    free = capacity.named(next(iter(nodes), ""))
    groups = {free.links.get(d, "") for seat in seats for d in seat.devices} if free is not None else {""}
    return Level.LINK if len(groups) == 1 and "" not in groups else Level.NODE
