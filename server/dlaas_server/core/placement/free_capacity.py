"""Free capacity of a pool's nodes, indexed by the number of free devices.

The index limits the search to nodes that could fit a gang. Mutable within a plan, and never shared outside of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from operator import itemgetter
from typing import Final

from dlaas_server.core.model.cluster import Node, Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.resources import WHOLE, Loan, Shape, is_kind
from dlaas_server.core.placement.fragmentation import State, Usual
from dlaas_server.core.placement.shape import shape_of

__all__ = ["FreeCapacity", "NodeCapacity", "free_of", "occupied"]


Key = tuple[float, int, int]
_ID: Final = itemgetter(1)
"""Key function: the id of a device."""


@dataclass(slots=True)
class NodeCapacity:
    """Free capacity of one node. Mutable within a plan, and never shared outside of it."""

    name: str
    devices: list[tuple[str, str]]  # (kind, id) of unshared free devices, in the node's order
    cpus: float
    memory_bytes: int
    learners: int = 0
    disk_mbps: float = 0.0
    net_mbps: float = 0.0
    index: int = field(default=0, compare=False)
    """Position of the node among all nodes, by name."""
    order: dict[str, tuple[int, str]] = field(default_factory=dict, compare=False)
    """Device of the node -> its position and kind."""
    whole: tuple[float, ...] = field(default=(0.0,) * 5, compare=False)
    """Capacity of the empty node: devices, CPUs, bytes of memory, MB/s of disk, Mbit/s of network."""
    parts: dict[str, int] = field(default_factory=dict)
    """Shared device -> free thousandths."""
    rack: tuple[str, str] = ("", "")
    """Area and rack."""
    links: dict[str, str] = field(default_factory=dict, compare=False)
    """Device -> its link group, where known."""
    seen: State | None = field(default=None, compare=False)
    """Cached `state`, until something changes."""
    singles: dict[str, tuple[Seat, ...]] = field(default_factory=dict, compare=False)
    """Device -> cached seat of exactly this device: most jobs have one device, and often get the same one again."""
    key: Key = field(default=(0.0, 0, 0), compare=False)
    """Sort key among nodes with the same number of free devices."""

    def copy(self) -> NodeCapacity:
        """Return an independent copy."""
        return replace(self, devices=list(self.devices), parts=dict(self.parts))

    def emptied(self) -> NodeCapacity:
        """Return the node without any learners."""
        _, cpus, memory_bytes, disk_mbps, net_mbps = self.whole
        return replace(
            self,
            devices=[(kind, device) for device, (_, kind) in self.order.items()],
            cpus=cpus,
            memory_bytes=int(memory_bytes),
            disk_mbps=disk_mbps,
            net_mbps=net_mbps,
            learners=0,
            parts={},
            seen=None,
        )

    @property
    def state(self) -> State:
        """Free capacity as a value: nodes with equal states are interchangeable."""
        if self.seen is None:
            kinds: dict[str, tuple[int, list[int]]] = {}
            for kind, _ in self.devices:
                whole, parts = kinds.get(kind, (0, []))
                kinds[kind] = (whole + 1, parts)
            for device, milli in self.parts.items():
                kinds.setdefault(self.order[device][1], (0, []))[1].append(milli)
            held = tuple((kind, whole, tuple(sorted(parts))) for kind, (whole, parts) in sorted(kinds.items()))
            self.seen = (self.cpus, self.memory_bytes, held)
        return self.seen

    def fits(self, shape: Shape, most: int) -> int:
        """Return how many learners of this shape fit here, up to `most`."""
        count = most
        if shape.milli < WHOLE:
            parts = sum(milli // shape.milli for device, milli in self.parts.items() if self.takes(shape, device))
            count = min(count, parts + len(self._devices_for(shape)) * (WHOLE // shape.milli))
        elif shape.gpus:
            has = len(self.devices) if shape.gpu_kind is None else len(self._devices_for(shape))
            count = min(count, has // shape.gpus)
        if shape.cpus:
            count = min(count, int((self.cpus + 1e-9) // shape.cpus))
        if shape.memory_bytes:
            count = min(count, self.memory_bytes // shape.memory_bytes)
        if shape.disk_mbps:
            count = min(count, int((self.disk_mbps + 1e-9) // shape.disk_mbps))
        if shape.net_mbps:
            count = min(count, int((self.net_mbps + 1e-9) // shape.net_mbps))
        return count if count > 0 else 0

    def _devices_for(self, shape: Shape) -> list[str]:
        return [d for kind, d in self.devices if shape.gpu_kind is None or is_kind(kind, shape.gpu_kind)]

    def takes(self, shape: Shape, device: str) -> bool:
        """Return whether this device is of the requested kind."""
        return shape.gpu_kind is None or is_kind(self.order[device][1], shape.gpu_kind)

    def tightest_part(self, shape: Shape) -> str:
        """Return the device for a share: the fullest shared device that fits it, else an unshared one."""
        parts = [(m, d) for d, m in self.parts.items() if m >= shape.milli and self.takes(shape, d)]
        return min(parts)[1] if parts else self._devices_for(shape)[0]

    def claim(self, shape: Shape, seat: Seat) -> None:
        """Take this seat, which must be free."""
        if shape.milli < WHOLE:
            for device in seat.devices:
                if device not in self.parts:
                    self.devices = [d for d in self.devices if d[1] != device]
                self.parts[device] = self.parts.get(device, WHOLE) - shape.milli
        else:
            self.devices = [d for d in self.devices if d[1] not in seat.devices]
        self._use(shape, 1)

    def _take(self, shape: Shape) -> Seat:
        gpus = shape.gpus
        if shape.milli < WHOLE:
            seat = Seat(self.name, (self.tightest_part(shape),))
            self.claim(shape, seat)
            return seat
        ids = tuple(self._devices_for(shape)[:gpus])
        self.devices = [d for d in self.devices if d[1] not in ids]
        self._use(shape, 1)
        return Seat(self.name, ids)

    def take_plain(self, gpus: int, learners: int) -> tuple[Seat, ...]:
        """Take and return seats for learners that need `gpus` devices each, and nothing else."""
        devices = self.devices
        self.learners += learners
        if gpus == learners == 1:
            device = devices.pop(0)[1]
            single = self.singles.get(device)
            if single is None:
                single = self.singles[device] = (Seat(self.name, (device,)),)
            return single
        ids = tuple(map(_ID, devices[: learners * gpus]))
        del devices[: learners * gpus]
        return tuple([Seat(self.name, ids[i * gpus : (i + 1) * gpus]) for i in range(learners)])

    def _give(self, shape: Shape, seat: Seat) -> None:
        order = self.order
        back = [d for d in seat.devices if d in order]
        if shape.milli < WHOLE:
            for device in back:
                self.parts[device] += shape.milli
            back = [d for d in back if self.parts[d] == WHOLE]
            for device in back:
                del self.parts[device]
        self.put_back(back)
        self._use(shape, -1)

    def put_back(self, back: Sequence[str]) -> None:
        """Return these devices to the free ones, in the node's order."""
        order, devices = self.order, self.devices
        for device in back:
            found = order.get(device)
            if found is None:
                continue
            place, kind = found
            at = len(devices)
            while at and order[devices[at - 1][1]][0] > place:
                at -= 1
            devices.insert(at, (kind, device))

    def _use(self, shape: Shape, learners: int) -> None:
        """Take the resources other than devices for `learners` learners; return them if the number is negative."""
        self.learners += learners
        if not shape.is_plain:
            self.cpus -= shape.cpus * learners
            self.memory_bytes -= shape.memory_bytes * learners
            self.disk_mbps -= shape.disk_mbps * learners
            self.net_mbps -= shape.net_mbps * learners

    def alike(self, shape: Shape) -> float:
        """Return the cosine similarity of free and requested resources, each as a share of the node.

        Source: Grandl et al., "Multi-resource packing for cluster schedulers", SIGCOMM 2014.
        """
        asked = (shape.gpus, shape.cpus, shape.memory_bytes, shape.disk_mbps, shape.net_mbps)
        free = (len(self.devices), self.cpus, self.memory_bytes, self.disk_mbps, self.net_mbps)
        shares = [(a / w, f / w) for a, f, w in zip(asked, free, self.whole, strict=True) if w]
        length = sqrt(sum(a * a for a, _ in shares)) * sqrt(sum(f * f for _, f in shares))
        return sum(a * f for a, f in shares) / length if length else 0.0


class FreeCapacity(Sequence[NodeCapacity]):
    """Free capacity of all nodes, sorted by name, with an index by the number of free devices."""

    def __init__(self, capacity: Iterable[NodeCapacity], usual: Usual | None = None) -> None:
        self._nodes = sorted(capacity, key=lambda free: free.name)
        self._by_name: dict[str, NodeCapacity] = {}
        widest = max((max(len(free.order), len(free.devices)) for free in self._nodes), default=0)
        self._by_free: list[list[Key]] = [[] for _ in range(widest + 1)]
        self._parts: list[tuple[int, int, str]] = []
        """(free thousandths, node index, device) of shared devices."""
        self.devices = 0
        """Number of free devices, without shared ones."""
        self.kinds = tuple(sorted({kind for free in self._nodes for _, kind in free.order.values()}))
        """All device kinds, in use or not."""
        racks = {free.rack for free in self._nodes}
        self.has_racks = len(racks) > 1
        self.has_areas = len({area for area, _ in racks}) > 1
        self.has_links = any(free.links for free in self._nodes)
        self.ideals: dict[tuple[Shape, int], int] = {}
        """Gang -> closest level on the empty pool; filled by `topology.py`."""
        self.usual = usual or Usual()
        """Request statistics: of the jobs present at the start, and of those placed by `fgd` since."""
        self.lent: Sequence[Loan] = ()
        """Seats lent to spot jobs, which count as free. They are taken last, in this order."""
        for index, free in enumerate(self._nodes):
            free.index = index
            self._by_name[free.name] = free
            self._enter(free)

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index: int) -> NodeCapacity:  # type: ignore[override]  # slices are not needed
        return self._nodes[index]

    def __iter__(self) -> Iterator[NodeCapacity]:
        return iter(self._nodes)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def named(self, name: str) -> NodeCapacity | None:
        """Return the node of this name; None if it takes no learners."""
        return self._by_name.get(name)

    def _enter(self, free: NodeCapacity) -> None:
        free.key = (free.cpus, free.memory_bytes, free.index)
        insort(self._by_free[len(free.devices)], free.key)
        self.devices += len(free.devices)
        for device, milli in free.parts.items():
            insort(self._parts, (milli, free.index, device))

    def _leave(self, free: NodeCapacity) -> None:
        line = self._by_free[len(free.devices)]
        del line[bisect_left(line, free.key)]
        self.devices -= len(free.devices)
        free.seen = None
        for device, milli in free.parts.items():
            del self._parts[bisect_left(self._parts, (milli, free.index, device))]

    def _shift(self, free: NodeCapacity, before: int) -> None:
        """Reindex a node that had `before` free devices; nothing else changed."""
        now, key, line = len(free.devices), free.key, self._by_free[before]
        del line[bisect_left(line, key)]
        insort(self._by_free[now], key)
        self.devices += now - before
        free.seen = None

    def take(self, free: NodeCapacity, shape: Shape, learners: int = 1) -> tuple[Seat, ...]:
        """Take and return the seats of `learners` learners on this node; they must fit."""
        if shape.is_plain:
            before = len(free.devices)
            seats = free.take_plain(shape.gpus, learners)
            self._shift(free, before)
        else:
            self._leave(free)
            seats = tuple([free._take(shape) for _ in range(learners)])
            self._enter(free)
        return seats

    def claim(self, shape: Shape, seats: Sequence[Seat]) -> None:
        """Take these seats, which must be free."""
        for seat in seats:
            free = self._by_name.get(seat.node)
            if free is not None:
                self._leave(free)
                free.claim(shape, seat)
                self._enter(free)

    def has(self, shape: Shape, seats: Sequence[Seat]) -> bool:
        """Return whether all these seats can be claimed together."""
        wanted: dict[str, list[str]] = {}
        for seat in seats:
            wanted.setdefault(seat.node, []).extend(seat.devices)
        for name, devices in wanted.items():
            free, count = self._by_name.get(name), sum(seat.node == name for seat in seats)
            if (
                free is None
                or free.fits(Shape(0, shape.cpus, shape.memory_bytes, None, shape.placement), count) < count
            ):
                return False
            whole = {d for _, d in free.devices}
            if shape.milli == WHOLE and not set(devices) <= whole:
                return False
            if shape.milli < WHOLE and any(
                devices.count(d) * shape.milli > (WHOLE if d in whole else free.parts.get(d, 0)) for d in devices
            ):
                return False
        return True

    def give(self, shape: Shape, seats: Sequence[Seat]) -> None:
        """Free these seats."""
        is_plain = shape.is_plain
        for seat in seats:
            free = self._by_name.get(seat.node)
            if free is None:
                continue
            if is_plain:
                before = len(free.devices)
                free.put_back(seat.devices)
                free.learners -= 1
                self._shift(free, before)
            else:
                self._leave(free)
                free._give(shape, seat)
                self._enter(free)

    def takers(self, shape: Shape, learners: int = 1) -> Iterator[NodeCapacity]:
        """Yield nodes that may have the devices and CPUs, by fewest free devices, then CPUs, memory and name.

        For shares, nodes with a shared device come first, those with the fullest device at the head.
        """
        first = (shape.cpus * learners - 1e-9 if shape.cpus else -inf, 0, 0)
        lines, seen = self._by_free[shape.gpus * learners :], set[int]()
        if shape.milli < WHOLE:
            lines = self._by_free[shape.gpus :]
            for _, index, _ in self._parts[bisect_left(self._parts, (shape.milli, -1, "")) :]:
                if index not in seen:
                    seen.add(index)
                    if self._nodes[index].cpus >= first[0]:
                        yield self._nodes[index]
        for line in lines:
            for at in range(bisect_left(line, first), len(line)):
                index = line[at][2]
                if index not in seen:
                    yield self._nodes[index]

    def tightest(self, shape: Shape, learners: int) -> NodeCapacity | None:
        """Return the node with the fewest free devices (shares: the fullest device) that fits all these learners."""
        need = shape.gpus * learners
        if shape.is_plain:
            for line in self._by_free[need:]:
                if line:
                    return self._nodes[line[0][2]]
            return None
        for free in self.takers(shape, learners):
            if free.fits(shape, learners) == learners:
                return free
        return None

    def roomiest(self, shape: Shape, most: int) -> tuple[NodeCapacity | None, int]:
        """Return the node that fits the most of these learners (the tightest of equals), and how many it fits."""
        best, fits = None, 0
        if shape.is_plain and shape.gpus:
            for free_devices in range(len(self._by_free) - 1, shape.gpus - 1, -1):
                line = self._by_free[free_devices]
                if free_devices // shape.gpus < fits:
                    break
                if line:
                    best, fits = self._nodes[line[0][2]], free_devices // shape.gpus
            return best, min(fits, most)
        for free in self.takers(shape):
            here = free.fits(shape, most)
            if here > fits:
                best, fits = free, here
        return best, fits

    def fit_count(self, shape: Shape, most: int) -> int:
        """Return how many learners of this shape fit now, up to `most`."""
        if shape.gpus and self.devices < shape.gpus and shape.milli == WHOLE:
            return 0
        total = 0
        if shape.is_plain and shape.gpus:
            for devices in range(len(self._by_free) - 1, shape.gpus - 1, -1):
                total += len(self._by_free[devices]) * (devices // shape.gpus)
                if total >= most:
                    return most
            return total
        for free in self.takers(shape):
            total += free.fits(shape, most - total)
            if total >= most:
                return most
        return total


def free_of(nodes: Sequence[Node], jobs: Iterable[Job]) -> FreeCapacity:
    """Return the free capacity by node: everything in service, less the seats of all members of all jobs."""
    capacity: dict[str, NodeCapacity] = {}
    for node in nodes:
        if node.cordoned:
            continue
        usable = [(d.kind, d.id) for d in node.devices if d.out_of_service is None]
        order = {d: (place, kind) for place, (kind, d) in enumerate(usable)}
        whole = (len(usable), node.cpus, node.memory_bytes, node.disk_mbps, node.net_mbps)
        links = {d.id: d.link for d in node.devices if d.link}
        capacity[node.name] = NodeCapacity(
            node.name, usable, *whole[1:3], 0, *whole[3:], order=order, whole=whole,
            rack=(node.area, node.rack), links=links,
        )  # fmt: skip
    usual = Usual()
    for job in jobs:
        shape = shape_of(job)
        usual.note(shape, job.spec.learners_min)
        for node_name, devices, learners in occupied(job) if job.members else ():
            free = capacity.get(node_name)
            if free is None:
                continue
            free.devices = [d for d in free.devices if d[1] not in devices]
            free._use(shape, learners)
    return FreeCapacity(capacity.values(), usual)


def occupied(job: Job) -> list[tuple[str, set[str], int]]:
    """Return per node the devices held, and the number of learners that run there at the same time.

    In a change of size through a checkpoint, two generations share seats one after the other; these are not counted
    twice. Learners that leave a gang which changes while it trains run beside the others until they have ended.
    """
    by_node: dict[str, tuple[set[str], dict[int, int]]] = {}
    for member in job.members:
        devices, counts = by_node.setdefault(member.seat.node, (set(), {}))
        devices.update(member.seat.devices)
        counts[member.generation] = counts.get(member.generation, 0) + 1
    out = []
    for name, (devices, counts) in sorted(by_node.items()):
        out.append((name, devices, sum(counts.values()) if job.is_live else max(counts.values())))
    return out
