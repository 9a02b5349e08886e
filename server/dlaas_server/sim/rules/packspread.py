"""PACK and SPREAD of the reference measurements: gangs placed learner by learner.

PACK takes for each learner the feasible node with the fewest free GPUs (then the fewest free CPUs, then the first),
SPREAD the one with the most. All learners or none. `fifo` stops at the first job that does not fit, `skip` continues.
Source: the parameters of IBM's PACK/SPREAD slide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dlaas_server.sim.replay.event_loop import Decision, Run
from dlaas_server.sim.trace.trace import NodeSpec, TraceJob

__all__ = ["PackSpread"]


@dataclass(slots=True)
class _Machine:
    place: int
    gpus: int
    cpus: float
    mem_gb: float

    def takes(self, job: TraceJob) -> bool:
        return (
            self.gpus >= job.gpus_per_learner
            and self.cpus >= job.cpus_per_learner
            and self.mem_gb >= job.mem_gb_per_learner
        )

    def change(self, job: TraceJob, sign: int) -> None:
        self.gpus += sign * job.gpus_per_learner
        self.cpus += sign * job.cpus_per_learner
        self.mem_gb += sign * job.mem_gb_per_learner


@dataclass(slots=True)
class PackSpread:
    """Rule for a pool of these nodes; CPUs or memory that a node does not count are unlimited."""

    specs: Sequence[NodeSpec]
    is_pack: bool
    skips: bool
    machines: list[_Machine] = field(init=False)
    queue: list[Run] = field(init=False, default_factory=list)
    seats: dict[int, list[_Machine]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.machines = [
            _Machine(i, s.gpus, s.cpus or float("inf"), s.mem_gb or float("inf")) for i, s in enumerate(self.specs)
        ]

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        """Start the jobs that fit, in order of submission."""
        for run in ended:
            for machine in self.seats.pop(run.index):
                machine.change(run.job, 1)
        self.queue += arrived
        starts: list[Run] = []
        failed: set[tuple[int, int, float, float]] = set()
        for run in self.queue:
            job = run.job
            asked = (job.learners, job.gpus_per_learner, job.cpus_per_learner, job.mem_gb_per_learner)
            if asked not in failed and self._seat(run):
                starts.append(run)
            elif not self.skips:
                break
            else:
                failed.add(asked)
        begun = {run.index for run in starts}
        self.queue = [run for run in self.queue if run.index not in begun]
        free = sum(machine.gpus for machine in self.machines)
        return Decision(starts=starts, is_blocked=bool(self.queue) and self.queue[0].gpus <= free)

    def _seat(self, run: Run) -> bool:
        taken: list[_Machine] = []
        sign = 1 if self.is_pack else -1
        for _ in range(run.job.learners):
            feasible = (m for m in self.machines if m.takes(run.job))
            best = min(feasible, key=lambda m: (sign * m.gpus, sign * m.cpus, m.place), default=None)
            if best is None:
                for machine in taken:
                    machine.change(run.job, 1)
                return False
            best.change(run.job, -1)
            taken.append(best)
        self.seats[run.index] = taken
        return True
