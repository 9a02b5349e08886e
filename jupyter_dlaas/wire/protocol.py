"""The words on the wire: what is asked for, what is shown, what may be done. Standard library only.

Everybody may import this module: notebook, learner, server and (through the golden files in `tests/wire/`) the page.
Times are seconds since 1970 (`_s`), sizes of a job are *learners*; the page multiplies by `gpus_per_learner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jupyter_dlaas.wire.codec import DlaasError, Invalid, Json, rule
from jupyter_dlaas.wire.membership_history import Interruption, Resize

__all__ = [
    "PROTOCOL",
    "STARTS_WITH_ONE",
    "Action",
    "ActionId",
    "Bundle",
    "Cause",
    "Condition",
    "Cursor",
    "DeviceView",
    "DrainView",
    "Elastic",
    "Failure",
    "File",
    "Forbidden",
    "Interruption",
    "JobSpec",
    "JobView",
    "LearnerView",
    "LeaveView",
    "NodeView",
    "NotAllowed",
    "NotFound",
    "Note",
    "Origin",
    "Placement",
    "PoolOrder",
    "PoolPlacement",
    "PoolView",
    "Progress",
    "QueueView",
    "Refused",
    "Resize",
    "Scheduled",
    "Size",
    "Speed",
    "State",
    "Submit",
    "TooOld",
    "Unavailable",
    "Where",
    "is_report",
]

PROTOCOL: Final = 1
"""Rises when an old reader would misunderstand. A client that is newer than the engine asks it to hand over."""

NAME_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_]{0,39}(-[A-Za-z0-9_]{1,39}){0,8}"
ID_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_-]{0,99}-[0-9]{1,12}"
_IDENTIFIER: Final = rule(longest=200)
_PATH: Final = rule(longest=4096)


class State(StrEnum):
    """Where a job stands. FfDL's words; shown to users."""

    QUEUED = "QUEUED"
    DEPLOYING = "DEPLOYING"
    DOWNLOADING = "DOWNLOADING"
    PROCESSING = "PROCESSING"
    STORING = "STORING"
    COMPLETED = "COMPLETED"
    HALTED = "HALTED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """True when nothing will happen to the job any more."""
        return self in (State.COMPLETED, State.FAILED, State.CANCELLED)


class Cause(StrEnum):
    """Whose fault a failure is. Decides whether the job is tried again, and what its owner is told."""

    YOUR_CODE = "your code"
    YOUR_DATA = "data"
    RESOURCES = "resources"
    HARDWARE = "hardware"
    EVICTED = "evicted"
    HANG = "hang"
    PLATFORM = "platform"
    UNKNOWN = "unknown"


STARTS_WITH_ONE: Final = "starts_with_one"  # a note's code: the learners that were asked for would all do the same


class Placement(StrEnum):
    """How a job asks for its learners to be laid over nodes, where it asks at all."""

    PACK = "pack"
    SPREAD = "spread"


class PoolPlacement(StrEnum):
    """How a pool lays learners over nodes, where a job does not say it."""

    PACK = "pack"
    """On as few nodes as it can, the tightest first."""
    SPREAD = "spread"
    """One at a time, on the node with the fewest."""
    TETRIS = "tetris"
    """One at a time, where what is free looks most like what is asked for."""
    FGD = "fgd"
    """One at a time, where the least becomes unusable for what is usually asked for."""
    TOPOLOGY = "topology"
    """As close together as an empty pool could, which a gang waits for; the longer it waits, the further apart."""


class PoolOrder(StrEnum):
    """By what a pool sorts the jobs that wait. Priority goes before all of them."""

    FIFO = "fifo"
    FIFO_SKIP = "fifo-skip"
    SHORTEST = "shortest"
    SRTF = "srtf"
    LAS = "las"
    GITTINS = "gittins"
    TIME_SLICE = "time-slice"
    FAIR = "fair"
    FAIR_FINISH = "fair-finish"


class Elastic(StrEnum):
    """Who may change the size of a running job: nobody; its owner (and the pool, between min and max); or the pool
    alone, by how fast it finds the job to be at each size."""

    OFF = "off"
    MANUAL = "manual"
    AUTO = "auto"


class Condition(StrEnum):
    """When a larger gang is worth it, with `elastic` auto. What `condition_value` means stands beside each."""

    EFFICIENCY = "efficiency"
    """Least part of a learner's throughput that each further one must bring (0.1)."""
    UTILITY = "utility"
    """What an hour sooner is worth; `price_per_h` is what a learner costs (1)."""
    DEADLINE = "deadline"
    """Seconds after the submit at which it is to be through."""
    GOODPUT = "goodput"
    """Gradient noise scale in samples, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """From this epoch on (0 is the first) the wish is so many learners."""

    epoch: int = field(metadata=rule(least=0, most=10**9))
    learners: int = field(metadata=rule(least=1, most=100_000))


class ActionId(StrEnum):
    """What can be asked of a job."""

    SCALE = "scale"
    HALT = "halt"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file that travels with a job: inline text, or the SHA-256 of bytes that were uploaded before."""

    path: str = field(metadata=_PATH)
    text: str | None = field(default=None, metadata=rule(longest=8_000_000))
    sha256: str | None = field(default=None, metadata=rule(pattern=r"[0-9a-f]{64}", says="is no SHA-256"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The cell a job came from, so that the page can find its way back."""

    notebook: str | None = field(default=None, metadata=_PATH)
    cell_id: str | None = field(default=None, metadata=_IDENTIFIER)
    execution_count: int | None = field(default=None, metadata=rule(least=0, most=10**9))
    host: str | None = field(default=None, metadata=_IDENTIFIER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence for the owner: what was left out of train.py and why, a warning, what four lines would add."""

    code: str = field(metadata=rule(longest=60))
    text: str = field(metadata=rule(longest=4000))


def is_report(note: Note) -> bool:
    """What a training found out about itself, beside what was known at submit."""
    return note.code.startswith("report_")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a job is and what it asks for. Fixed at submit; only the wish, the priority and `elastic` change later."""

    name: str = field(
        default="train",
        metadata=rule(
            pattern=NAME_PATTERN,
            longest=80,
            says="is no job name: letters, digits, _ and -, starting with a letter",
        ),
    )
    learners_min: int = field(default=1, metadata=rule(least=1, most=100_000))
    learners_max: int = field(default=1, metadata=rule(least=1, most=100_000))
    gpus_per_learner: int = field(default=1, metadata=rule(least=0, most=1024))
    cpus_per_learner: float = field(default=0.0, metadata=rule(least=0, most=10_000))
    memory_bytes_per_learner: int = field(default=0, metadata=rule(least=0, most=2**50))
    gpu_kind: str | None = field(default=None, metadata=rule(longest=100))
    priority: int = field(default=0, metadata=rule(least=-1_000_000, most=1_000_000))
    queue: str = field(default="default", metadata=rule(pattern=NAME_PATTERN, longest=80, says="is no queue name"))
    spot: bool = False
    """It takes only what ordinary jobs leave idle, at a lower price, and gives it back when one of them needs it."""
    placement: Placement | None = None
    """None: as the pool does."""
    elastic: Elastic = Elastic.MANUAL
    condition: Condition = Condition.EFFICIENCY
    condition_value: float | None = field(default=None, metadata=rule(least=0, most=10**12))
    price_per_h: float = field(default=1.0, metadata=rule(least=0, most=10**9))
    schedule: tuple[Scheduled, ...] = field(default=(), metadata=rule(longest=1000))
    """Sizes by epoch, rising."""
    framework: str | None = field(default=None, metadata=rule(longest=40))
    epochs: int | None = field(default=None, metadata=rule(least=1, most=10**9))
    max_time_s: float | None = field(default=None, metadata=rule(least=1, most=10**9))
    hang_after_s: float | None = field(default=None, metadata=rule(least=1, most=10**9))
    """A learner that neither makes a step nor moves for so long is ended. None: as `hang_detection.py` says."""
    checkpoint_every_s: float = field(default=60.0, metadata=rule(least=0, most=10**9))
    retries: int = field(default=4, metadata=rule(least=0, most=1000))
    outputs: tuple[str, ...] = field(default=(), metadata=rule(longest=200))
    metric_patterns: tuple[str, ...] = field(default=(), metadata=rule(longest=50))
    autolog: bool = True
    """Curves and progress without a changed line: from frameworks' callbacks, progress bars and printed lines."""
    command: tuple[str, ...] = field(default=(), metadata=rule(longest=1000))
    """Arguments for the script, after its name."""
    interpreter: str | None = field(default=None, metadata=_PATH)
    """The Python that runs the job; None: the engine's own."""
    directory: str | None = field(default=None, metadata=_PATH)
    """The working directory, so that relative paths mean what they meant in the notebook."""
    origin: Origin = Origin()
    notes: tuple[Note, ...] = field(default=(), metadata=rule(longest=500))
    cells: Mapping[str, str] = field(default_factory=dict, metadata=rule(longest=2000))
    """Line map of train.py: "12-30" -> "cell [7]:3" (first line of the range is line 3 of that cell)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A request to train. `key` makes it safe to repeat: the same key gives the same job."""

    key: str = field(metadata=rule(pattern=r"[A-Za-z0-9_.:-]{8,100}", says="is no request key"))
    spec: JobSpec
    source: str = field(metadata=rule(longest=8_000_000))
    files: tuple[File, ...] = field(default=(), metadata=rule(longest=5000))
    environment: Mapping[str, str] = field(default_factory=dict, metadata=rule(longest=5000))
    """The job's whole environment. Kept in a file that only the owner can read; never shown."""
    learners: int | None = field(default=None, metadata=rule(least=1, most=100_000))
    """The first wish; None: as many as allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many learners: bounds, the owner's wish, what the job holds now."""

    min: int
    max: int
    wish: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far training is. Steps count over the whole job."""

    epoch: int = 0
    epochs: int | None = None
    step: int = 0
    steps: int | None = None
    fraction: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    left_s_low: float | None = None
    left_s_high: float | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that can be asked of a job now, or (enabled=False) why it cannot."""

    id: ActionId
    label: str
    enabled: bool = True
    why_not: str | None = None
    confirm: str | None = None
    """What is lost by it, as a sentence: a front end asks before it does this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerView:
    """One training process. `state`: Starting, Joining, Training, Leaving, Lost, Ended."""

    member: int
    generation: int
    rank: int
    node: str
    devices: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where in the user's code: a cell (or file), a line, the function, and some lines around it."""

    label: str
    line: int
    function: str | None = None
    first_line: int = 1
    source: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """`cell [3], line 2, in train`."""
        return f"{self.label}, line {self.line}" + (f", in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job failed: cause, what, where, what to do; always in this order."""

    cause: Cause
    code: str
    what: str
    advice: str
    where: Where | None = None
    raised_by: tuple[int, ...] = ()
    """Members that raised the same."""
    step: int | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast the job was with so many learners: samples per second, and relative to the smallest size measured."""

    learners: int
    samples_per_s: float
    times: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as people see it. Made by the server; nothing in it is worked out again by a front end."""

    row: int
    """Row of the event table at which this view was true: the part of a cursor that concerns the view."""
    id: str
    name: str
    number: int
    owner: str
    state: State
    state_label: str
    """The chip: "Processing · scaling 2 → 4"."""
    tone: str
    """idle, active, good, warn or bad."""
    status_line: str
    """The gist beside the chip."""
    reason: str
    """A sentence, where something waits, failed or changed; else empty."""
    transition: str | None
    """scaling, halting, cancelling, preempting, restarting, or None."""
    place: int | None
    waiting: int | None
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    unit: str
    """"GPU" or "CPU slot"."""
    gpus_per_learner: int
    size: Size
    elastic: Elastic
    priority: int
    queue: str
    actions: tuple[Action, ...]
    learners: tuple[LearnerView, ...]
    progress: Progress | None
    failure: Failure | None
    resizes: tuple[Resize, ...]
    outputs: tuple[str, ...]
    results: tuple[str, ...]
    """Names whose values can be loaded."""
    origin: Origin
    notes: tuple[Note, ...]
    directory: str
    generation: int
    restarts: int
    spot: bool = False
    """It runs on what ordinary jobs leave idle, and gives it back."""
    speeds: tuple[Speed, ...] = ()
    """What was measured at each size."""
    speedup: str = ""
    """The same in a sentence: "2 → 4: 1.3× faster"."""
    checkpoint_step: int | None = None
    """The step at which the newest checkpoint was written; None: there is none to go on from."""
    interruptions: tuple[Interruption, ...] = ()
    queued_s: float = 0.0
    """Seconds that it spent in the queue until it last got devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """One device of a node: free (job None), lent, or out of service with a reason."""

    id: str
    index: int
    kind: str
    memory_bytes: int
    job: str | None = None
    out_of_service: str | None = None
    busy_fraction: float | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node with its devices."""

    name: str
    devices: tuple[DeviceView, ...]
    cpus: float
    memory_bytes: int
    cordoned: str | None = None
    """Why it takes no new learners: "being drained by ana"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue: its share of the pool, and what it has of it."""

    name: str
    weight: float
    """How idle devices are divided among queues without a guarantee."""
    guaranteed: int
    """Devices; what is idle of them is lent, and taken back."""
    held: int
    waiting: int
    """Jobs of it that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """The pool: what there is, who has it, and in which order jobs wait."""

    row: int
    name: str
    unit: str
    user: str
    nodes: tuple[NodeView, ...]
    devices_total: int
    devices_free: int
    queue: tuple[str, ...]
    """Ids of waiting jobs, first in line first."""
    gist: str
    isolation: str
    order: str = "shortest"  # by what waiting jobs are sorted; see `[pool] order`
    placement: str = "pack"  # how learners are laid over nodes; see `[pool] placement`
    preemption: bool = True
    spot_price: float = 0.3
    """What a device of a spot job counts in its queue's share."""
    spot_notice_s: float = 30.0
    """How long a spot job may take for a checkpoint when its devices are taken back."""
    queues: tuple[QueueView, ...] = ()
    track_record: str = ""
    """How good start estimates were until now, in a sentence; empty where none was put to the test."""
    notices: tuple[str, ...] = ()
    """Losses of the pool's own records in the last week, and what became of the jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveView:
    """What a drain does, or would do, with one job."""

    job: str
    way: str
    """shrink, move, preempt, or stay (until it has a checkpoint, or ends)."""
    before: int
    """Learners."""
    after: int
    """Learners that go on without a pause in the queue."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """A node that is (or would be) drained, and what becomes of the jobs there."""

    node: str
    is_asked: bool
    """False: this is a preview."""
    plan: str
    """Names this very plan: a drain that is asked with another one's is refused."""
    gist: str
    jobs: tuple[LeaveView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What a reader of a job has seen. Valid after a restart of everything.

    `row`: event row of the last view. `metrics`: byte offset in the metrics file. `logs`: member -> byte offset.
    """

    row: int = field(default=0, metadata=rule(least=0, most=2**53))
    metrics: int = field(default=0, metadata=rule(least=0, most=2**53))
    logs: Mapping[str, int] = field(default_factory=dict, metadata=rule(longest=100_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a cell's output keeps (`application/vnd.jupyter-dlaas.job+json`): enough to draw the card without a server.

    `curves`: metric -> [[step, time, value], ...], at most 200 points each. `log`: the last lines.
    """

    schema: int
    pool: str
    job: JobView
    curves: Mapping[str, Json]
    log: tuple[str, ...]


MIME: Final = "application/vnd.jupyter-dlaas.job+json"


class NotFound(DlaasError):
    """No such job, file or result, or it belongs to somebody else."""

    code = "not_found"
    http_status = 404


class NotAllowed(DlaasError):
    """The job is in a state that cannot take the action, or the user may not ask for it."""

    code = "not_allowed"
    http_status = 409


class Refused(DlaasError):
    """Well-formed, but it can never work here: more devices than the pool has, a name used for another thing."""

    code = "refused"
    http_status = 422


class TooOld(DlaasError):
    """Client and engine speak different versions of the protocol."""

    code = "protocol"
    http_status = 426


class Unavailable(DlaasError):
    """The engine cannot take work now (no engine, store full); nothing was accepted. Try again later."""

    code = "unavailable"
    http_status = 503


class Forbidden(DlaasError):
    """The caller is not who it would have to be."""

    code = "forbidden"
    http_status = 403


ERRORS: Final[dict[str, type[DlaasError]]] = {
    kind.code: kind for kind in (DlaasError, Forbidden, Invalid, NotFound, NotAllowed, Refused, TooOld, Unavailable)
}
