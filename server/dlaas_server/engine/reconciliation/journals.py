"""Reading of journals: facts of guardians are applied to their jobs, and lost lines are reported."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from dlaas_server.core.lifecycle.job_events import DirectoryLost, FactRead, JournalRead, LinesLost
from dlaas_server.engine.reconciliation.hardware import count_failure
from dlaas_server.engine.reconciliation.transaction import Draft
from dlaas_server.pools.base import Pool, PoolUnavailable
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.journal import LineDamaged
from jupyter_dlaas.wire.protocol import NotFound

__all__ = ["read_journal"]

log = logging.getLogger("dlaas.engine")


async def read_journal(draft: Draft, pool: Pool, job_id: str) -> bool | None:
    """Apply the new facts of a job. Return False if its directory does not exist yet, None if it cannot be read now."""
    job = draft.job(job_id)
    try:
        facts, offset = await pool.facts(job_id, job.journal_offset)
    except NotFound:
        if job.facts_read and not job.is_closed and not job.state.is_final:
            draft.apply(job_id, DirectoryLost(directory=pool.directory(job_id)))
        return False
    except PoolUnavailable:
        return None
    except DlaasError as error:
        log.error("cannot read the journal of %s: %s", job_id, error)
        return None
    _count_damage(draft, job_id, (fact for fact in facts if isinstance(fact, LineDamaged)))
    has_hole = False
    for fact in sorted((fact for fact in facts if not isinstance(fact, LineDamaged)), key=lambda fact: fact.n):
        job = draft.job(job_id)
        has_hole = fact.n > job.facts_read and not job.damaged_lines
        if has_hole:
            break  # a later fact is on disk before an earlier one: read again when that has arrived
        # No fact may lie in the future, whatever the clock of another machine says: delays are counted by our clock.
        draft.apply(job_id, FactRead(fact=replace(fact, at_s=min(fact.at_s, draft.now_s))))
        count_failure(draft, job, fact, pool.nodes())
    if facts and not has_hole:
        draft.apply(job_id, JournalRead(offset=offset))
    return True


def _count_damage(draft: Draft, job_id: str, lost: Iterable[LineDamaged]) -> None:
    places = [fact.why or "" for fact in lost]
    if places:
        log.error("%d lines of the journal of %s cannot be read: %s", len(places), job_id, "; ".join(places[:3]))
        draft.apply(job_id, LinesLost(lines=len(places), where=places[-1]))
