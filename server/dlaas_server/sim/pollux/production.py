"""Production core on Pollux' workloads: `allocation.py` decides sizes and GPUs of all jobs every minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlaas_server.core.elasticity.allocation import Gang, sized
from dlaas_server.core.model.cluster import Device, Node, Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import free_of
from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.sim.pollux.jobs import CHANGE_S, Allocation, PolluxJob
from dlaas_server.sim.trace.trace import Pollux, TraceJob

__all__ = ["Elastic"]

ONE_GPU: Final = Shape(1, 0.0, 0, None, Layout.PACK)
SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
ONE_BATCH: Final = {"ncf": 32768}
"""Applications trained with this batch on one GPU, as under Pollux: the profile has no larger one."""


@dataclass(slots=True)
class Elastic:
    """Rule with our sizes. A job grows to at most twice its largest measured size; its curve is its own model's."""

    nodes: int
    gpus: int
    _nodes: tuple[Node, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = tuple(
            Node(name=f"{n:02}", devices=tuple(Device(id=f"{n:02}/{i}", index=i, kind="GPU") for i in range(self.gpus)))
            for n in range(self.nodes)
        )

    def batch(self, job: TraceJob) -> int | None:
        """Return None: the job chooses, as under Pollux."""
        return ONE_BATCH.get(job.work.application) if isinstance(job.work, Pollux) else None

    def allocate(
        self, now_s: float, jobs: Sequence[PolluxJob], held: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """Return the GPUs: waiting jobs by age; all others may change."""
        frees = free_of(self._nodes, ())
        seats = {index: self._seats(there) for index, there in self._numbered(held).items()}
        for index in seats:
            frees.claim(ONE_GPU, seats[index])
        gangs = [self._gang(job, seats.get(job.index, ())) for job in jobs]
        changes = sized(frees, [g for g in gangs if g.seats], [g for g in gangs if not g.seats])
        placed = dict(seats) | {int(name): there for name, there in changes.items()}
        return {
            index: held[index] if index in held and str(index) not in changes else self._nodes_of(there)
            for index, there in placed.items()
        }

    def _numbered(self, held: Mapping[int, Allocation]) -> dict[int, list[str]]:
        taken: dict[int, int] = {}
        named: dict[int, list[str]] = {}
        for index, there in held.items():
            for node in there:
                named.setdefault(index, []).append(f"{node:02}/{taken.get(node, 0)}")
                taken[node] = taken.get(node, 0) + 1
        return named

    def _seats(self, devices: Sequence[str]) -> tuple[Seat, ...]:
        return tuple(Seat(device.split("/")[0], (device,)) for device in devices)

    def _nodes_of(self, seats: Sequence[Seat]) -> Allocation:
        count: dict[int, int] = {}
        for seat in seats:
            count[int(seat.node)] = count.get(int(seat.node), 0) + 1
        return tuple(node for node, many in sorted(count.items(), key=lambda c: (-c[1], c[0])) for _ in range(many))

    def _gang(self, job: PolluxJob, seats: tuple[Seat, ...]) -> Gang:
        rates = self._rates(job, len(seats))
        return Gang(
            id=str(job.index),
            number=job.index,
            shape=ONE_GPU,
            rates=rates,
            seats=seats,
            left_s=job.left / rates[1] if job.model is not None else None,
            cost_s=CHANGE_S,
            may_move=True,
        )

    def _rates(self, job: PolluxJob, size: int) -> dict[int, float]:
        limits = job.limits
        if job.batch is not None or job.model is None or job.noise is None:
            return {1: 1.0, max(size, 1): 1.0}
        most = min(2 * max(gpus for _, gpus, _ in job.measured), self.nodes * self.gpus)
        most = min(most, limits.batch_most // limits.local_least)
        sizes = sorted({s for s in SIZES if s <= most} | {1, max(size, 1)})
        found, _, _ = job.model.best([-(-s // self.gpus) for s in sizes], sizes, job.noise, limits)
        return {s: float(rate) for s, rate in zip(sizes, found, strict=True) if rate > 0}
