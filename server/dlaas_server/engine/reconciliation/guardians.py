"""Observation of guardians within a turn: journals, refused seats, and guardians that are gone."""

from __future__ import annotations

from dataclasses import replace

from dlaas_server.core.lifecycle import guardian_loss
from dlaas_server.core.lifecycle.job_events import Abandoned, GuardianLost, SeatsRefused, StartFailed
from dlaas_server.core.lifecycle.reconcile import Known
from dlaas_server.core.lifecycle.seat_refusal import concerning
from dlaas_server.core.planning.refused_seats import refused_again
from dlaas_server.engine.reconciliation.delivery import Delivery
from dlaas_server.engine.reconciliation.journals import read_journal
from dlaas_server.engine.reconciliation.transaction import Draft
from dlaas_server.pools.base import Pool
from jupyter_dlaas.wire.protocol import NotFound

__all__ = ["apply_events"]


async def apply_events(draft: Draft, pool: Pool, delivery: Delivery, job_id: str) -> bool:
    """Apply what has happened to the job. Return False if it could not be read, so that it must be read again."""
    if job_id in draft.deleted or job_id not in draft.base:
        return True
    known = delivery.known.get(job_id)
    is_gone = known is not None and known.is_guarded is not None and await _is_unguarded(pool, job_id)
    is_read = await read_journal(draft, pool, job_id)  # after the check: all facts of a dead guardian
    _apply_refusals(draft, pool, job_id)
    if job_id in delivery.abandoned:
        delivery.abandoned.discard(job_id)
        draft.apply(job_id, Abandoned())
    job = draft.job(job_id)
    if job.is_closed:
        delivery.known[job_id] = Known(job.revision)  # its next guardian is unknown
    elif is_read and is_gone and known is not None:
        delivery.known[job_id] = Known(is_guarded=False)
        if known.is_guarded and not guardian_loss.has_no_seats(job):
            delivery.prepare_again(job_id)  # a file that it needs may be damaged
            _lose_guardian(draft, pool, job_id)
    return is_read is not None


def _lose_guardian(draft: Draft, pool: Pool, job_id: str) -> None:
    loss = pool.loss_of(job_id)
    if loss.is_permanent:
        draft.apply(job_id, StartFailed(text=loss.text, is_permanent=True))
    else:
        draft.apply(job_id, GuardianLost(text=loss.text, has_exited=loss.has_exited))


async def _is_unguarded(pool: Pool, job_id: str) -> bool:
    try:
        return await pool.is_guarded(job_id) is False
    except NotFound:
        return False


def _apply_refusals(draft: Draft, pool: Pool, job_id: str) -> None:
    """Give up the seats that the pool could not provide, and leave them out of the plan for a while."""
    job = draft.job(job_id)
    refused = concerning(job, pool.refused(job_id))
    if not refused:
        return
    seats = refused_again(draft.settings.refused, job, refused, draft.now_s)
    draft.set(replace(draft.settings, refused=seats), f"A seat of {job_id} was refused: {refused[0].what}")
    draft.apply(job_id, SeatsRefused(refused=refused))
