"""Records of a trace: jobs with their requests and run times, and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jupyter_dlaas.wire.codec import DlaasError

__all__ = [
    "Muri",
    "NodeSpec",
    "Pod",
    "Pollux",
    "PolluxPlacement",
    "PolluxScaling",
    "PolluxValidation",
    "Shockwave",
    "Task",
    "Tiresias",
    "Trace",
    "TraceError",
    "TraceJob",
    "Work",
]


class TraceError(DlaasError):
    """Error in a trace that is unreadable or contradictory. The message begins with file, line and column."""

    code = "bad_trace"
    http_status = 400

    def __init__(self, path: Path, line: int, column: str | None, what: str) -> None:
        where = f"{path.name}, line {line}" + (f", column {column}" if column else "")
        super().__init__(f"{where}: {what}")
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """Columns of tiresias_60 beyond the common ones."""

    model: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Muri:
    """Time of a model per iteration on three resources, in milliseconds."""

    model: str
    batch_size: int
    iterations: int
    iter_time_ms: float
    resources_ms: tuple[float, float, float]
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux:
    """Job known by its application; its run time follows from the profiles."""

    workload: int
    application: str
    batch_size_tuned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shockwave:
    """Job whose batch size changes while it runs."""

    model: str
    total_steps: int
    adaptation_mode: str
    priority_weight: float
    slo: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Pod that may request a share of one GPU, in thousandths."""

    gpu_milli: int
    gpu_spec: str = ""
    qos: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task with demands on disk and network, in MB/s and Mbit/s as in the trace."""

    job: str
    disk_mbps: float
    net_mbps: float


Work = Tiresias | Muri | Pollux | Shockwave | Pod | Task


@dataclass(slots=True, kw_only=True)
class TraceJob:
    """Job: a gang of `learners` that is submitted at `submit_s` and trains for `duration_s`.

    Times are seconds from the start of the trace, whole numbers stay whole. `duration_s` is None where the trace does
    not say it.
    """

    id: str
    submit_s: float
    duration_s: float | None
    learners: int = 1
    gpus_per_learner: int = 1
    cpus_per_learner: float = 0.0
    mem_gb_per_learner: float = 0.0
    queue: str = "default"
    spot: bool = False
    """True for a spot job: it runs on devices that the others leave idle."""
    work: Work | None = None

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the whole gang."""
        return self.learners * self.gpus_per_learner

    @property
    def held_gpus(self) -> float:
        """Return the number of GPUs, which may be a share of one; whole numbers stay int."""
        if isinstance(self.work, Pod) and self.gpus_per_learner == 1 and self.work.gpu_milli < 1000:
            return self.work.gpu_milli / 1000
        return self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Machine of the simulated pool. 0 CPUs or memory: not counted."""

    name: str
    gpus: int
    cpus: float = 0.0
    mem_gb: float = 0.0
    kind: str = "GPU"
    disk_mbps: float = 0.0
    net_mbps: float = 0.0
    area: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxPlacement:
    """Step and synchronisation time, in seconds, measured on a placement (GPUs per node, as digits)."""

    placement: str
    local_batch: int
    step_time_s: float
    sync_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxScaling:
    """Step and synchronisation time, in seconds, measured on a number of nodes and replicas."""

    nodes: int
    replicas: int
    local_batch: int
    step_time_s: float
    sync_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxValidation:
    """Metric and gradient statistics after one epoch."""

    progress: float
    iteration: int
    metric: float
    grad_sqr: float
    grad_var: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs of a trace, by time of submission, then in file order."""

    name: str
    format: str
    jobs: tuple[TraceJob, ...]
