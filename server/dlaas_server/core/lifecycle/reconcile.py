"""Reconciliation: compare the desired state of jobs with the known state of their guardians, and return the actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.model.job import Job
from jupyter_dlaas.wire.journal import Goal, MemberWanted, Wanted

__all__ = ["NOTHING_KNOWN", "RETRY_MAX_S", "RETRY_S", "Act", "Known", "reconcile"]

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 4.0
"""Longest delay between two deliveries: a pool that can be reached again gets what was requested within seconds."""


@dataclass(frozen=True, slots=True)
class Act:
    """Delivery of this document to the job's guardian; starts a guardian if none lives. Safe to repeat."""

    job: str
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Known:
    """Knowledge of a job's guardian: newest revision delivered to it, and whether it lives (None: unknown)."""

    sent_revision: int = -1
    is_guarded: bool | None = None
    retry_s: float = 0.0
    """Time of the next delivery after one that failed because the pool or the guardian could not be reached."""
    attempts: int = 0
    """Number of such deliveries in a row."""

    def postponed(self, now_s: float) -> Known:
        """Return the knowledge after such a delivery. The delay grows to RETRY_MAX_S; attempts never end."""
        delay_s = min(RETRY_S * 2.0 ** min(self.attempts, 16), RETRY_MAX_S)
        return replace(self, retry_s=now_s + delay_s, attempts=self.attempts + 1)


NOTHING_KNOWN: Final = Known()


def reconcile(jobs: Iterable[Job], known: Mapping[str, Known], now_s: float) -> tuple[Act, ...]:
    """Return the actions that bring the known state to the desired one.

    Nothing is started for a job before its retry delay has passed. A request to leave is delivered at once, if a
    guardian may live.
    """
    acts: list[Act] = []
    for job in sorted((job for job in jobs if not job.is_closed), key=lambda j: j.number):
        seen = known.get(job.id, NOTHING_KNOWN)
        is_delivered = seen.sent_revision >= job.revision and seen.is_guarded is not False
        if is_delivered or seen.retry_s > now_s or (document := wanted(job)) is None:
            continue
        if job.not_before_s > now_s and (document.goal is Goal.RUN or seen.is_guarded is False):
            continue
        acts.append(Act(job.id, document))
    return tuple(acts)


def wanted(job: Job) -> Wanted | None:
    """Return the document for the job's guardian; None if no guardian is needed."""
    if job.is_closed:
        return None
    goal = Goal.STOP if job.state.is_final else job.goal
    gang = job.gang if goal is Goal.RUN else ()
    return Wanted(
        revision=job.revision,
        goal=goal,
        generation=job.generation,
        grace_s=job.notice_s,
        checkpoints=job.checkpoints_asked,
        facts_read=job.facts_read,
        members=tuple(MemberWanted(member=m.member, node=m.seat.node, devices=m.seat.devices) for m in gang),
    )
