"""Records of jobs and their members, from which decisions are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.size_search import Search
from jupyter_dlaas.wire.journal import Goal, halts
from jupyter_dlaas.wire.protocol import Elastic, Failure, Interruption, JobSpec, Note, Resize, State

__all__ = ["Intent", "Job", "Member", "MemberState", "PendingResize", "Slow", "StartEstimate", "is_settled"]


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow learner. It does its part of a step at `speed` of the median learner's (0 to 1)."""

    member: int
    speed: float


class MemberState(StrEnum):
    """State of a learner. A member holds its seat until it is removed from the job."""

    WANTED = "wanted"
    UP = "up"
    READY = "ready"
    DOWN = "down"
    """Ended, but its seat is kept until the fate of the generation is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Member of a job: its n-th learner process, counted over all generations."""

    member: int
    generation: int
    rank: int
    seat: Seat
    state: MemberState = MemberState.WANTED
    host: str = ""
    """Machine on which its process runs, if reported: a pool that pins nothing learns it then."""
    pod: str = ""
    """Pod in which its process runs, if any."""


class Intent(StrEnum):
    """Intent of the owner."""

    RUN = "run"
    HALT = "halt"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingResize:
    """Change of size that is under way."""

    before: int
    after: int
    by: str
    since_s: float
    why: str = ""
    """Sentence for the owner if no person asked for the change."""
    members: tuple[int, ...] = ()
    """Members that trained before the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Communication profile of a gang."""

    communication: float | None = None
    """Share of step time that learners wait for all-reduce.

    Measured only on several nodes: a gang on one node shows nothing about its cost across nodes.
    """
    skew: float | None = None
    """Share of the largest tensor in all exchanged bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimate:
    """First start estimate shown to the owner of a waiting job: made at `at_s`, a start from `low_s` to `high_s`."""

    at_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: request, desired state and known state. Immutable: a change makes a new record."""

    id: str
    number: int
    owner: str
    spec: JobSpec
    submitted_s: float
    wish: int
    wish_by: str = "you"
    """Origin of the wish: you, program, schedule, auto."""
    unit: str = "GPU"
    """Device unit of the pool at submit: "GPU" or "CPU slot"."""
    state: State = State.QUEUED
    intent: Intent = Intent.RUN
    goal: Goal = Goal.RUN
    """Goal of the present guardian. It only rises (run, halt, stop) until the job is closed."""
    priority: int = 0
    elastic: Elastic = Elastic.MANUAL
    generation: int = 0
    """Newest generation that was planned; 0 before the first start."""
    live_generation: int = 0
    """Newest generation known to train together."""
    is_live: bool = False
    """True if the gang can change its size while it trains; members that stay continue."""
    is_plain: bool = False
    """True if nothing that runs can be resumed, as far as is known: a change of size would start over."""
    awaited: str | None = None
    """Sentence that names the learner for which the others wait."""
    slow: Slow | None = None
    """Learner that slows down the others in each step."""
    profile: Profile = Profile()
    """Communication profile: how much the distance between learners matters."""
    checkpoints_asked: int = 0
    """Number of checkpoints that people asked for."""
    awaits_checkpoint: bool = False
    """True until the last requested checkpoint has been written."""
    alone: str | None = None
    """Reason why its program has no use for more learners, or why its size is fixed, with advice."""
    reports: tuple[Note, ...] = ()
    """Findings of the training that the owner must know."""
    joins_failed: int = 0
    """Changes in a row in which a joining learner did not come."""
    next_member: int = 0
    members: tuple[Member, ...] = ()
    """All learners that hold a seat, of all generations."""
    revision: int = 0
    """Revision of the wanted document; rises with each change of it."""
    seen_revision: int = 0
    """Newest revision that the guardian acknowledged."""
    facts_read: int = 0
    """Number of journal facts applied."""
    journal_offset: int = 0
    """Byte offset up to which the journal was read."""
    damaged_lines: int = 0
    """Number of unreadable journal lines."""
    is_closed: bool = True
    """True if no process of the job is left, by the guardian's last fact, or none was ever started."""
    resize: PendingResize | None = None
    resizes: tuple[Resize, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    restarts: int = 0
    """Restarts since the last checkpoint at a higher step than the one before."""
    restarts_total: int = 0
    guardian_starts: int = 0
    """Guardians started for the present revision; limits restarts of a guardian that cannot start."""
    guardian_up_s: float | None = None
    """Time since which the present guardian holds the job; None if there is none."""
    not_before_s: float = 0.0
    """Time before which nothing is started for the job (growing delay after losses)."""
    step: int = 0
    checkpoint_step: int | None = None
    started_s: float | None = None
    ran_s: float = 0.0
    """Run time on its former seats, as far as a checkpoint preserved the work."""
    ended_s: float | None = None
    failure: Failure | None = None
    """Failure of a FAILED job; else the last loss that the job survived."""
    results: tuple[str, ...] = ()
    halted_by: str | None = None
    cancelled_by: str | None = None
    queued_s: float = 0.0
    """Time at which it last returned to the queue."""
    in_queue_s: float | None = None
    """Start of the wait that the owner sees; None: since submit."""
    waited_s: float = 0.0
    """Seconds in the queue, summed over all waits that ended with devices."""
    seated_s: float | None = None
    """Time at which it last left the queue."""
    moved_s: float | None = None
    """Time at which the pool last began to migrate it, drains excluded."""
    preempted: str | None = None
    """Winner and reason of its preemption, until it starts again."""
    refusal: str | None = None
    """Sentence that says which of its seats the pool could not provide, until it starts again."""
    limit_since_s: float | None = None
    """Time since which its time limit counts; None while it does not train."""
    limit_used_s: float = 0.0
    """Seconds of its time limit used before that."""
    notice_s: float = 30.0
    """Seconds that a leaving job has for its checkpoint before its learners are killed."""
    search: Search = field(default_factory=Search)
    """Throughput measured at each size, and state of the size search."""
    schedule_done: int = 0
    """Number of schedule entries applied."""
    is_wait_recorded: bool = False
    """True if the wait reason was recorded in its history since it was last queued."""
    start_estimate: StartEstimate | None = None
    """First start estimate since it was last queued."""

    @property
    def name(self) -> str:
        """Name without the number."""
        return self.spec.name

    @property
    def starts_over(self) -> bool:
        """True if a halt now would lose all work: the job trains, has no checkpoint, and cannot write one."""
        return self.state is State.PROCESSING and self.is_plain and self.checkpoint_step is None

    @property
    def needs_decision(self) -> bool:
        """True if the owner must decide how it continues, after a halt for unreadable checkpoints."""
        return self.intent is Intent.HALT and self.failure is not None and halts(self.failure)

    @property
    def waits(self) -> bool:
        """True if the job is in the queue."""
        return self.state is State.QUEUED and self.intent is Intent.RUN

    @property
    def gang(self) -> tuple[Member, ...]:
        """Members of the newest planned generation, in rank order."""
        members = self.members
        if len(members) < 2:  # most jobs; read several times per plan
            return members if members and members[0].generation == self.generation else ()
        return tuple(sorted((m for m in members if m.generation == self.generation), key=lambda m: m.rank))

    @property
    def held(self) -> int:
        """Number of learners that the job holds; during a change of size, that from before."""
        return self.resize.before if self.resize else len(self.gang)


def is_settled(job: Job) -> bool:
    """Return whether the job trains and no transition is under way; only then its size may change."""
    return (
        job.state is State.PROCESSING
        and job.intent is Intent.RUN
        and job.goal is Goal.RUN
        and job.resize is None
        and job.live_generation == job.generation
        and all(m.state is not MemberState.DOWN for m in job.members)
    )
