"""Future capacity: learners that fit on a node once running jobs have left it.

Resources are kept as sums for each node, not as devices. Fractions of shared devices are summed as if they could be
combined. A reservation that is too early because of that is recomputed when it is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import WHOLE, Shape, is_kind
from dlaas_server.core.placement.free_capacity import FreeCapacity, NodeCapacity

__all__ = ["NodeResources", "add_seat", "could_fit", "free_resources", "learners_gained", "learners_that_fit"]

NodeResources = list[float]
"""Free resources of a node: devices of the requested kind, CPUs, memory (bytes), disk (MB/s), network (Mbit/s)."""


def free_resources(node: NodeCapacity, shape: Shape) -> NodeResources:
    """Return the free resources of a node, with devices of the kind that this shape requests."""
    devices: float = len(node.devices)
    if shape.gpu_kind is not None:
        devices = sum(is_kind(kind, shape.gpu_kind) for kind, _ in node.devices)
    if shape.is_share:
        devices += sum(milli for device, milli in node.parts.items() if node.takes(shape, device)) / WHOLE
    return [devices, node.cpus, node.memory_bytes, node.disk_mbps, node.net_mbps]


def learners_that_fit(resources: NodeResources, shape: Shape) -> int:
    """Return the number of learners of this shape that these resources suffice for."""
    count = resources[0] // shape.gpus if shape.gpus else 1e9
    if shape.is_share:
        count = (resources[0] + 1e-9) * WHOLE // shape.milli
    if shape.cpus:
        count = min(count, (resources[1] + 1e-9) // shape.cpus)
    if shape.memory_bytes:
        count = min(count, resources[2] // shape.memory_bytes)
    if shape.disk_mbps:
        count = min(count, (resources[3] + 1e-9) // shape.disk_mbps)
    if shape.net_mbps:
        count = min(count, (resources[4] + 1e-9) // shape.net_mbps)
    return int(count) if count > 0 else 0


def add_seat(
    resources: NodeResources, node: NodeCapacity, shape: Shape, seat: Seat, held: Shape, sign: int = 1
) -> None:
    """Add what a seat of the shape `held` frees for learners of `shape`; subtract it if `sign` is -1."""
    devices = len(seat.devices)
    if shape.gpu_kind is not None:
        devices = sum(d in node.order and is_kind(node.order[d][1], shape.gpu_kind) for d in seat.devices)
    resources[0] += sign * devices * (held.milli / WHOLE if held.is_share else 1)
    if not held.is_plain:
        for i, amount in enumerate((held.cpus, held.memory_bytes, held.disk_mbps, held.net_mbps), start=1):
            resources[i] += sign * amount


def learners_gained(
    by_node: dict[str, NodeResources], capacity: FreeCapacity, shape: Shape, held: Shape, seats: Sequence[Seat]
) -> int:
    """Return how many more learners of `shape` fit once these seats are free, and update `by_node`."""
    gained = 0
    for seat in seats:
        node = capacity.named(seat.node)
        if node is None:
            continue
        resources = by_node.get(seat.node)
        if resources is None:
            resources = by_node[seat.node] = free_resources(node, shape)
        before = learners_that_fit(resources, shape)
        add_seat(resources, node, shape, seat, held)
        gained += learners_that_fit(resources, shape) - before
    return gained


def could_fit(
    shape: Shape, learners: int, capacity: FreeCapacity, held: Iterable[tuple[Shape, Sequence[Seat]]]
) -> bool:
    """Return whether a gang of this size would fit if all of these seats were free."""
    fitting = capacity.fit_count(shape, learners)
    by_node: dict[str, NodeResources] = {}
    for held_shape, seats in held if fitting < learners else ():
        fitting += learners_gained(by_node, capacity, shape, held_shape, seats)
        if fitting >= learners:
            break
    return fitting >= learners
