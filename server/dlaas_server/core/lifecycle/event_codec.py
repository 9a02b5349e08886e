"""JSON of the records in the event table: events of jobs, and requests of the pool's administrators."""

from __future__ import annotations

import typing
from typing import Any, Final

from dlaas_server.core.lifecycle.job_events import FactRead, JobEvent, Origin
from dlaas_server.core.lifecycle.requests import PoolRequest
from jupyter_dlaas.wire.codec import Invalid, Json, UnknownKind, decode, encode
from jupyter_dlaas.wire.journal import fact_from_fields, fact_to_fields

__all__ = ["EVENT_FORMAT", "StoredEvent", "event_from_fields", "event_to_fields", "job_event_from_fields"]

EVENT_FORMAT: Final = 1
"""Format of the events that this version stores. It reads this format and all earlier ones."""
StoredEvent = Origin | JobEvent | PoolRequest
"""Records of the event table."""
_KINDS: Final[dict[str, Any]] = {record.kind: record for record in typing.get_args(StoredEvent)}


def event_to_fields(event: StoredEvent) -> dict[str, Json]:
    """Return the event as JSON values, with its kind and format. Fields that are None are left out."""
    head: dict[str, Json] = {"kind": event.kind, "format": EVENT_FORMAT}
    if isinstance(event, FactRead):
        return head | {"fact": fact_to_fields(event.fact)}
    return head | {name: value for name, value in encode(event).items() if value is not None}


def job_event_from_fields(body: object) -> Origin | JobEvent:
    """Return the event of a job. Raise Invalid or UnknownKind."""
    event = event_from_fields(body)
    if isinstance(event, PoolRequest):
        raise Invalid(f"event: {event.kind} is not an event of a job")
    return event


def event_from_fields(body: object) -> StoredEvent:
    """Return the event of JSON values. Raise Invalid or UnknownKind."""
    if not isinstance(body, dict):
        raise Invalid(f"event: must be an object, not {type(body).__name__}")
    form, kind = body.get("format"), body.get("kind")
    if not isinstance(form, int) or form > EVENT_FORMAT:
        raise Invalid(f"event: format {form!r:.20} is not supported; this release reads up to {EVENT_FORMAT}")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnknownKind(f"event: unknown kind {kind!r:.60}")
    if kind == FactRead.kind:
        return FactRead(fact=fact_from_fields(body.get("fact")))
    return typing.cast(StoredEvent, decode(_KINDS[kind], body, where=kind, unknown="ignore"))
