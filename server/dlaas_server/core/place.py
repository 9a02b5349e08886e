"""Which seats a gang gets. All learners are placed on a scratch copy, taken or dropped as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dlaas_server.core.model import Job, Node, Seat
from jupyter_dlaas.protocol import Placement

__all__ = ["Free", "Shape", "free_of", "place", "room", "shape_of"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What one learner needs, and how a gang of them is laid out. Equal shapes fit or fail alike."""

    gpus: int
    cpus: float
    memory_bytes: int
    gpu_kind: str | None
    placement: Placement


def shape_of(job: Job) -> Shape:
    """The shape of one learner of this job."""
    spec = job.spec
    return Shape(
        spec.gpus_per_learner, spec.cpus_per_learner, spec.memory_bytes_per_learner, spec.gpu_kind, spec.placement
    )


@dataclass(slots=True)
class Free:
    """What is free on one node. Scratch: mutable inside a plan, never outside."""

    name: str
    devices: list[tuple[str, str]]  # (kind, id), in the node's order
    cpus: float
    memory_bytes: int
    learners: int = 0

    def copy(self) -> Free:
        """An independent copy."""
        return Free(self.name, list(self.devices), self.cpus, self.memory_bytes, self.learners)

    def fits(self, shape: Shape, most: int) -> int:
        """How many learners of this shape fit here, up to `most`."""
        count = most
        if shape.gpus:
            count = min(count, len(self._devices_for(shape)) // shape.gpus)
        if shape.cpus:
            count = min(count, int((self.cpus + 1e-9) // shape.cpus))
        if shape.memory_bytes:
            count = min(count, self.memory_bytes // shape.memory_bytes)
        return max(count, 0)

    def take(self, shape: Shape) -> Seat:
        """Take the seat of one learner; it must fit."""
        ids = self._devices_for(shape)[: shape.gpus]
        self.devices = [d for d in self.devices if d[1] not in ids]
        self.cpus -= shape.cpus
        self.memory_bytes -= shape.memory_bytes
        self.learners += 1
        return Seat(self.name, tuple(ids))

    def _devices_for(self, shape: Shape) -> list[str]:
        return [d for kind, d in self.devices if shape.gpu_kind is None or _is_kind(kind, shape.gpu_kind)]


def _is_kind(kind: str, asked: str) -> bool:
    return asked.casefold() in kind.casefold()


def free_of(nodes: Sequence[Node], jobs: Iterable[Job]) -> list[Free]:
    """What is free, by node name: everything in service, less the seats of all members of all jobs."""
    frees: dict[str, Free] = {}
    for node in sorted(nodes, key=lambda n: n.name):
        usable = [] if node.cordoned else [(d.kind, d.id) for d in node.devices if d.out_of_service is None]
        cpus, memory = (0.0, 0) if node.cordoned else (node.cpus, node.memory_bytes)
        frees[node.name] = Free(node.name, usable, cpus, memory)
    cordoned = {node.name for node in nodes if node.cordoned}
    for job in jobs:
        shape = shape_of(job)
        for node_name, devices, learners in _occupied(job):
            free = frees.get(node_name)
            if free is None:
                continue
            free.devices = [d for d in free.devices if d[1] not in devices]
            free.cpus -= shape.cpus * learners
            free.memory_bytes -= shape.memory_bytes * learners
            free.learners += learners
    return [free for name, free in frees.items() if name not in cordoned]


def _occupied(job: Job) -> list[tuple[str, set[str], int]]:
    """Per node: devices held, and the larger count of learners of any one generation.

    During a change of size two generations share seats, one after the other: they are not counted twice.
    """
    by_node: dict[str, tuple[set[str], dict[int, int]]] = {}
    for member in job.members:
        devices, counts = by_node.setdefault(member.seat.node, (set(), {}))
        devices.update(member.seat.devices)
        counts[member.generation] = counts.get(member.generation, 0) + 1
    return [(name, devices, max(counts.values())) for name, (devices, counts) in sorted(by_node.items())]


def room(frees: Sequence[Free], shape: Shape, most: int) -> int:
    """How many learners of this shape fit now, up to `most`."""
    total = 0
    for free in frees:
        total += free.fits(shape, most - total)
        if total >= most:
            return most
    return total


def place(frees: Sequence[Free], shape: Shape, learners: int) -> tuple[Seat, ...] | None:
    """Seats for a whole gang, taken from `frees`; or None, and nothing is taken.

    `pack`: the tightest node that takes the whole gang, else the emptiest nodes first. `spread`: one learner at a
    time on the node with the fewest learners. Ties go by name, so that the same pool always gives the same plan.
    """
    if room(frees, shape, learners) < learners:
        return None
    if shape.placement is Placement.SPREAD:
        return tuple(_least_loaded(frees, shape).take(shape) for _ in range(learners))
    whole = [f for f in frees if f.fits(shape, learners) == learners]
    if whole:
        tightest = min(whole, key=lambda f: (len(f.devices), f.cpus, f.memory_bytes, f.name))
        return tuple(tightest.take(shape) for _ in range(learners))
    seats: list[Seat] = []
    for free in sorted(frees, key=lambda f: (-f.fits(shape, learners), f.name)):
        for _ in range(free.fits(shape, learners - len(seats))):
            seats.append(free.take(shape))
    return tuple(seats)


def _least_loaded(frees: Sequence[Free], shape: Shape) -> Free:
    return min((f for f in frees if f.fits(shape, 1)), key=lambda f: (f.learners, -len(f.devices), f.name))
