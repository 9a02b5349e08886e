"""Compare what should be with what is known, and say what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.lifecycle.journal_events import wanted
from dlaas_server.core.model.job import Job
from jupyter_dlaas.wire.journal import Goal, Wanted

__all__ = ["Act", "Known", "reconcile"]


@dataclass(frozen=True, slots=True)
class Act:
    """Hand this document to the job's guardian, starting one if none lives. Safe to repeat."""

    job: str
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Known:
    """What the shell knows of a job's guardian: newest revision handed over; whether it lives (None: not known)."""

    sent_revision: int = -1
    is_guarded: bool | None = None


NOTHING_KNOWN: Final = Known()


def reconcile(jobs: Iterable[Job], known: Mapping[str, Known], now_s: float) -> tuple[Act, ...]:
    """What turns what is into what should be.

    Nothing is started for a job before its delay has passed; who is to leave is told at once, also between two tries.
    """
    acts: list[Act] = []
    for job in sorted((job for job in jobs if not job.is_closed), key=lambda j: j.number):
        document, seen = wanted(job), known.get(job.id, NOTHING_KNOWN)
        if document is None:
            continue
        if job.not_before_s > now_s and (document.goal is Goal.RUN or seen.is_guarded is False):
            continue
        if seen.sent_revision < document.revision or seen.is_guarded is False:
            acts.append(Act(job.id, document))
    return tuple(acts)
