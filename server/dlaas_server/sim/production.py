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


@dataclass(slots=True, eq=False)
class _Line:
    """Waiting gangs of one shape. `has_failed`: the shape did not fit, and nothing was freed since."""

    shape: Shape
    learners: int
    runs: deque[Run] = field(default_factory=deque)
    has_failed: bool = False


@dataclass(slots=True)
class InOrder:
    """`fifo`: the first that does not fit stops the queue. `fifo-skip` (`skips`): those behind it may pass.

    Passing jobs hold no reservation for the first in line: the core has none yet.
    """

    specs: Sequence[NodeSpec]
    placement: Placement = Placement.PACK
    skips: bool = True
    frees: list[Free] = field(init=False)
    seats: dict[int, tuple[Seat, ...]] = field(init=False, default_factory=dict)
    """Seats of those that run, by place in the trace."""
    _by_name: dict[str, Free] = field(init=False)
    _kinds: dict[str, str] = field(init=False)
    _free_gpus: int = field(init=False)
    _lines: dict[tuple[int, int, float, float], _Line] = field(init=False, default_factory=dict)
    _line_of: dict[int, _Line] = field(init=False, default_factory=dict)

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
            self._enter(run)
        starts: list[Run] = []
        line = self._next()
        while line is not None:
            if self._seat(line.runs[0], line):
                starts.append(line.runs.popleft())
            else:
                line.has_failed = True
            line = self._next()
        return Decision(starts=starts, is_blocked=self._is_blocked())

    def _enter(self, run: Run) -> None:
        job = run.job
        asked = (job.learners, job.gpus_per_learner, job.cpus_per_learner, job.mem_gb_per_learner)
        line = self._lines.get(asked)
        if line is None:
            line = self._lines[asked] = _Line(shape_in(job, self.specs, self.placement), job.learners)
            if place(free_of(nodes_of(self.specs), ()), line.shape, line.learners) is None:
                asks = f"{job.learners} x {job.gpus_per_learner} GPUs"
                raise Unrunnable(f"job {job.id} ({asks}) does not fit an empty pool")
        line.runs.append(run)
        self._line_of[run.index] = line

    def _next(self) -> _Line | None:
        """The line whose first job is to be tried now."""
        if not self.skips:
            first = self._first()
            return None if first is None or first.has_failed else first
        found: _Line | None = None
        for line in self._lines.values():
            if line.runs and not line.has_failed and (found is None or line.runs[0].index < found.runs[0].index):
                found = line
        return found

    def _first(self) -> _Line | None:
        """The line that the first in the whole queue stands in."""
        found: _Line | None = None
        for line in self._lines.values():
            if line.runs and (found is None or line.runs[0].index < found.runs[0].index):
                found = line
        return found

    def _seat(self, run: Run, line: _Line) -> bool:
        if run.gpus > self._free_gpus:
            return False
        gpus = line.shape.gpus
        frees = [free for free in self.frees if len(free.devices) >= gpus]  # the others take nobody anyway
        seats = place(frees, line.shape, line.learners)
        if seats is None:
            return False
        self._free_gpus -= run.gpus
        self.seats[run.index] = seats
        return True

    def _give_back(self, run: Run) -> None:
        shape = self._line_of.pop(run.index).shape
        for seat in self.seats.pop(run.index):
            free = self._by_name[seat.node]
            kind = self._kinds[seat.node]
            free.devices = sorted(
                free.devices + [(kind, device) for device in seat.devices],
                key=lambda device: int(device[1].rpartition("/")[2]),
            )
            free.cpus += shape.cpus
            free.memory_bytes += shape.memory_bytes
            free.learners -= 1
        self._free_gpus += run.gpus
        for line in self._lines.values():
            line.has_failed = False

    def _is_blocked(self) -> bool:
        first = self._first()
        return first is not None and first.runs[0].gpus <= self._free_gpus
