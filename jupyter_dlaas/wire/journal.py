"""Protocol between engine and guardian: a document down, an append-only journal up. Standard library only.

Down: `Wanted`, an absolute state with a rising `revision`. The guardian carries it out; receiving the same one twice
has no further effect. Up: one `Fact` per line of the job's `journal.jsonl`, numbered from 0 without gaps. The engine
owns the wanted state, the guardian the history; neither writes the other's file.
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
"""Format of the journals that this version writes. It reads this format and all earlier ones."""
SPEC_FORMAT: Final = 1
"""Format of the `spec.json` that this version writes. It reads this format and all earlier ones."""
_BEGIN: Final = b'{"n":'
"""Prefix of each line that a guardian writes to a journal."""
_RETRIED: Final = frozenset({Cause.PLATFORM, Cause.HARDWARE, Cause.EVICTED, Cause.HANG, Cause.UNKNOWN})
"""Causes of failures that a retry may overcome."""
_TOO_NEW: Final = "checkpoint_too_new"
_ALIKE: Final = frozenset(
    {_TOO_NEW, "checkpoints_damaged", "gpu_driver", "illegal_instruction", "native_library", "no_program", "vanished"}
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
    """Kind of a recorded event."""

    GUARDIAN_UP = "guardian_up"
    """A guardian holds the job: pid, start, boot, journal `format`; `took_over`: it adopted another one's learners."""
    SEEN = "seen"
    """The guardian read the wanted document of this `revision`."""
    LEARNER_UP = "learner_up"
    """The process of `member` exists."""
    LEARNER_READY = "learner_ready"
    """`member` reached user code (its prelude or main block runs)."""
    LEARNER_DOWN = "learner_down"
    """`member` ended, so its devices are free. `code` or `signal`; `failure` unless it was asked to leave."""
    GENERATION = "generation"
    """All of `generation` are ready and train together from `step`; `idle_s` is the time since the previous step."""
    BEGUN = "begun"
    """A resumable training loop began in `generation`, which was recorded as `plain` before."""
    REGROUPED = "regrouped"
    """`generation` lost learners while it trained and continues as `members` from `step`; `failure` is the reason."""
    AWAITED = "awaited"
    """The others wait for `member`, which is busy at `why`, a place in the user's code; without `member`: no longer."""
    SLOW = "slow"
    """`member` is a straggler: it works at `rate` of the median speed and delays the others; without `member`: none."""
    PROFILE = "profile"
    """Communication profile of `generation`: `communication` is the share of a step that is spent waiting for
    all-reduces, `skew` the largest tensor's share of all exchanged bytes."""
    CHECKPOINT = "checkpoint"
    """A complete checkpoint of `step` is on disk; `asked` is the last request that it answers."""
    COMMITTED = "committed"
    """`generation` trained steps [first_step, step) of the job in `epoch`; consistency checks count samples by it."""
    PACE = "pace"
    """`learners` trained `rate` samples per second over `steps` steps (robust mean of their times, with relative
    `spread`); `left_s` is the remaining time at this pace."""
    ASKED = "asked"
    """The program requested `learners` at `step`."""
    ALONE = "alone"
    """Several learners of this program would share nothing; `why` is a sentence that says what to do.

    With `learners`, the program can continue at that size only.
    """
    REPORT = "report"
    """Training reports a `note` for the job's owner."""
    LOST = "lost"
    """`generation` broke because of `failure`, and none of its learners is left. The engine decides what follows."""
    STORING = "storing"
    """User code ended; results are being written."""
    HALTED = "halted"
    """All learners left at `step`; `has_checkpoint` says whether the job can resume."""
    COMPLETED = "completed"
    """The program finished; the values named in `results` can be loaded."""
    DAMAGED = "damaged"
    """Placeholder for a journal line that cannot be read. No guardian writes it. `why` says where the line is."""
    CLOSED = "closed"
    """Final fact of the guardian: no process of this job is left. `why`: halted, completed or stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of the journal. Only the fields that the kind's description names are set."""

    n: int
    at_s: float
    kind: FactKind
    up_s: float | None = None
    """Uptime of the guardian's machine: together with the boot id, a time that setting the clock does not change."""
    generation: int | None = None
    member: int | None = None
    rank: int | None = None
    revision: int | None = None
    pid: int | None = None
    start: int | None = None
    """Start time of the process in clock ticks after boot: together with `pid` and `boot` it identifies a process."""
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
    """Number of the checkpoint request that is answered, as counted by `Wanted.checkpoints`."""
    members: tuple[int, ...] | None = None
    """Members that train together, in rank order."""
    live: bool | None = None
    """True if the gang can change while it trains."""
    plain: bool | None = None
    """True if the program trains without this package's run(): a replacement would begin from the start."""
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
    """Return the fact as one JSON line with a newline. Fields that are not set are left out."""
    body: dict[str, Json] = {k: clean(v) for k, v in encode(fact).items() if v is not None}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def fact_from_line(line: bytes) -> Fact:
    """Return the fact of one whole line. Raise ValueError (damaged line) or Invalid (not a fact)."""
    return decode(Fact, json.loads(line), unknown="ignore")


def find_fact(line: bytes) -> Fact | None:
    """Return the fact of one line, even if it follows the remains of another one; None if there is none."""
    while line:
        with suppress(ValueError, RecursionError, Invalid):
            return fact_from_line(line)
        start = line.find(_BEGIN, 1)
        line = line[start:] if start > 0 else b""
    return None
