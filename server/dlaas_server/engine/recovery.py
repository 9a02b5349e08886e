"""Recovery of the store after a loss: unknown or unreadable jobs are rebuilt from their directories."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from dlaas_server.core.lifecycle.job_events import snapshot
from dlaas_server.core.lifecycle.recovery import number_of, recovered
from dlaas_server.core.lifecycle.transition import EventText
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.engine.reconciliation.transaction import Draft
from dlaas_server.pools.base import Pool
from dlaas_server.store import DamagedRow, Loaded, Store, StoreDamaged, StoreError
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["load"]

log = logging.getLogger("dlaas.engine")
SKIPPED_NUMBERS: Final = 100
"""Job numbers skipped after a loss, since jobs without a directory may have had them."""
_LISTED: Final = 10
_RECOVERED: Final = "Recovered from its directory: the pool's store had lost its record."
_QUEUED: Final = "Back in the queue: the pool's store had lost its record, and the job had not started."


async def load(store: Store, pool: Pool, now_s: float) -> Loaded:
    """Load the store, including all jobs that have a directory. The notices report what was recovered."""
    try:
        loaded = await store.load()
    except StoreDamaged as error:
        await store.replace(str(error))
        loaded = await store.load()
    deleted = {job for job, _ in loaded.keys.values()} - loaded.jobs.keys() - {row.id for row in loaded.damaged}
    names = set(await pool.directories())
    if store.is_new and store.lost is None and (names or loaded.last_number):
        store.lost = "The pool's store was missing or empty."
    numbers = [number for name in names if (number := number_of(name)) is not None]
    skipped = SKIPPED_NUMBERS if store.lost and not loaded.last_number else 0
    loaded = replace(loaded, last_number=max([loaded.last_number, *numbers]) + skipped)
    recovery = _Recovery(store, pool, loaded, now_s)
    for name in sorted(names - loaded.jobs.keys()):
        if name in deleted:
            await recovery.remove(name)
        else:
            await recovery.recover(name)
    for row in loaded.damaged:
        if row.id not in names:
            await recovery.queue_again(row)
    return await recovery.commit()


class _Recovery:
    """Recovered jobs that are committed in one transaction."""

    def __init__(self, store: Store, pool: Pool, loaded: Loaded, now_s: float) -> None:
        self._store, self._pool, self._loaded = store, pool, loaded
        self._draft = Draft(loaded.jobs, loaded.rows, loaded.last_row, now_s, settings=loaded.settings)
        self._numbers = {job.number for job in loaded.jobs.values()}
        self._last_number = loaded.last_number
        self._recovered: list[str] = []
        self._failed: list[str] = []

    async def recover(self, name: str) -> None:
        """Rebuild the record of a job from its directory."""
        if number_of(name) is None:
            return  # not the directory of a job
        try:
            stored = await self._pool.stored_job(name)
            job = recovered(stored, self._pool.unit)
            payload = await self._pool.payload(name)
        except DlaasError as error:
            log.error("cannot recover %s from its directory: %s", name, error)
            self._failed.append(name)
            return
        self._insert(job, payload, _RECOVERED)

    async def queue_again(self, row: DamagedRow) -> None:
        """Queue a job that had no directory yet, so that nothing of it has run."""
        try:
            payload = await self._store.payload(row.id)
        except (StoreError, ValueError):
            payload = None
        if row.spec is None or payload is None:
            self._failed.append(row.id)
            return
        job = Job(
            id=row.id,
            number=row.number,
            owner=row.owner,
            spec=row.spec,
            submitted_s=self._draft.now_s,
            wish=row.spec.learners_min,
            unit=self._pool.unit,
            priority=row.spec.priority,
            elastic=row.spec.elastic,
        )
        self._insert(job, payload, _QUEUED)

    async def remove(self, name: str) -> None:
        """Remove the directory of a job that was deleted just before the engine ended."""
        try:
            await self._pool.remove(name)
        except DlaasError as error:
            log.warning("cannot remove the directory of the deleted job %s: %s", name, error)

    def _insert(self, job: Job, payload: object, text: str) -> None:
        if job.number in self._numbers:  # only its order among the jobs changes: the id stays
            self._last_number += 1
            job = replace(job, number=self._last_number)
        self._numbers.add(job.number)
        found = EventText("recovered", text)
        self._draft.insert(job, snapshot(job), payload, f"recovered:{job.id}", "", found, replaces=True)  # type: ignore[arg-type]
        self._recovered.append(job.id)

    async def commit(self) -> Loaded:
        """Commit the recovered jobs, and return the complete contents."""
        loaded, draft = self._loaded, self._draft
        notice = self._notice()
        if notice and all(notice != text for _, text in loaded.notices):
            log.warning("%s", notice)
            draft.note("store", notice)
        if draft.batch:
            await self._store.commit(draft.batch)
        return replace(
            loaded,
            jobs={**loaded.jobs, **draft.changed},
            rows={**loaded.rows, **draft.new_rows},
            keys={**loaded.keys, **draft.new_keys},
            last_row=draft.last_row,
            last_number=self._last_number,
            notices=(*loaded.notices, (draft.now_s, notice)) if notice else loaded.notices,
        )

    def _notice(self) -> str:
        sentences = [self._store.lost] if self._store.lost else []
        if self._recovered:
            jobs = count(len(self._recovered), "job") + ("" if sentences else " that the pool's store had lost")
            verb = "was" if len(self._recovered) == 1 else "were"
            sentences.append(f"{jobs} {verb} recovered from disk: {_names(self._recovered)}.")
        if self._store.lost:
            sentences.append("Jobs that had not started are lost: submit them again. Set queues and cordons again.")
        if self._failed:
            sentences.append(f"Unreadable, so left unchanged: {_names(self._failed)}.")
        return " ".join(sentences)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
