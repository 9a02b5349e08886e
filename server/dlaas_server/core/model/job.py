"""The records that decisions are made of: nodes and devices, jobs and their members."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.size_search import Search
from jupyter_dlaas.wire.journal import Goal, halts
from jupyter_dlaas.wire.protocol import Elastic, Failure, Interruption, JobSpec, Note, Resize, State

if TYPE_CHECKING:
    pass

__all__ = ["Intent", "Job", "Member", "MemberState", "PendingResize", "Said", "Slow", "is_settled"]


@dataclass(frozen=True, slots=True)
class Slow:
    """A learner that does its part of a step at `speed` of the others' (the median's, 0 to 1)."""

    member: int
    speed: float


class MemberState(StrEnum):
    """How far a learner is. A member holds its seat until it is removed from the job."""

    WANTED = "wanted"
    UP = "up"
    READY = "ready"
    DOWN = "down"
    """Gone, but its seat is kept until it is known what comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The n-th learner process that a job ever had."""

    member: int
    generation: int
    rank: int
    seat: Seat
    state: MemberState = MemberState.WANTED


class Intent(StrEnum):
    """What the owner wants of the job."""

    RUN = "run"
    HALT = "halt"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingResize:
    """A change of size that is under way."""

    before: int
    after: int
    by: str
    since_s: float
    why: str = ""
    """A sentence for the owner, where nobody asked the job for it."""
    members: tuple[int, ...] = ()
    """Who trained before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a gang's talking was like."""

    communication: float | None = None
    """Of a step's time, what the learners wait for the sums.

    Measured over several nodes only: a gang on one node tells nothing of how it would be further apart."""
    skew: float | None = None
    """Of all bytes that are exchanged, the largest tensor's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The first estimate that the owner of a waiting job was shown: at `at_s` it was to start between the others."""

    at_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: what was asked, what should be, and what is known of it. Changed only by `fold`."""

    id: str
    number: int
    owner: str
    spec: JobSpec
    submitted_s: float
    wish: int
    wish_by: str = "you"
    """Whose word the wish is: you, program, schedule, auto."""
    unit: str = "GPU"
    """What the pool counts in, at submit: "GPU" or "CPU slot"."""
    state: State = State.QUEUED
    intent: Intent = Intent.RUN
    goal: Goal = Goal.RUN
    """What is asked of the guardian in its present life: only rises (run, halt, stop) until it is closed."""
    priority: int = 0
    elastic: Elastic = Elastic.MANUAL
    generation: int = 0
    """The newest generation that was decided; 0 before the first start."""
    live_generation: int = 0
    """The newest generation known to train together."""
    is_live: bool = False
    """The gang can change its size while it trains: members that stay go on."""
    is_plain: bool = False
    """As far as is known, nothing that runs of it could be gone on with: another size would begin it anew."""
    awaited: str | None = None
    """Whom the others wait for, as a sentence."""
    slow: Slow | None = None
    """Who holds the others up in each step."""
    profile: Profile = Profile()
    """Whether it matters how close together its learners sit."""
    checkpoints_asked: int = 0
    """How often a person asked for one."""
    awaits_checkpoint: bool = False
    """The last one that was asked for has not been written yet."""
    alone: str | None = None
    """Why more learners than one are of no use to its program, or its size must stay; and what to do."""
    reports: tuple[Note, ...] = ()
    """What its training found and its owner must know."""
    joins_failed: int = 0
    """Changes in a row in which somebody who was to join did not come to it."""
    next_member: int = 0
    members: tuple[Member, ...] = ()
    """All learners that hold a seat, of all generations."""
    revision: int = 0
    """Rises whenever what is wanted of the guardian changes."""
    seen_revision: int = 0
    """The newest revision that the guardian said it read."""
    facts_read: int = 0
    """How many lines of the journal were folded in."""
    journal_offset: int = 0
    """Byte offset in the journal up to which it was read."""
    damaged_lines: int = 0
    """Lines of the journal that could not be read."""
    is_closed: bool = True
    """No process of the job is left, by the guardian's last word (or none was ever started)."""
    resize: PendingResize | None = None
    resizes: tuple[Resize, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    restarts: int = 0
    """Restarts since the last checkpoint that went further than the one before."""
    restarts_total: int = 0
    guardian_starts: int = 0
    """Guardians started for the present revision: bounds a guardian that cannot start."""
    guardian_up_s: float | None = None
    """Since when the present guardian holds the job; None where there is none."""
    not_before_s: float = 0.0
    """Nothing is started for the job before this time (growing delay after losses)."""
    step: int = 0
    checkpoint_step: int | None = None
    started_s: float | None = None
    ran_s: float = 0.0
    """How long it ran on the seats that it had before, as far as a checkpoint kept that."""
    ended_s: float | None = None
    failure: Failure | None = None
    """Why the job failed, or (while it is not FAILED) the last loss that it survived."""
    results: tuple[str, ...] = ()
    halted_by: str | None = None
    cancelled_by: str | None = None
    queued_s: float = 0.0
    """When it last came back to the queue."""
    in_queue_s: float | None = None
    """Since when it waits, as its owner sees it; None: since its submit."""
    waited_s: float = 0.0
    """Seconds in the queue, of all times that it waited and got devices."""
    seated_s: float | None = None
    """When it last left the queue."""
    moved_s: float | None = None
    """When the pool last set out to move it; what a drain moves does not count."""
    preempted: str | None = None
    """For whom and why its devices were taken, until it starts again."""
    limit_since_s: float | None = None
    """Since when its time limit counts; None while it does not train."""
    limit_used_s: float = 0.0
    """What it used of its time limit before that."""
    notice_s: float = 30.0
    """How long a checkpoint may take before its learners are ended, when it leaves."""
    search: Search = field(default_factory=Search)
    """How fast it was at each size."""
    schedule_done: int = 0
    """Entries of its schedule that were followed."""
    is_told: bool = False
    """Why it waits was told in its story, since it last came to the queue."""
    said: Said | None = None
    """When it was first expected to start, since it last came to the queue."""

    @property
    def name(self) -> str:
        """The name without the number."""
        return self.spec.name

    @property
    def starts_over(self) -> bool:
        """It trains, and halted now it would begin anew when resumed: it has no checkpoint, and can write none."""
        return self.state is State.PROCESSING and self.is_plain and self.checkpoint_step is None

    @property
    def needs_decision(self) -> bool:
        """It was halted since this version cannot read its checkpoints: its owner decides how it goes on."""
        return self.intent is Intent.HALT and self.failure is not None and halts(self.failure)

    @property
    def waits(self) -> bool:
        """It is in the queue."""
        return self.state is State.QUEUED and self.intent is Intent.RUN

    @property
    def gang(self) -> tuple[Member, ...]:
        """The members of the newest decided generation, in rank order."""
        if not self.members:
            return ()
        return tuple(sorted((m for m in self.members if m.generation == self.generation), key=lambda m: m.rank))

    @property
    def held(self) -> int:
        """How many learners the job holds: while its size changes, those of before."""
        return self.resize.before if self.resize else len(self.gang)


def is_settled(job: Job) -> bool:
    """One transition at a time: only a job that trains, and of which nothing else is asked, changes its size."""
    return (
        job.state is State.PROCESSING
        and job.intent is Intent.RUN
        and job.goal is Goal.RUN
        and job.resize is None
        and job.live_generation == job.generation
        and all(m.state is not MemberState.DOWN for m in job.members)
    )
