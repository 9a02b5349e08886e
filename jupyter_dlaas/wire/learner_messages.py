"""Messages between a guardian and the learners of its job: one record per kind, one JSON line per message.

The guardian orders (`GuardianMessage`), the learner reports (`LearnerMessage`). Standard library only.

Forward compatibility: a guardian may supervise learners that an earlier or later version started. A field that the
reader does not know is ignored, and a field that holds its default is left out. A new field therefore needs a default.
A message of an unknown kind is skipped with a log line. A known message with a missing or badly typed field is an
error. The names on the wire never change; where they differ from the attribute, `wire` gives them.
"""

from __future__ import annotations

import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from jupyter_dlaas.wire.codec import Invalid, Json, clean, decode, encode, kind_and_fields
from jupyter_dlaas.wire.protocol import Failure, Where
from jupyter_dlaas.wire.step_range import Range

__all__ = [
    "GUARDIAN_MESSAGES",
    "LEARNER_MESSAGES",
    "BuildGroup",
    "ChangeAgreement",
    "CheckpointRequest",
    "CheckpointWritten",
    "Dismiss",
    "FailureReport",
    "GenerationSteps",
    "GuardianMessage",
    "Heartbeat",
    "Independence",
    "JobZygoteReady",
    "LearnerMessage",
    "LearnerState",
    "ProposeChange",
    "ProposeStop",
    "Release",
    "ReportedNote",
    "SizeRequest",
    "StepTimes",
    "StopAgreement",
    "StopAt",
    "SwitchGroup",
    "Throughput",
    "guardian_message",
    "learner_message",
    "learner_messages",
    "prepare_messages",
    "to_line",
]

T = TypeVar("T")
_KIND: Final = "t"
"""Name of the field that holds the kind of a message."""


def wire(name: str) -> dict[str, str]:
    """Return the metadata of a field whose name on the wire is not its attribute's."""
    return {"wire": name}


# -- from the guardian -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeStop:
    """Request to pass no further step boundary, because the gang stops. Answered by `StopAgreement`."""

    KIND: ClassVar = "propose"
    proposal: int = field(metadata=wire("n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeChange:
    """Request to pass no further boundary before the switch to this epoch. Answered by `ChangeAgreement`."""

    KIND: ClassVar = "propose"
    membership_epoch: int = field(metadata=wire("round"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAt:
    """Order to write a checkpoint and leave at a step boundary on which all learners agreed."""

    KIND: ClassVar = "commit"
    proposal: int = field(metadata=wire("n"))
    boundary: int = field(metadata=wire("at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildGroup:
    """Order to build the process group of this membership epoch beside the one in use."""

    KIND: ClassVar = "build"
    membership_epoch: int = field(metadata=wire("round"))
    members: tuple[int, ...]
    """Members in rank order."""
    host: str
    port: int
    """Host and port of the rendezvous store; empty and 0 for a group of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchGroup:
    """Order to train in the group of this epoch from `boundary` on; None: now, because the group in use is lost."""

    KIND: ClassVar = "switch"
    membership_epoch: int = field(metadata=wire("round"))
    members: tuple[int, ...]
    generation: int
    boundary: int | None = field(default=None, metadata=wire("at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Permission to leave: all members of this epoch are in their group and have the state."""

    KIND: ClassVar = "go"
    membership_epoch: int = field(metadata=wire("round"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """Request for a checkpoint that begins after it. Numbers rise by one per request."""

    KIND: ClassVar = "checkpoint"
    number: int = field(metadata=wire("n"))


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Order to leave, sent to a process that is not a member of the job."""

    KIND: ClassVar = "leave"


GuardianMessage = (
    ProposeStop | ProposeChange | StopAt | BuildGroup | SwitchGroup | Release | CheckpointRequest | Dismiss
)


# -- from a learner ----------------------------------------------------------------------------------------------------


class SizeRequest(NamedTuple):
    """Request of the program (`run.request_gpus`) for another number of learners."""

    learners: int
    step: int


class Independence(NamedTuple):
    """Finding that learners of this program share no work, or (with `learners`) cannot continue at another size."""

    reason: str
    """Sentence for the job's owner that says what to do."""
    learners: int | None


class ReportedNote(NamedTuple):
    """Note for the job's card."""

    code: str
    text: str


class GenerationSteps(NamedTuple):
    """Steps that a completed generation trained."""

    generation: int
    ranges: tuple[Range, ...]


@dataclass(slots=True, kw_only=True)
class LearnerState:
    """State of a learner: sent after each connection and each change, complete, so that no event can be lost.

    The learner updates its own record in place; each line is a copy.
    """

    KIND: ClassVar = "hello"
    member: int
    uses_run: bool = False
    """True if the program called `run()` or a framework's loop began: it then stops at step boundaries."""
    is_storing: bool = field(default=False, metadata=wire("storing"))
    """True if user code ended and results are being written."""
    step: int | None = None
    """Step at which its training loop began, or at which it entered its current group."""
    up_s: float | None = None
    """Uptime of its machine when it did, in seconds."""
    is_limited: bool = False
    """True if it agreed to a stop, and waits at its next step boundary."""
    may_change: bool = False
    """True if it can change to other process groups while it trains."""
    membership_epoch: int | None = field(default=None, metadata=wire("round"))
    """Membership epoch of its current group; -1: it joins, and is in no group yet."""
    generation: int | None = None
    built_epoch: int | None = field(default=None, metadata=wire("built"))
    """Newest membership epoch whose group it has built."""
    stranded_epoch: int | None = field(default=None, metadata=wire("stranded"))
    """Membership epoch of its group, if that group no longer answers."""
    missed_epoch: int | None = field(default=None, metadata=wire("missed"))
    """Newest membership epoch whose group it could not build or enter."""
    is_waiting: bool = False
    """True if it joins, has rehearsed, and waits for the switch."""
    is_held: bool = False
    """True if it agreed to pass no boundary before the switch."""
    idle_s: float | None = None
    """Seconds without a step in its last membership change."""
    trained: tuple[GenerationSteps, ...] = ()
    size_request: SizeRequest | None = field(default=None, metadata=wire("asks"))
    independence: Independence | None = field(default=None, metadata=wire("alone"))
    notes: tuple[ReportedNote, ...] = field(default=(), metadata=wire("reports"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Progress of a learner, twice a second while a training loop runs or the job has a hang limit."""

    KIND: ClassVar = "beat"
    step: int | None = None
    """Number of step boundaries passed; None if no loop runs."""
    is_moving: bool = field(default=False, metadata=wire("moves"))
    """True if the main thread made progress since the last heartbeat."""
    collectives_started: int = field(default=0, metadata=wire("talks"))
    """Number of collectives started in the current group: learners ahead wait for those behind."""
    awaits_guardian: bool = field(default=False, metadata=wire("waits"))
    """True if the main thread waits for a decision of the guardian."""
    place: str = field(default="", metadata=wire("at"))
    """Place in the user's program, if no step was made for a second."""
    where: Where | None = None
    """Same place with its source lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Training speed of the gang, measured by rank 0 over a window of steps."""

    KIND: ClassVar = "pace"
    learners: int
    steps: int
    rate: float
    """Samples per second."""
    spread: float
    """Relative spread of single steps."""
    left_s: float | None = None
    """Remaining time at this speed, if the number of steps is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Moving means of this learner's step times, once a second."""

    KIND: ClassVar = "work"
    compute_s: float = field(metadata=wire("s"))
    """Seconds from the start of a step until its gradients are computed."""
    wait_s: float
    """Seconds from then until they are averaged."""
    step_s: float
    steps: int
    """Number of steps in the means."""
    skew: float | None = None
    """Share of the largest tensor in all gradient bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAgreement:
    """Answer to `ProposeChange`: the learner passes no further boundary before the switch."""

    KIND: ClassVar = "agrees"
    membership_epoch: int = field(metadata=wire("round"))
    boundaries_passed: int = field(metadata=wire("tick"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAgreement:
    """Answer to `ProposeStop`: the learner passes no further boundary without a `StopAt`."""

    KIND: ClassVar = "promise"
    proposal: int = field(metadata=wire("n"))
    boundaries_passed: int | None = field(default=None, metadata=wire("tick"))
    """None if its training loop has not begun: it will reach every boundary."""
    committed_boundary: int | None = field(default=None, metadata=wire("told"))
    """Boundary to stop at, if an earlier guardian ordered one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """Notice that a checkpoint is on disk; its manifest is authoritative."""

    KIND: ClassVar = "checkpoint"
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """Failure of the program, sent only if the disk is too full for result.json."""

    KIND: ClassVar = "failed"
    failure: Failure


@dataclass(frozen=True, slots=True)
class JobZygoteReady:
    """Introduction of the job zygote, whose connection then uses another protocol."""

    KIND: ClassVar = "nursery"


LearnerMessage = (
    LearnerState
    | Heartbeat
    | Throughput
    | StepTimes
    | ChangeAgreement
    | StopAgreement
    | CheckpointWritten
    | FailureReport
    | JobZygoteReady
)
GUARDIAN_MESSAGES: Final[tuple[type[GuardianMessage], ...]] = typing.get_args(GuardianMessage)
LEARNER_MESSAGES: Final[tuple[type[LearnerMessage], ...]] = typing.get_args(LearnerMessage)


# -- encoding ----------------------------------------------------------------------------------------------------------

_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes a new encoder for each call
_RECORDS: Final = (Failure, Where, GenerationSteps)


def to_line(message: GuardianMessage | LearnerMessage) -> bytes:
    """Return a message as one JSON line. Fields that hold their default are left out."""
    kind: Any = type(message)
    body: dict[str, Json] = {_KIND: kind.KIND}
    values, keys = _encoding(kind)
    for value, (key, default, is_plain) in zip(values(message), keys, strict=True):
        if value is not default and value != default:
            body[key] = value if is_plain else _plain(value)
    return _to_json(body).encode() + b"\n"


def _plain(value: object) -> Any:
    """Return a value as JSON. Named tuples become lists, which costs no field names."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return encode(value) if is_dataclass(value) else value


@functools.cache
def _encoding(kind: type[Any]) -> tuple[Callable[[object], Iterable[Any]], tuple[tuple[str, object, bool], ...]]:
    """Return a function to all values of a record, and (name on the wire, default, is JSON as it is) for each."""
    hints, declared = typing.get_type_hints(kind), fields(kind)
    keys = tuple(
        (f.metadata.get("wire", f.name), f.default, not any(_mentions(hints[f.name], record) for record in _RECORDS))
        for f in declared
    )
    names = [f.name for f in declared]
    if len(names) > 1:
        return operator.attrgetter(*names), keys
    return (lambda message: [getattr(message, name) for name in names]), keys


def _mentions(hint: Any, record: type) -> bool:
    return hint is record or any(_mentions(part, record) for part in typing.get_args(hint))


# -- decoding ----------------------------------------------------------------------------------------------------------

_Check = Callable[[object, str], object]
"""Function that returns a checked value of a field, given its path. Raises Invalid."""


def guardian_message(line: bytes) -> GuardianMessage:
    """Return the guardian's message of one line. Raise UnknownKind or Invalid."""
    return typing.cast(GuardianMessage, _decode(line, _guardian_kinds()))


def learner_message(line: bytes) -> LearnerMessage:
    """Return the learner's message of one line. Raise UnknownKind or Invalid."""
    return typing.cast(LearnerMessage, _decode(line, _learner_kinds()))


def learner_messages(lines: Iterable[bytes], log: Callable[[str], object]) -> list[LearnerMessage]:
    """Return the messages of these lines. Skip and log those that cannot be read: a peer must not stop the guardian."""
    messages = []
    for line in lines:
        try:
            messages.append(learner_message(line))
        except Invalid as error:
            log(f"message skipped: {error}")
    return messages


def prepare_messages() -> None:
    """Read the annotations of all messages now instead of when the first of them is sent or received."""
    kinds: tuple[Any, ...] = (*GUARDIAN_MESSAGES, *LEARNER_MESSAGES)
    for kind in kinds:
        _encoding(kind)
        _decoding(kind)


def _decode(line: bytes, kinds: Mapping[str, tuple[type, ...]]) -> object:
    found, body = kind_and_fields(line, kinds, tag=_KIND, where="message")
    kind = found[0]
    if len(found) > 1 and body.get("round") is not None:
        kind = found[1]
    return kind(**_values(kind, body, body[_KIND]))


def _values(kind: type, body: Mapping[str, Any], path: object) -> dict[str, object]:
    """Return the checked fields of a record."""
    values = {}
    for name, key, check, is_required in _decoding(kind):
        if key in body:
            values[name] = check(body[key], key)
        elif is_required:
            raise Invalid(f"{path}.{key}: is missing")
    return values


@functools.cache
def _guardian_kinds() -> dict[str, tuple[type, ...]]:
    """Return tag -> record. Both proposals have one tag: the one that names a membership epoch comes second."""
    kinds: dict[str, tuple[type, ...]] = {}
    for kind in GUARDIAN_MESSAGES:
        kinds[kind.KIND] = (*kinds.get(kind.KIND, ()), kind)
    return kinds


@functools.cache
def _learner_kinds() -> dict[str, tuple[type, ...]]:
    return {kind.KIND: (kind,) for kind in LEARNER_MESSAGES}


@functools.cache
def _decoding(kind: type[Any]) -> tuple[tuple[str, str, _Check, bool], ...]:
    """Return (attribute, name on the wire, check, whether it is required) for each field."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (f.name, f.metadata.get("wire", f.name), _check(hints[f.name]), f.default is MISSING) for f in fields(kind)
    )


@functools.cache
def _check(hint: Any) -> _Check:
    """Return the check for an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = _check(next(part for part in args if part is not type(None)))
        return lambda value, path: None if value is None else inner(value, path)
    if origin is tuple:
        element = _check(args[0])
        return lambda value, path: tuple(element(part, path) for part in _list(value, path))
    if hint is Failure or hint is Where:  # texts of the user's program, which need cleaning
        return lambda value, path: decode(typing.cast(type[Any], hint), clean(value), where=path, unknown="ignore")
    if is_dataclass(hint):
        record: Any = hint
        return lambda value, path: record(**_values(record, _object(value, path), path))
    if hint is float:
        return _float
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _named_tuple(hint)
    return _exactly(hint)


def _float(value: object, path: str) -> object:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise Invalid(f"{path}: must be a number, not {value!r:.60}")


def _exactly(kind: type) -> _Check:
    name = {int: "a whole number", bool: "true or false", str: "text"}[kind]

    def check(value: object, path: str) -> object:
        if type(value) is not kind:
            raise Invalid(f"{path}: must be {name}, not {value!r:.60}")
        return value

    return check


def _named_tuple(kind: type[Any]) -> _Check:
    checks = [_check(hint) for hint in typing.get_type_hints(kind).values()]

    def check(value: object, path: str) -> object:
        parts = _list(value, path)
        if len(parts) < len(checks):
            raise Invalid(f"{path}: must have {len(checks)} parts, not {len(parts)}")
        return kind(*(part(found, path) for part, found in zip(checks, parts, strict=False)))

    return check


def _object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{path}: must be an object, not {value!r:.60}")
    return value


def _list(value: object, path: str) -> list[object]:
    if not isinstance(value, list):
        raise Invalid(f"{path}: must be a list, not {value!r:.60}")
    return value
