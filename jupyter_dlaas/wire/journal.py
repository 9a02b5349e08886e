"""What engine and guardian tell each other: one document down, an append-only journal up. Standard library only.

Down: `Wanted`, absolute and rising in `revision`; the guardian makes it so and may be handed the same twice.
Up: one `Fact` per line of the job's `journal.jsonl`, numbered from 0 without holes. The engine owns what should be, the
guardian what happened; neither writes the other's file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jupyter_dlaas.wire.codec import Invalid, Json, clean, decode, encode
from jupyter_dlaas.wire.protocol import Cause, Failure, Note

__all__ = [
    "JOURNAL_FORMAT",
    "SPEC_FORMAT",
    "Fact",
    "FactKind",
    "Goal",
    "MemberWanted",
    "Wanted",
    "fact_from_line",
    "fact_to_line",
    "find_fact",
    "halts",
    "is_retried",
]

JOURNAL_FORMAT: Final = 1
"""Format of the journals that this version writes; it reads this one and all earlier ones."""
SPEC_FORMAT: Final = 1
"""Format of the `spec.json` that this version writes; it reads this one and all earlier ones."""
_BEGIN: Final = b'{"n":'
"""Beginning of each line that a guardian writes into a journal."""
_RETRIED: Final = frozenset({Cause.PLATFORM, Cause.HARDWARE, Cause.EVICTED, Cause.HANG, Cause.UNKNOWN})
"""Causes of failures that a retry may overcome."""
_TOO_NEW: Final = "checkpoint_too_new"
_ALIKE: Final = frozenset(
    {_TOO_NEW, "checkpoints_damaged", "gpu_driver", "illegal_instruction", "native_library", "vanished"}
)
"""Failures that the same program meets again on the same machine, though they are not its fault."""


def is_retried(failure: Failure) -> bool:
    """Return whether a retry may help."""
    return failure.cause in _RETRIED and failure.code not in _ALIKE


def halts(failure: Failure) -> bool:
    """Return whether the job is halted: it can go on once its owner has updated the package."""
    return failure.code == _TOO_NEW


class Goal(StrEnum):
    """What the engine wants of a job now."""

    RUN = "run"
    HALT = "halt"
    """Checkpoint at a step boundary, learners leave, the guardian closes."""
    STOP = "stop"
    """End everything now (SIGTERM, grace, SIGKILL to all that is left), the guardian closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWanted:
    """One learner that should exist: its number (never reused), its node, its devices."""

    member: int
    node: str
    devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """What makes the devices visible (CUDA_VISIBLE_DEVICES …), how many threads to use; filled in by the adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What should be. `members` are in rank order and make up `generation`.

    A rising generation with other members is a change of size (or a restart after a loss). Where the gang can change
    while it trains, members that are in both go on; where it cannot, the guardian brings all to a checkpoint and out,
    then starts these.
    """

    revision: int
    goal: Goal
    generation: int
    members: tuple[MemberWanted, ...] = ()
    grace_s: float = 30.0
    """How long a checkpoint may take before the learners are killed."""
    checkpoints: int = 0
    """How often one was asked for: another one is taken whenever this has risen."""
    facts_read: int = 0
    """Number of facts that the engine has read; lower numbers are not reused, even where the journal is lost."""


class FactKind(StrEnum):
    """What can have happened."""

    GUARDIAN_UP = "guardian_up"
    """A guardian holds the job: pid, start, boot, the journal's `format`; `took_over`: it found learners of another."""
    SEEN = "seen"
    """The guardian read the wanted document of this `revision`."""
    LEARNER_UP = "learner_up"
    """The process of `member` exists."""
    LEARNER_READY = "learner_ready"
    """`member` reached user code (its prelude or main block runs)."""
    LEARNER_DOWN = "learner_down"
    """`member` is gone: its devices are free. `code` or `signal`; `failure` where it was not asked to leave."""
    GENERATION = "generation"
    """All of `generation` are ready and train together from `step`; `idle_s` since the last step before."""
    BEGUN = "begun"
    """In `generation`, which had seemed `plain`, a loop has begun after all that can be left and gone on with."""
    REGROUPED = "regrouped"
    """`generation` lost learners while it trained and goes on as `members` from `step`; `failure` says why."""
    AWAITED = "awaited"
    """The others wait for `member`, which is busy at `why`, a place in the user's words; no member: no longer."""
    SLOW = "slow"
    """`member` does its part of a step at `rate` of the others' speed (the median's), and holds them up; no member: no
    longer."""
    PROFILE = "profile"
    """Of a step of `generation`, the part `communication` is spent waiting for the others' sums; `skew`: of all bytes
    that are exchanged, the largest tensor's."""
    CHECKPOINT = "checkpoint"
    """A checkpoint of `step` is on disk, whole; `asked`: the last request that it answers."""
    COMMITTED = "committed"
    """`generation` trained steps [first_step, step) of the job, in `epoch`; what a checker counts samples with."""
    PACE = "pace"
    """`learners` trained `rate` samples per second over `steps` steps (the middle of their times, their relative
    `spread`); `left_s` until it is through at this pace."""
    ASKED = "asked"
    """The program asked for `learners`, at `step`."""
    ALONE = "alone"
    """Several learners of this program would share nothing; `why`: a sentence, which says what to do. With `learners`:

    it cannot go on at another size than that."""
    REPORT = "report"
    """Training found what its owner must know: `note`."""
    LOST = "lost"
    """`generation` broke: `failure` says why; no learner of it is left. The engine decides what next."""
    STORING = "storing"
    """User code ended; results are being written."""
    HALTED = "halted"
    """All learners left at `step`; `has_checkpoint` tells whether it can go on there."""
    COMPLETED = "completed"
    """All learners ended well; `results` can be loaded."""
    DAMAGED = "damaged"
    """Stands for a line of the journal that cannot be read; no guardian writes it. `why`: where the line is."""
    CLOSED = "closed"
    """The guardian's last word: no process of this job is left. `why`: halted, completed, stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of the journal. Only the fields that the kind's comment names are set."""

    n: int
    at_s: float
    kind: FactKind
    up_s: float | None = None
    """Uptime of the guardian's machine: with the boot id, a time that does not change when a clock is set."""
    generation: int | None = None
    member: int | None = None
    rank: int | None = None
    revision: int | None = None
    pid: int | None = None
    start: int | None = None
    """Start time of the process in clock ticks after boot: with `pid` and `boot` it names a process for ever."""
    boot: str | None = None
    took_over: bool | None = None
    format: int | None = None
    code: int | None = None
    signal: int | None = None
    failure: Failure | None = None
    step: int | None = None
    first_step: int | None = None
    epoch: int | None = None
    idle_s: float | None = None
    seconds: float | None = None
    bytes: int | None = None
    has_checkpoint: bool | None = None
    asked: int | None = None
    """Of so many requests for a checkpoint, as `Wanted.checkpoints` counts them."""
    members: tuple[int, ...] | None = None
    """Who trains together, in rank order."""
    live: bool | None = None
    """The gang can change while it trains."""
    plain: bool | None = None
    """It trains as programs do that know nothing of us: who takes its place would begin anew."""
    learners: int | None = None
    steps: int | None = None
    rate: float | None = None
    spread: float | None = None
    left_s: float | None = None
    communication: float | None = None
    skew: float | None = None
    results: tuple[str, ...] | None = None
    why: str | None = None
    note: Note | None = None


def fact_to_line(fact: Fact) -> bytes:
    """One JSON line, ending in a newline; fields that are not set are left out."""
    body: dict[str, Json] = {k: clean(v) for k, v in encode(fact).items() if v is not None}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def fact_from_line(line: bytes) -> Fact:
    """The fact of one whole line. Raises ValueError (damaged line) or Invalid (not a fact)."""
    return decode(Fact, json.loads(line), unknown="ignore")


def find_fact(line: bytes) -> Fact | None:
    """The fact of one line, also behind the remains of another one; None where there is none."""
    while line:
        with suppress(ValueError, RecursionError, Invalid):
            return fact_from_line(line)
        start = line.find(_BEGIN, 1)
        line = line[start:] if start > 0 else b""
    return None
