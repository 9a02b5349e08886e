"""Protocol between engine and guardian: a document down, an append-only journal up. Standard library only.

Down: `Wanted`, an absolute state with a rising `revision`. The guardian carries it out; receiving the same one twice
has no further effect. Up: one `Fact` per line of the job's `journal.jsonl`, numbered from 0 without gaps. `Fact` is a
union: each kind is a record with its own fields, and `kind` on the line says which. A field that is None is left out,
and a reader ignores fields that it does not know. The engine owns the wanted state, the guardian the history; neither
writes the other's file.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final

from jupyter_dlaas.wire.codec import Invalid, Json, clean, decode, encode
from jupyter_dlaas.wire.protocol import Cause, Failure, Note

__all__ = [
    "FACT_TYPES",
    "JOURNAL_FORMAT",
    "SPEC_FORMAT",
    "CheckpointSaved",
    "CommunicationProfiled",
    "Fact",
    "FactKind",
    "GenerationLost",
    "GenerationStarted",
    "Goal",
    "GuardianUp",
    "IndependenceFound",
    "JobClosed",
    "JobCompleted",
    "JobHalted",
    "LearnerAwaited",
    "LearnerDown",
    "LearnerReady",
    "LearnerUp",
    "LearnersLost",
    "LineDamaged",
    "LoopBegun",
    "MemberWanted",
    "NoteReported",
    "ResultsStoring",
    "SeatRefused",
    "SizeRequested",
    "StepsCommitted",
    "StragglerFound",
    "ThroughputMeasured",
    "Wanted",
    "WantedSeen",
    "fact_from_fields",
    "fact_from_line",
    "fact_to_fields",
    "fact_to_line",
    "find_fact",
    "halts",
    "is_retried",
]

JOURNAL_FORMAT: Final = 1
"""Format of the journals that this version writes. It reads this format and all earlier ones."""
SPEC_FORMAT: Final = 1
"""Format of the `spec.json` that this version writes. It reads this format and all earlier ones."""
_BEGIN: Final = b'{"n":'
"""Prefix of each line that a guardian writes to a journal."""
_RETRIED: Final = frozenset({Cause.PLATFORM, Cause.HARDWARE, Cause.EVICTED, Cause.HANG, Cause.UNKNOWN})
"""Causes of failures that a retry may overcome."""
_TOO_NEW: Final = "checkpoint_too_new"
_ALIKE: Final = frozenset(
    {
        *(_TOO_NEW, "checkpoints_damaged", "gpu_driver", "illegal_instruction", "native_library", "no_program"),
        *("image_without_python", "vanished", "wrong_python"),
    }
)
"""Codes of failures that recur for the same program on the same machine, although they are not the program's fault."""


def is_retried(failure: Failure) -> bool:
    """Return whether a retry may help."""
    return failure.cause in _RETRIED and failure.code not in _ALIKE


def halts(failure: Failure) -> bool:
    """Return whether the failure halts the job: it can continue once its owner has updated the package."""
    return failure.code == _TOO_NEW


class Goal(StrEnum):
    """Goal that the engine sets for a job."""

    RUN = "run"
    HALT = "halt"
    """The learners write a checkpoint at a step boundary and exit; the guardian closes the job."""
    STOP = "stop"
    """All processes end now (SIGTERM, grace period, SIGKILL); the guardian closes the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWanted:
    """Wanted learner: its number (never reused), its node and its devices."""

    member: int
    node: str
    devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that make the devices visible (CUDA_VISIBLE_DEVICES …) and limit the number of threads.

    The pool adapter sets them.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Wanted state of a job. `members` are in rank order and form `generation`.

    A higher generation with other members is a change of size, or a restart after a loss. If the gang can change while
    it trains, members of both generations continue. Otherwise the guardian lets all learners write a checkpoint and
    exit, and then starts the new members.
    """

    revision: int
    goal: Goal
    generation: int
    members: tuple[MemberWanted, ...] = ()
    grace_s: float = 30.0
    """Seconds that a checkpoint may take before the learners are killed."""
    checkpoints: int = 0
    """Number of checkpoint requests so far: the job writes another checkpoint whenever it has risen."""
    facts_read: int = 0
    """Number of facts that the engine has read. Lower numbers are not reused, even if the journal is lost."""


class FactKind(StrEnum):
    """Kind of a recorded event: the value of `kind` on its line."""

    GUARDIAN_UP = "guardian_up"
    SEEN = "seen"
    LEARNER_UP = "learner_up"
    LEARNER_READY = "learner_ready"
    LEARNER_DOWN = "learner_down"
    GENERATION = "generation"
    BEGUN = "begun"
    REGROUPED = "regrouped"
    AWAITED = "awaited"
    SLOW = "slow"
    PROFILE = "profile"
    CHECKPOINT = "checkpoint"
    COMMITTED = "committed"
    PACE = "pace"
    ASKED = "asked"
    ALONE = "alone"
    REPORT = "report"
    LOST = "lost"
    SEAT_REFUSED = "seat_refused"
    STORING = "storing"
    HALTED = "halted"
    COMPLETED = "completed"
    DAMAGED = "damaged"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Fields of every line. The journal sets them when it writes a fact."""

    n: int = -1
    """Number of the fact."""
    at_s: float = 0.0
    """Time of day."""
    up_s: float | None = None
    """Uptime of the guardian's machine: together with the boot id, a time that setting the clock does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardianUp(_Line):
    """A guardian holds the job."""

    kind: ClassVar = FactKind.GUARDIAN_UP
    pid: int | None = None
    start: int | None = None
    """Start time of the process in clock ticks after boot: together with `pid` and `boot` it identifies a process."""
    boot: str | None = None
    took_over: bool | None = None
    """True if it adopted the learners of an earlier guardian."""
    format: int | None = None
    """Format of the journal from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSeen(_Line):
    """The guardian read the wanted document of this revision."""

    kind: ClassVar = FactKind.SEEN
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerUp(_Line):
    """The process of a member exists."""

    kind: ClassVar = FactKind.LEARNER_UP
    generation: int | None = None
    member: int
    rank: int | None = None
    pid: int | None = None
    start: int | None = None
    boot: str | None = None
    node: str | None = None
    """Machine on which it runs, if the pool names machines."""
    pod: str | None = None
    """Pod in which it runs, if it runs in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerReady(_Line):
    """A member reached user code (its prelude or main block runs)."""

    kind: ClassVar = FactKind.LEARNER_READY
    generation: int | None = None
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerDown(_Line):
    """A member ended, so its devices are free."""

    kind: ClassVar = FactKind.LEARNER_DOWN
    generation: int | None = None
    member: int
    code: int | None = None
    signal: int | None = None
    failure: Failure | None = None
    """Failure, unless it was asked to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStarted(_Line):
    """All members of a generation are ready and train together."""

    kind: ClassVar = FactKind.GENERATION
    generation: int | None = None
    failure: Failure | None = None
    """Failure of the learners that were lost in the change."""
    step: int | None = None
    """The step at which it begins; None if it continues with the members of the former one, as none joined."""
    idle_s: float | None = None
    """Seconds since the previous step."""
    members: tuple[int, ...] | None = None
    """Members in rank order, if the gang changed while it trained."""
    live: bool | None = None
    """True if the gang can change while it trains."""
    plain: bool | None = None
    """True if the program trains without this package's run(): a replacement would begin from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBegun(_Line):
    """A resumable training loop began in a generation that was recorded as `plain` before."""

    kind: ClassVar = FactKind.BEGUN
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnersLost(_Line):
    """A generation lost learners while it trained, and continues as `members` from `step`."""

    kind: ClassVar = FactKind.REGROUPED
    generation: int | None = None
    failure: Failure | None = None
    step: int | None = None
    idle_s: float | None = None
    members: tuple[int, ...] | None = None
    live: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerAwaited(_Line):
    """The others wait for a member, which is busy at `why`, a place in the user's code; without one: no longer."""

    kind: ClassVar = FactKind.AWAITED
    member: int | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerFound(_Line):
    """A member works at `rate` of the median speed and delays the others; without a member: none does any more."""

    kind: ClassVar = FactKind.SLOW
    member: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationProfiled(_Line):
    """Communication cost of a generation."""

    kind: ClassVar = FactKind.PROFILE
    generation: int | None = None
    communication: float | None = None
    """Share of a step that is spent waiting for all-reduces."""
    skew: float | None = None
    """Share of the largest tensor in all exchanged bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(_Line):
    """A complete checkpoint is on disk."""

    kind: ClassVar = FactKind.CHECKPOINT
    generation: int | None = None
    step: int | None = None
    epoch: int | None = None
    seconds: float | None = None
    bytes: int | None = None
    asked: int | None = None
    """Number of the last checkpoint request that it answers, as counted by `Wanted.checkpoints`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsCommitted(_Line):
    """A generation trained steps [first_step, step) of the job; consistency checks count samples by it."""

    kind: ClassVar = FactKind.COMMITTED
    generation: int | None = None
    step: int | None = None
    first_step: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputMeasured(_Line):
    """The gang trained `rate` samples per second over `steps` steps (robust mean of their times)."""

    kind: ClassVar = FactKind.PACE
    generation: int | None = None
    learners: int | None = None
    steps: int | None = None
    rate: float | None = None
    spread: float | None = None
    """Relative spread of the step times."""
    left_s: float | None = None
    """Remaining time at this speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequested(_Line):
    """The program requested another number of learners."""

    kind: ClassVar = FactKind.ASKED
    step: int | None = None
    learners: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependenceFound(_Line):
    """Several learners of this program would share nothing."""

    kind: ClassVar = FactKind.ALONE
    learners: int | None = None
    """Only size at which the program can continue, if there is one."""
    why: str | None = None
    """Sentence that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteReported(_Line):
    """Training reports a note for the job's owner."""

    kind: ClassVar = FactKind.REPORT
    note: Note | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLost(_Line):
    """A generation broke, and none of its learners is left. The engine decides what follows."""

    kind: ClassVar = FactKind.LOST
    generation: int | None = None
    failure: Failure | None = None
    step: int | None = None
    """Step of the newest checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRefused(_Line):
    """The pool could not provide a member's seat: no process of it runs.

    A guardian writes it to the journal, or the pool reports it without a number. It does not count as a
    failure of the job.
    """

    kind: ClassVar = FactKind.SEAT_REFUSED
    generation: int
    member: int
    code: str | None = None
    """Stable code of the cause: "unschedulable", "quota", "device_gone" …"""
    what: str | None = None
    """Sentence with the name of the object: "No node fits pod ml/digits-1-m0: Insufficient nvidia.com/gpu."."""
    advice: str | None = None
    """Sentence that says what to do; None if waiting is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsStoring(_Line):
    """User code ended; results are being written."""

    kind: ClassVar = FactKind.STORING
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHalted(_Line):
    """All learners left at `step`."""

    kind: ClassVar = FactKind.HALTED
    step: int | None = None
    has_checkpoint: bool | None = None
    """True if the job can resume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(_Line):
    """The program finished; the values named in `results` can be loaded."""

    kind: ClassVar = FactKind.COMPLETED
    generation: int | None = None
    step: int | None = None
    results: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDamaged(_Line):
    """Placeholder for a journal line that cannot be read. No guardian writes it. `why` says where the line is."""

    kind: ClassVar = FactKind.DAMAGED
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClosed(_Line):
    """Final fact of a guardian: no process of this job is left. `why`: halted, completed or stopped."""

    kind: ClassVar = FactKind.CLOSED
    why: str | None = None


Fact = (
    GuardianUp
    | WantedSeen
    | LearnerUp
    | LearnerReady
    | LearnerDown
    | GenerationStarted
    | LoopBegun
    | LearnersLost
    | LearnerAwaited
    | StragglerFound
    | CommunicationProfiled
    | CheckpointSaved
    | StepsCommitted
    | ThroughputMeasured
    | SizeRequested
    | IndependenceFound
    | NoteReported
    | GenerationLost
    | SeatRefused
    | ResultsStoring
    | JobHalted
    | JobCompleted
    | LineDamaged
    | JobClosed
)
FACT_TYPES: Final[Mapping[FactKind, Any]] = {record.kind: record for record in typing.get_args(Fact)}
"""Record of each kind."""


def fact_to_fields(fact: Fact) -> dict[str, Json]:
    """Return the fact as JSON values. Fields that are None are left out."""
    body: dict[str, Json] = {"n": fact.n, "at_s": fact.at_s, "kind": fact.kind.value}
    body |= {k: clean(v) for k, v in encode(fact).items() if v is not None}
    return body


def fact_to_line(fact: Fact) -> bytes:
    """Return the fact as one JSON line with a newline."""
    return json.dumps(fact_to_fields(fact), separators=(",", ":")).encode() + b"\n"


def fact_from_fields(body: object) -> Fact:
    """Return the fact of JSON values. Raise Invalid."""
    if not isinstance(body, dict):
        raise Invalid(f"body: must be an object, not {body!r:.60}")
    for name in ("n", "at_s", "kind"):
        if name not in body:
            raise Invalid(f"{name}: is missing")
    record = FACT_TYPES[decode(FactKind, body["kind"], where="kind")]
    return typing.cast(Fact, decode(record, body, unknown="ignore"))


def fact_from_line(line: bytes) -> Fact:
    """Return the fact of one whole line. Raise ValueError (damaged line) or Invalid (not a fact)."""
    return fact_from_fields(json.loads(line))


def find_fact(line: bytes) -> Fact | None:
    """Return the fact of one line, even if it follows the remains of another one; None if there is none."""
    while line:
        with suppress(ValueError, RecursionError, Invalid):
            return fact_from_line(line)
        start = line.find(_BEGIN, 1)
        line = line[start:] if start > 0 else b""
    return None
