"""Records of the REST protocol: requests, views and actions. Standard library only.

Notebook, learner and server import this module; the golden files in `tests/wire/` keep the page's types equal to it.
Times are seconds since 1970 (`_s`). Sizes of a job are numbers of *learners*; the page multiplies them by
`gpus_per_learner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jupyter_dlaas.wire.codec import DlaasError, Invalid, Json, rule
from jupyter_dlaas.wire.learner_view import LearnerView
from jupyter_dlaas.wire.membership_history import Interruption, Resize
from jupyter_dlaas.wire.waiting import WaitingReason

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
    "WaitingReason",
    "Where",
    "is_report",
]

PROTOCOL: Final = 1
"""Protocol version. It rises when an older reader would misunderstand; a newer client asks the engine to hand over."""

KEY_RULE: Final = "is not a valid request key: use 8 to 100 letters, digits and _ . : -"
NAME_RULE: Final = "use letters, digits, _ and -, starting with a letter"
NAME_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_]{0,39}(-[A-Za-z0-9_]{1,39}){0,8}"
ID_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_-]{0,99}-[0-9]{1,12}"
_IDENTIFIER: Final = rule(longest=200)
_PATH: Final = rule(longest=4096)


class State(StrEnum):
    """State of a job, as users see it. The names are those of FfDL."""

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
        """True if the state never changes again."""
        return self in (State.COMPLETED, State.FAILED, State.CANCELLED)


class Cause(StrEnum):
    """Cause of a failure. It decides whether the job is retried and what its owner reads."""

    YOUR_CODE = "your code"
    YOUR_DATA = "data"
    RESOURCES = "resources"
    HARDWARE = "hardware"
    EVICTED = "evicted"
    HANG = "hang"
    PLATFORM = "platform"
    UNKNOWN = "unknown"


STARTS_WITH_ONE: Final = "starts_with_one"  # code of a note: the requested learners would all do the same work


class Placement(StrEnum):
    """Placement of learners on nodes that a job requests."""

    PACK = "pack"
    SPREAD = "spread"


class PoolPlacement(StrEnum):
    """Placement policy of a pool for jobs that request none."""

    PACK = "pack"
    """On as few nodes as possible, the fullest ones first."""
    SPREAD = "spread"
    """One learner at a time, on the node with the fewest learners."""
    TETRIS = "tetris"
    """One learner at a time, on the node whose free resources match the request best."""
    FGD = "fgd"
    """One learner at a time, where it causes the least fragmentation for the usual requests."""
    TOPOLOGY = "topology"
    """As close together as in an empty pool; a gang waits for that, and accepts a wider placement over time."""


class PoolOrder(StrEnum):
    """Order in which a pool sorts waiting jobs. Priority precedes all of them."""

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
    """Control over size: none, the owner (and the pool between min and max), or the pool by measured speed."""

    OFF = "off"
    MANUAL = "manual"
    AUTO = "auto"


class Condition(StrEnum):
    """Condition under which a larger gang is worthwhile with `elastic` auto. Each explains its `condition_value`."""

    EFFICIENCY = "efficiency"
    """Minimum share of one learner's throughput that each further learner must add (0.1)."""
    UTILITY = "utility"
    """Value of finishing an hour sooner; `price_per_h` is the cost of a learner (1)."""
    DEADLINE = "deadline"
    """Seconds after the submission in which the job must finish."""
    GOODPUT = "goodput"
    """Gradient noise scale in samples, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """Scheduled size: from this epoch on (0 is the first), the job requests so many learners."""

    epoch: int = field(metadata=rule(least=0, most=10**9))
    learners: int = field(metadata=rule(least=1, most=100_000))


class ActionId(StrEnum):
    """Action that a user can request of a job."""

    SCALE = "scale"
    HALT = "halt"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """File that travels with a job: inline text, or the SHA-256 of bytes that were uploaded before."""

    path: str = field(metadata=_PATH)
    text: str | None = field(default=None, metadata=rule(longest=8_000_000))
    sha256: str | None = field(default=None, metadata=rule(pattern=r"[0-9a-f]{64}", says="is not a SHA-256 checksum"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Notebook cell from which a job was submitted, so that the page can find its way back."""

    notebook: str | None = field(default=None, metadata=_PATH)
    cell_id: str | None = field(default=None, metadata=_IDENTIFIER)
    execution_count: int | None = field(default=None, metadata=rule(least=0, most=10**9))
    host: str | None = field(default=None, metadata=_IDENTIFIER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Sentence for the job's owner: code that was left out of train.py and why, a warning, or a suggestion."""

    code: str = field(metadata=rule(longest=60))
    text: str = field(metadata=rule(longest=4000))


def is_report(note: Note) -> bool:
    """Return whether a note is a finding of the training itself, and not known at submission."""
    return note.code.startswith("report_")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Specification of a job. Fixed at submission; only requested size, priority and `elastic` change later."""

    name: str = field(
        default="train",
        metadata=rule(pattern=NAME_PATTERN, longest=80, says=f"is not a valid job name: {NAME_RULE}"),
    )
    learners_min: int = field(default=1, metadata=rule(least=1, most=100_000))
    learners_max: int = field(default=1, metadata=rule(least=1, most=100_000))
    gpus_per_learner: int = field(default=1, metadata=rule(least=0, most=1024))
    cpus_per_learner: float = field(default=0.0, metadata=rule(least=0, most=10_000))
    memory_bytes_per_learner: int = field(default=0, metadata=rule(least=0, most=2**50))
    gpu_kind: str | None = field(default=None, metadata=rule(longest=100))
    priority: int = field(default=0, metadata=rule(least=-1_000_000, most=1_000_000))
    queue: str = field(
        default="default",
        metadata=rule(pattern=NAME_PATTERN, longest=80, says=f"is not a valid queue name: {NAME_RULE}"),
    )
    spot: bool = False
    """True if it uses only devices that ordinary jobs leave idle, at a lower price, and returns them on demand."""
    placement: Placement | None = None
    """Requested placement; None: the pool's policy."""
    elastic: Elastic = Elastic.MANUAL
    condition: Condition = Condition.EFFICIENCY
    condition_value: float | None = field(default=None, metadata=rule(least=0, most=10**12))
    price_per_h: float = field(default=1.0, metadata=rule(least=0, most=10**9))
    schedule: tuple[Scheduled, ...] = field(default=(), metadata=rule(longest=1000))
    """Sizes by rising epoch."""
    framework: str | None = field(default=None, metadata=rule(longest=40))
    epochs: int | None = field(default=None, metadata=rule(least=1, most=10**9))
    max_time_s: float | None = field(default=None, metadata=rule(least=1, most=10**9))
    hang_after_s: float | None = field(default=None, metadata=rule(least=1, most=10**9))
    """Seconds without a step or movement after which a learner is ended. None: the guardian's default limit."""
    checkpoint_every_s: float = field(default=60.0, metadata=rule(least=0, most=10**9))
    retries: int = field(default=4, metadata=rule(least=0, most=1000))
    outputs: tuple[str, ...] = field(default=(), metadata=rule(longest=200))
    metric_patterns: tuple[str, ...] = field(default=(), metadata=rule(longest=50))
    autolog: bool = True
    """True to record metrics and progress of unchanged code from callbacks, progress bars and printed lines."""
    command: tuple[str, ...] = field(default=(), metadata=rule(longest=1000))
    """Arguments of the script, without its name."""
    interpreter: str | None = field(default=None, metadata=_PATH)
    """Python interpreter that runs the job; None: the engine's own."""
    python: str | None = field(default=None, metadata=rule(pattern=r"\d\.\d{1,3}"))
    """Minor version of Python that the functions sent with the job require, such as "3.11"; None: any."""
    variables: tuple[str, ...] = field(default=(), metadata=rule(longest=5000))
    """Names of the environment variables that its owner named."""
    directory: str | None = field(default=None, metadata=_PATH)
    """Working directory, so that relative paths resolve as in the notebook."""
    script: str | None = field(default=None, metadata=_PATH)
    """Path of the submitted script, which errors name; None for programs made from cells or given as text."""
    origin: Origin = Origin()
    notes: tuple[Note, ...] = field(default=(), metadata=rule(longest=500))
    cells: Mapping[str, str] = field(default_factory=dict, metadata=rule(longest=2000))
    """Line map of train.py: "12-30" -> "cell [7]:3" (the first line of the range is line 3 of that cell)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submission of a job. `key` makes it idempotent: the same key yields the same job."""

    key: str = field(metadata=rule(pattern=r"[A-Za-z0-9_.:-]{8,100}", says=KEY_RULE))
    spec: JobSpec
    source: str = field(metadata=rule(longest=8_000_000))
    files: tuple[File, ...] = field(default=(), metadata=rule(longest=5000))
    environment: Mapping[str, str] = field(default_factory=dict, metadata=rule(longest=5000))
    """Complete environment of the job. It is kept in a file that only the owner can read, and never shown."""
    learners: int | None = field(default=None, metadata=rule(least=1, most=100_000))
    """Initially requested number of learners; None: the maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a job in learners: bounds, requested size, and size it holds now."""

    min: int
    max: int
    wish: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of training. Steps count over the whole job."""

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
    """Action that can be requested of a job now, or (enabled=False) the reason why it cannot."""

    id: ActionId
    label: str
    enabled: bool = True
    why_not: str | None = None
    confirm: str | None = None
    """Sentence about what the action loses: a front end asks for confirmation with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Place in the user's code: a cell (or file), a line, the function, and some lines around it."""

    label: str
    line: int
    function: str | None = None
    first_line: int = 1
    source: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Place as text: `cell [3], line 2, in train`."""
        return f"{self.label}, line {self.line}" + (f", in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure of a job: cause, description, place and advice; always shown in this order."""

    cause: Cause
    code: str
    what: str
    advice: str
    where: Where | None = None
    raised_by: tuple[int, ...] = ()
    """Members that raised the same failure."""
    step: int | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Measured speed at one size: samples per second, and speed relative to the smallest measured size."""

    learners: int
    samples_per_s: float
    times: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """Job as people see it. The server computes all values; a front end computes none again."""

    row: int
    """Row of the event table at which this view was true: the view's part of a cursor."""
    id: str
    name: str
    number: int
    owner: str
    state: State
    state_label: str
    """Text of the state chip: "Processing · scaling 2 → 4"."""
    tone: str
    """Tone of the chip: idle, active, good, warn or bad."""
    status_line: str
    """Summary next to the chip."""
    reason: str
    """Sentence if the job waits, failed or changed; otherwise empty."""
    transition: str | None
    """Transition under way: scaling, halting, cancelling, preempting, restarting, or None."""
    place: int | None
    waiting: int | None
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    unit: str
    """Unit of devices: "GPU" or "CPU slot"."""
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
    """Names of values that can be loaded."""
    origin: Origin
    notes: tuple[Note, ...]
    directory: str
    generation: int
    restarts: int
    spot: bool = False
    """True if the job uses devices that ordinary jobs leave idle, and returns them on demand."""
    speeds: tuple[Speed, ...] = ()
    """Speeds measured at each size."""
    speedup: str = ""
    """Speeds as a sentence: "2 → 4: 1.3× faster"."""
    checkpoint_step: int | None = None
    """Step of the newest checkpoint; None if there is none to resume from."""
    interruptions: tuple[Interruption, ...] = ()
    queued_s: float = 0.0
    """Seconds that the job spent in the queue before it last got devices."""
    waiting_for: tuple[WaitingReason, ...] = ()
    """Reasons why processes of a job that has its devices do not run yet; `reason` sums them up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """Device of a node: free (job is None), allocated, or out of service with a reason."""

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
    """Node with its devices."""

    name: str
    devices: tuple[DeviceView, ...]
    cpus: float
    memory_bytes: int
    cordoned: str | None = None
    """Reason why the node is cordoned and takes no new learners: "being drained by ana"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """Queue: its share of the pool and the devices it holds."""

    name: str
    weight: float
    """Weight by which idle devices are divided among queues without a guarantee."""
    guaranteed: int
    """Number of guaranteed devices; idle ones are borrowed by other queues and reclaimed."""
    held: int
    waiting: int
    """Number of waiting jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Pool: its devices, the jobs that hold them, and the order of waiting jobs."""

    row: int
    name: str
    unit: str
    user: str
    nodes: tuple[NodeView, ...]
    devices_total: int
    devices_free: int
    queue: tuple[str, ...]
    """Ids of waiting jobs in queue order."""
    gist: str
    isolation: str
    runs_on: str = ""
    """Place where the pool's jobs run: this machine, or a cluster with its namespace."""
    order: str = "shortest"  # order of waiting jobs; see `[pool] order`
    placement: str = "pack"  # placement policy; see `[pool] placement`
    preemption: bool = True
    spot_price: float = 0.3
    """Weight with which a spot job's device counts in its queue's share."""
    spot_notice_s: float = 30.0
    """Seconds that a spot job may take for a checkpoint when its devices are reclaimed."""
    queues: tuple[QueueView, ...] = ()
    track_record: str = ""
    """Sentence about the accuracy of start estimates until now; empty if none could be checked yet."""
    notices: tuple[str, ...] = ()
    """Losses of the pool's own records in the last week, and their effect on the jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveView:
    """Effect of a drain on one job."""

    job: str
    way: str
    """Way in which the job leaves: shrink, move, preempt, or stay (until it has a checkpoint or ends)."""
    before: int
    """Number of learners before the drain."""
    after: int
    """Number of learners that continue without a pause in the queue."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """Node that is (or would be) drained, and the effect on its jobs."""

    node: str
    is_asked: bool
    """False for a preview."""
    plan: str
    """Identifier of this plan: a drain request that names another plan is refused."""
    gist: str
    jobs: tuple[LeaveView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Position of a reader in a job's records. It stays valid when all processes restart.

    `row`: event row of the last view. `metrics`: byte offset in the metrics file. `logs`: member -> byte offset.
    """

    row: int = field(default=0, metadata=rule(least=0, most=2**53))
    metrics: int = field(default=0, metadata=rule(least=0, most=2**53))
    logs: Mapping[str, int] = field(default_factory=dict, metadata=rule(longest=100_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Content of a cell's output (`application/vnd.jupyter-dlaas.job+json`): enough to draw the card without a server.

    `curves`: metric -> [[step, time, value], ...], at most 200 points each. `log`: the last lines.
    """

    schema: int
    pool: str
    job: JobView
    curves: Mapping[str, Json]
    log: tuple[str, ...]


MIME: Final = "application/vnd.jupyter-dlaas.job+json"


class NotFound(DlaasError):
    """Job, file or result that does not exist or belongs to another user."""

    code = "not_found"
    http_status = 404


class NotAllowed(DlaasError):
    """Action that the job's state or the user's rights do not allow."""

    code = "not_allowed"
    http_status = 409


class Refused(DlaasError):
    """Well-formed request that can never work here: too many devices for the pool, or a name that is already taken."""

    code = "refused"
    http_status = 422


class TooOld(DlaasError):
    """Error for a client and an engine with different protocol versions."""

    code = "protocol"
    http_status = 426


class Unavailable(DlaasError):
    """Refusal of an engine that cannot take work now (no engine, store full). Nothing was accepted; try again later."""

    code = "unavailable"
    http_status = 503


class Forbidden(DlaasError):
    """Error for a caller that is not the required user."""

    code = "forbidden"
    http_status = 403


ERRORS: Final[dict[str, type[DlaasError]]] = {
    kind.code: kind for kind in (DlaasError, Forbidden, Invalid, NotFound, NotAllowed, Refused, TooOld, Unavailable)
}
