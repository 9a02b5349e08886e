"""Orders of our own: the production core places, the simulator only keeps the queue.

`place` of the core decides which seats a gang gets. Waiting jobs lie in one line per shape of gang; a shape that did
not fit is not tried again before something is freed. This gives what a pass of `core.plan.plan` over all jobs gives (a
test holds them against each other) at the cost of shapes, not of jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dlaas_server.core.model import Device, Node, Seat
from dlaas_server.core.place import Free, Shape, free_of, place
from dlaas_server.sim.loop import Decision, Run, Unrunnable
from dlaas_server.sim.trace import NodeSpec, TraceJob
from jupyter_dlaas.protocol import Placement

__all__ = ["InOrder", "nodes_of", "shape_in"]

GB = 10**9
Gang = tuple[Shape, int]  # one learner's shape, and how many at once


def nodes_of(specs: Iterable[NodeSpec]) -> tuple[Node, ...]:
    """The core's nodes. Where CPUs or memory are not said, they are not counted."""
    return tuple(
        Node(
            name=spec.name,
            devices=tuple(Device(id=f"{spec.name}/{i}", index=i, kind=spec.kind) for i in range(spec.gpus)),
            cpus=spec.cpus,
            memory_bytes=round(spec.mem_gb * GB),
        )
        for spec in specs
    )


def shape_in(job: TraceJob, specs: Sequence[NodeSpec], placement: Placement) -> Shape:
    """What one learner needs of this pool: only what its nodes count."""
    return Shape(
        gpus=job.gpus_per_learner,
        cpus=job.cpus_per_learner if any(spec.cpus for spec in specs) else 0.0,
        memory_bytes=round(job.mem_gb_per_learner * GB) if any(spec.mem_gb for spec in specs) else 0,
        gpu_kind=None,
        placement=placement,
    )


@dataclass(slots=True)
class InOrder:
    """`fifo`: the first that does not fit stops the queue. `fifo-skip` (`skips`): those behind it may pass.

    Passing jobs hold no reservation for the first in line: the core has none yet.
    """

    specs: Sequence[NodeSpec]
    placement: Placement = Placement.PACK
    skips: bool = True
    frees: list[Free] = field(init=False)
    lines: dict[Gang, deque[Run]] = field(init=False, default_factory=dict)
    failed: set[Gang] = field(init=False, default_factory=set)
    seats: dict[int, tuple[Seat, ...]] = field(init=False, default_factory=dict)
    nodes_held: int = field(init=False, default=0)
    """Nodes that each started job sits on, added up."""
    _by_name: dict[str, Free] = field(init=False)
    _kinds: dict[str, str] = field(init=False)
    _free_gpus: int = field(init=False)
    _gangs: dict[int, Gang] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.frees = free_of(nodes_of(self.specs), ())
        self._by_name = {free.name: free for free in self.frees}
        self._free_gpus = sum(spec.gpus for spec in self.specs)
        self._kinds = {spec.name: spec.kind for spec in self.specs}

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Give back what ended, then start what fits, first in line first."""
        for run in ended:
            self._give_back(run)
        for run in arrived:
            self.lines.setdefault(self._gang_of(run), deque()).append(run)
        starts: list[Run] = []
        head = self._head()
        while head is not None:
            gang = self._gangs[head.index]
            if not self._seat(head, gang):
                self.failed.add(gang)
                if not self.skips:
                    break
            else:
                self.lines[gang].popleft()
                starts.append(head)
            head = self._head()
        return Decision(starts=starts, is_blocked=self._is_blocked())

    def _gang_of(self, run: Run) -> Gang:
        job = run.job
        gang = self._gangs[run.index] = (shape_in(job, self.specs, self.placement), job.learners)
        if gang not in self.lines and place(free_of(nodes_of(self.specs), ()), *gang) is None:
            raise Unrunnable(f"job {job.id} ({job.learners} x {job.gpus_per_learner} GPUs) does not fit an empty pool")
        return gang

    def _head(self) -> Run | None:
        """The first in line of those that may be tried."""
        if not self.skips:
            first = self._first_in_line()
            return None if first is None or self._gangs[first.index] in self.failed else first
        heads = [line[0] for gang, line in self.lines.items() if line and gang not in self.failed]
        return min(heads, key=lambda run: run.index, default=None)

    def _first_in_line(self) -> Run | None:
        return min((line[0] for line in self.lines.values() if line), key=lambda run: run.index, default=None)

    def _seat(self, run: Run, gang: Gang) -> bool:
        shape, learners = gang
        if run.gpus > self._free_gpus:
            return False
        frees = [free for free in self.frees if len(free.devices) >= shape.gpus]  # the others take nobody anyway
        seats = place(frees, shape, learners)
        if seats is None:
            return False
        self._free_gpus -= run.gpus
        self.seats[run.index] = seats
        self.nodes_held += len({seat.node for seat in seats})
        return True

    def _give_back(self, run: Run) -> None:
        shape, _ = self._gangs[run.index]
        for seat in self.seats.pop(run.index):
            free = self._by_name[seat.node]
            held = [(self._kinds[seat.node], device) for device in seat.devices]
            free.devices = sorted(free.devices + held, key=lambda device: int(device[1].rpartition("/")[2]))
            free.cpus += shape.cpus
            free.memory_bytes += shape.memory_bytes
            free.learners -= 1
        self._free_gpus += run.gpus
        self.failed.clear()

    def _is_blocked(self) -> bool:
        first = self._first_in_line()
        return first is not None and first.gpus <= self._free_gpus
