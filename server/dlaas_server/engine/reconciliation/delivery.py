"""Delivery of wanted documents to the pool: one task per job at a time, repeated until the pool has the document."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from dlaas_server.core.lifecycle import guardian_loss
from dlaas_server.core.lifecycle.job_events import DeliveryPostponed, JobObserved, StartFailed
from dlaas_server.core.lifecycle.reconcile import NOTHING_KNOWN, Act, Known
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import sentence
from dlaas_server.pools.base import InterpreterMissing, Pool, PoolUnavailable
from dlaas_server.pools.job_files import lay_out
from dlaas_server.store import Store
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import NotFound

__all__ = ["Delivery"]

log = logging.getLogger("dlaas.engine")


class Delivery:
    """Documents on their way to the pool, and what is known of the guardians.

    `post` queues an observation for the next turn, `carried_out(job)` is called after each delivery.
    """

    def __init__(
        self,
        store: Store,
        pool: Pool,
        clock: Callable[[], float],
        *,
        job_of: Callable[[str], Job],
        blobs: Callable[[str], str],
        post: Callable[[JobObserved], None],
        carried_out: Callable[[str], None],
    ) -> None:
        self.known: dict[str, Known] = {}
        self.abandoned: set[str] = set()
        """Jobs without any process that no guardian has closed."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._prepared: set[str] = set()
        self._store, self._pool, self._clock = store, pool, clock
        self._job_of, self._blobs, self._post, self._carried_out = job_of, blobs, post, carried_out

    def start(self, act: Act) -> None:
        """Carry out an act beside the loop, unless one of the job is under way."""
        if act.job in self.tasks:
            return
        task = asyncio.create_task(self._carry_out(act), name=f"act {act.job}")
        self.tasks[act.job] = task
        task.add_done_callback(lambda _: self._done(act.job))

    def retry_now(self) -> None:
        """Repeat postponed deliveries at once: the pool can be reached again."""
        for job, known in self.known.items():
            if known.retry_s:
                self.known[job] = replace(known, retry_s=0.0)

    def prepare_again(self, job: str) -> None:
        """Write the job's files again before the next delivery."""
        self._prepared.discard(job)

    def forget(self, job: str) -> None:
        """Drop what is known of a deleted job."""
        self.known.pop(job, None)
        self.abandoned.discard(job)
        self._prepared.discard(job)

    def _done(self, job: str) -> None:
        del self.tasks[job]
        self._carried_out(job)

    async def _carry_out(self, act: Act) -> None:
        try:
            job, is_to_end = self._job_of(act.job), act.wanted.goal is Goal.STOP
            is_unguarded = self.known.get(act.job, NOTHING_KNOWN).is_guarded is False
            may_be_over = guardian_loss.may_be_over(job, is_unguarded=is_unguarded)
            if may_be_over and await self._pool.end(act.job, kill=is_to_end):
                self.known[act.job] = Known(is_guarded=False)
                self.abandoned.add(act.job)
                return
            await self._prepare(act.job)
            await self._pool.act(act.job, act.wanted)
            if act.wanted.revision > self.known.get(act.job, NOTHING_KNOWN).sent_revision:  # else the job is closed
                self.known[act.job] = Known(act.wanted.revision, is_guarded=True)
        except PoolUnavailable as error:
            why = sentence(str(error))
            self._postpone(act.job, f"The pool is unavailable: {why} What was requested is done when it is available.")
        except Exception as error:  # top of a task: report it, and retry with a delay
            is_ours = isinstance(error, DlaasError)
            text = str(error) if is_ours else f"{type(error).__name__}: {error}"
            log.error("%s: %s", act.job, text, exc_info=None if is_ours else error)
            if await self._may_be_guarded(act.job):
                self._postpone(act.job, f"A request could not be delivered: {text}; it is tried again.")
                return
            is_permanent = isinstance(error, InterpreterMissing)
            self._prepared.discard(act.job)
            self._post(JobObserved(job=act.job, event=StartFailed(text=text, is_permanent=is_permanent)))

    async def _may_be_guarded(self, job_id: str) -> bool:
        try:
            return await self._pool.is_guarded(job_id) is not False
        except PoolUnavailable:
            return True
        except NotFound:
            return False

    def _postpone(self, job_id: str, text: str) -> None:
        """Deliver the document later: who cannot be reached is not proven to be gone. The history has it once."""
        known = self.known.get(job_id, NOTHING_KNOWN)
        self.known[job_id] = known.postponed(self._clock())
        if not known.attempts:
            log.warning("%s: %s", job_id, text)
            self._post(JobObserved(job=job_id, event=DeliveryPostponed(text=text)))

    async def _prepare(self, job_id: str) -> None:
        """Write the job's files. The store is authoritative; the directory can be recreated."""
        if job_id in self._prepared:
            return
        job, payload = self._job_of(job_id), await self._store.payload(job_id)
        if job.facts_read:
            await self._pool.streams(job_id)  # raises NotFound: its work is lost and must not restart unnoticed
        await lay_out(self._pool, job, payload, self._blobs)
        self._prepared.add(job_id)
