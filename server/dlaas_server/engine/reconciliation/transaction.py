"""Transaction of one turn of the loop: a scratch copy that replaces the state after the commit, or is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dlaas_server.core.lifecycle.event_codec import StoredEvent
from dlaas_server.core.lifecycle.job_events import JobEvent, Origin, apply_event
from dlaas_server.core.lifecycle.requests import PoolRequest
from dlaas_server.core.lifecycle.transition import EventText
from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.pool_settings import Settings
from dlaas_server.store import Batch, Event, Inserted
from jupyter_dlaas.wire.codec import Json
from jupyter_dlaas.wire.protocol import NotFound

__all__ = ["POOL", "Draft"]

POOL: Final = ""
"""Job id under which the pool's own events are stored."""


@dataclass(slots=True)
class Draft:
    """Copy-on-write view of the jobs: reads fall through to the committed jobs, writes stay here."""

    base: Mapping[str, Job]
    rows: Mapping[str, int]
    last_row: int
    now_s: float
    changed: dict[str, Job] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    new_rows: dict[str, int] = field(default_factory=dict)
    new_keys: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    batch: Batch = field(default_factory=Batch)
    settings: Settings = field(default_factory=Settings)
    next_number: int = 1
    """Number of the next new job."""

    def job(self, job_id: str) -> Job:
        """Return the job as it is in this turn. Raises NotFound."""
        found = self.changed.get(job_id) or self.base.get(job_id)
        if found is None or job_id in self.deleted:
            raise NotFound(f"there is no job {job_id}")
        return found

    def apply(self, job_id: str, event: JobEvent) -> Job:
        """Apply the event and record it with its text. An event without effect leaves no row."""
        before = self.job(job_id)
        job, texts = apply_event(before, event, self.now_s)
        if job is before and not texts:
            return job
        row = self._add_events(job.id, texts, event)
        self.changed[job.id] = job
        self.batch.updated[job.id] = (row, job)
        return job

    def insert(
        self,
        job: Job,
        origin: Origin,
        payload: Mapping[str, Json],
        key: str,
        digest: str,
        text: EventText | None = None,
        *,
        replaces: bool = False,
    ) -> Job:
        """Insert a new job; `replaces`: it replaces a damaged row."""
        row = self._add_events(job.id, (text or EventText("submitted", f"Submitted by {job.owner}."),), origin)
        self.changed[job.id] = job
        self.new_keys[job.owner, key] = (job.id, digest)
        self.batch.inserted.append(Inserted(job, row, payload, key, digest, replaces))
        return job

    def delete(self, job_id: str) -> None:
        """Delete an ended job."""
        self.deleted.add(job_id)
        self.changed.pop(job_id, None)
        self.batch.updated.pop(job_id, None)
        self.batch.deleted.append(job_id)

    def set(self, settings: Settings, text: str, request: PoolRequest | None = None) -> None:
        """Change the pool's settings and record that in the pool's events. Equal settings change nothing."""
        if settings != self.settings:
            self.settings = self.batch.settings = settings
            self.note("pool", text, request)

    def note(self, kind: str, text: str, request: PoolRequest | None = None) -> None:
        """Add an event to the pool's events."""
        self.last_row += 1
        self.batch.events.append(Event(self.last_row, self.now_s, POOL, kind, text, request))

    def _add_events(self, job_id: str, texts: tuple[EventText, ...], event: StoredEvent) -> int:
        """Add a row for each text, at least one: the event stands in the first."""
        stored: StoredEvent | None = event
        for text in texts or (EventText("", ""),):
            self.last_row += 1
            self.batch.events.append(Event(self.last_row, self.now_s, job_id, text.kind, text.text, stored))
            stored = None
        self.new_rows[job_id] = self.last_row
        return self.last_row
