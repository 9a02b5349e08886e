"""Events of a job: everything that creates or changes its record, as plain values, and their replay.

The engine changes a job only by applying one of these events, and keeps each of them in the event table. The same
events applied in the same order give the same job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from dlaas_server.core.lifecycle import guardian_loss, journal_events, plan_outcomes, time_limit, user_requests
from dlaas_server.core.lifecycle.requests import (
    CancelJob,
    ChangeJob,
    HaltJob,
    JobRequest,
    RequestCheckpoint,
    ResumeJob,
)
from dlaas_server.core.lifecycle.seat_refusal import seats_refused
from dlaas_server.core.lifecycle.transition import Transition, with_text
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.states import Event
from jupyter_dlaas.wire.codec import Json, decode, encode
from jupyter_dlaas.wire.journal import Fact, Goal, SeatRefused
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = [
    "Abandoned",
    "DeliveryPostponed",
    "DirectoryLost",
    "FactRead",
    "GuardianLost",
    "JobEvent",
    "JobObserved",
    "JobSubmitted",
    "JournalRead",
    "LinesLost",
    "MachineSlept",
    "MovedFromSuspect",
    "Origin",
    "Preempted",
    "Resized",
    "ScheduleApplied",
    "SeatsRefused",
    "Snapshot",
    "StartFailed",
    "Started",
    "TimeLimitAdopted",
    "WaitRecorded",
    "apply_event",
    "job_from_fields",
    "job_to_fields",
    "original",
    "replay",
    "snapshot",
]

FORMER_NAMES: Final = {"is_told": "is_wait_recorded", "said": "start_estimate"}
"""Fields of stored jobs that earlier releases called differently."""


# -- origins ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A user submitted the job. Its spec never changes and is stored with the job."""

    kind: ClassVar = "submitted"
    by: str
    key: str
    number: int
    wish: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The job's whole record without its spec.

    It begins the replay of a recovered job, of one that an earlier release stored, and of one with very many events.
    """

    kind: ClassVar = "snapshot"
    job: Mapping[str, Json]


# -- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The plan gave the waiting job these seats."""

    kind: ClassVar = "started"
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """The plan gave the running job other seats."""

    kind: ClassVar = "resized"
    seats: tuple[Seat, ...]
    by: str
    why: str = ""
    notice_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """The plan preempted the running job."""

    kind: ClassVar = "preempted"
    reason: str
    notice_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRecorded:
    """The job got its first wait reason, or its first start estimate (seconds of time), since it was queued."""

    kind: ClassVar = "waits"
    reason: str
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleApplied:
    """The job's size schedule was applied after this epoch."""

    kind: ClassVar = "scheduled"
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFromSuspect:
    """The job returned to the queue, since it would have restarted on a suspect device or a node without seats."""

    kind: ClassVar = "moved_from_suspect"
    why: str = ""
    """The problem of its node, as in "node a is gone"; empty: a device is suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimitAdopted:
    """The time limit of a running job counts from its start, as an earlier release counted it."""

    kind: ClassVar = "time_limit_adopted"


# -- observations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRead:
    """A fact of the job's journal was read. Its time is not later than that of the row."""

    kind: ClassVar = "fact"
    fact: Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRead:
    """The journal was read up to this byte."""

    kind: ClassVar = "journal_read"
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesLost:
    """Lines of the journal are unreadable."""

    kind: ClassVar = "lines_lost"
    lines: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLost:
    """The job's directory was removed."""

    kind: ClassVar = "directory_lost"
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardianLost:
    """The job's guardian is gone; `has_exited`: it ended by itself."""

    kind: ClassVar = "guardian_lost"
    text: str
    has_exited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed:
    """No guardian could be started; `is_permanent`: another try would fail as well."""

    kind: ClassVar = "start_failed"
    text: str
    is_permanent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPostponed:
    """The pool could not be reached, so that a document is delivered later. The job does not change."""

    kind: ClassVar = "delivery_postponed"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """No process of the job is left, and no guardian closed it."""

    kind: ClassVar = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatsRefused:
    """The pool could not provide seats."""

    kind: ClassVar = "seats_refused"
    refused: tuple[SeatRefused, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSlept:
    """The machine was suspended for this time."""

    kind: ClassVar = "machine_slept"
    seconds: float


Origin = JobSubmitted | Snapshot
"""Events from which a job begins."""
Decision = Started | Resized | Preempted | WaitRecorded | ScheduleApplied | MovedFromSuspect | TimeLimitAdopted
Observation = (
    FactRead
    | JournalRead
    | LinesLost
    | DirectoryLost
    | GuardianLost
    | StartFailed
    | DeliveryPostponed
    | Abandoned
    | SeatsRefused
    | MachineSlept
)
JobEvent = JobRequest | Decision | Observation
"""Events that change a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObserved:
    """Request of the engine to apply what it observed beside its loop."""

    job: str
    event: JobEvent


# -- application ------------------------------------------------------------------------------------------------------


def apply_event(job: Job, event: JobEvent, at_s: float) -> Transition:
    """Return the changed job and the texts of the event. One without effect returns the same object and no text.

    Raises NotAllowed or Refused for a request that the job's state forbids.
    """
    return _APPLY[type(event)](job, event, at_s)


def original(spec: JobSpec, event: Origin, at_s: float) -> Job:
    """Return the job as it begins."""
    if isinstance(event, Snapshot):
        return job_from_fields(event.job, spec)
    return Job(
        id=f"{spec.name}-{event.number}",
        number=event.number,
        owner=event.by,
        spec=spec,
        submitted_s=at_s,
        wish=event.wish,
        unit=event.unit,
        priority=spec.priority,
        elastic=spec.elastic,
    )


def replay(spec: JobSpec, events: Iterable[tuple[float, Origin | JobEvent]]) -> Job | None:
    """Return the job after these events, each with its time; None if none of them is an origin.

    A later origin replaces all earlier events.
    """
    events = list(events)
    starts = [place for place, (_, event) in enumerate(events) if isinstance(event, JobSubmitted | Snapshot)]
    job: Job | None = None
    for at_s, event in events[starts[-1] :] if starts else ():
        if isinstance(event, JobSubmitted | Snapshot):
            job = original(spec, event, at_s)
        elif job is not None:
            job = apply_event(job, event, at_s)[0]
    return job


def snapshot(job: Job) -> Snapshot:
    """Return the job's record as an origin."""
    return Snapshot(job=job_to_fields(job))


def job_to_fields(job: Job) -> dict[str, Json]:
    """Return the job as JSON values without its spec, which never changes and is stored once."""
    body: dict[str, Json] = encode(job)
    del body["spec"]
    return body


def job_from_fields(body: Mapping[str, Json], spec: JobSpec) -> Job:
    """Return the job of stored JSON values, also of those that an earlier release wrote. Raises Invalid."""
    named = {FORMER_NAMES.get(name, name): value for name, value in body.items()}
    return replace(decode(Job, {**named, "spec": {}}, unknown="ignore"), spec=spec)


def _job_changed(job: Job, event: ChangeJob, at_s: float) -> Transition:
    return user_requests.changed(
        job, by=event.by, now_s=at_s, learners=event.learners, priority=event.priority, elastic=event.elastic
    )


def _acted(event: Event) -> Callable[[Job, Any, float], Transition]:
    return lambda job, request, at_s: user_requests.apply_request(job, event, by=request.by, now_s=at_s)


def _started(job: Job, event: Started, at_s: float) -> Transition:
    return plan_outcomes.started(job, event.seats, at_s)


def _resized(job: Job, event: Resized, at_s: float) -> Transition:
    return plan_outcomes.resized(job, event.seats, event.by, at_s, event.why, event.notice_s)


def _preempted(job: Job, event: Preempted, at_s: float) -> Transition:
    return plan_outcomes.preempted(job, event.reason, at_s, event.notice_s)


def _wait_recorded(job: Job, event: WaitRecorded, at_s: float) -> Transition:
    span = None if event.low_s is None or event.high_s is None else (event.low_s, event.high_s)
    return plan_outcomes.waits(job, event.reason, span, at_s)


def _schedule_applied(job: Job, event: ScheduleApplied, at_s: float) -> Transition:
    return journal_events.scheduled(job, event.epoch)


def _moved_from_suspect(job: Job, event: MovedFromSuspect, at_s: float) -> Transition:
    job = replace(job, goal=Goal.HALT, revision=job.revision + 1, resize=None, guardian_starts=0)
    why = f"{event.why[:1].upper()}{event.why[1:].rstrip('.')}"
    elsewhere = f"{why}. The job restarts elsewhere."
    return with_text(job, "suspect", elsewhere if why else "Its device is suspect; the job restarts on other devices.")


def _time_limit_adopted(job: Job, event: TimeLimitAdopted, at_s: float) -> Transition:
    return time_limit.adopted(job), ()


def _fact_read(job: Job, event: FactRead, at_s: float) -> Transition:
    return journal_events.apply_fact(job, event.fact)


def _journal_read(job: Job, event: JournalRead, at_s: float) -> Transition:
    return (job if job.journal_offset == event.offset else replace(job, journal_offset=event.offset)), ()


def _lines_lost(job: Job, event: LinesLost, at_s: float) -> Transition:
    return guardian_loss.lines_lost(job, event.lines, event.where)


def _directory_lost(job: Job, event: DirectoryLost, at_s: float) -> Transition:
    return guardian_loss.directory_lost(job, event.directory, at_s)


def _guardian_lost(job: Job, event: GuardianLost, at_s: float) -> Transition:
    return guardian_loss.guardian_gone(job, event.text, at_s, has_exited=event.has_exited)


def _start_failed(job: Job, event: StartFailed, at_s: float) -> Transition:
    if job.is_closed:
        return job, ()
    return guardian_loss.not_started(job, event.text, at_s, is_permanent=event.is_permanent)


def _delivery_postponed(job: Job, event: DeliveryPostponed, at_s: float) -> Transition:
    return with_text(job, "guardian", event.text)


def _abandoned(job: Job, event: Abandoned, at_s: float) -> Transition:
    return (job, ()) if job.is_closed else guardian_loss.abandoned(job, at_s)


def _seats_refused(job: Job, event: SeatsRefused, at_s: float) -> Transition:
    return seats_refused(job, event.refused, at_s)


def _machine_slept(job: Job, event: MachineSlept, at_s: float) -> Transition:
    return time_limit.slept(job, event.seconds), ()


_APPLY: Final[Mapping[type, Callable[[Job, Any, float], Transition]]] = {
    ChangeJob: _job_changed,
    HaltJob: _acted(Event.HALT),
    ResumeJob: _acted(Event.RESUME),
    CancelJob: _acted(Event.CANCEL),
    RequestCheckpoint: _acted(Event.CHECKPOINT),
    Started: _started,
    Resized: _resized,
    Preempted: _preempted,
    WaitRecorded: _wait_recorded,
    ScheduleApplied: _schedule_applied,
    MovedFromSuspect: _moved_from_suspect,
    TimeLimitAdopted: _time_limit_adopted,
    FactRead: _fact_read,
    JournalRead: _journal_read,
    LinesLost: _lines_lost,
    DirectoryLost: _directory_lost,
    GuardianLost: _guardian_lost,
    StartFailed: _start_failed,
    DeliveryPostponed: _delivery_postponed,
    Abandoned: _abandoned,
    SeatsRefused: _seats_refused,
    MachineSlept: _machine_slept,
}
