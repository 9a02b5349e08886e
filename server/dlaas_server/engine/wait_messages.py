"""Wait messages of queued jobs: place, reason and start estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dlaas_server.core.lifecycle.job_events import WaitRecorded
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.placement.free_capacity import FreeCapacity, free_of
from dlaas_server.core.placement.shape import shape_of
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.rebalancing.drain import said_of_nodes
from dlaas_server.engine.estimation.length_history import offered, with_start
from dlaas_server.engine.estimation.start_estimator import StartEstimator
from dlaas_server.engine.reconciliation.transaction import Draft

__all__ = ["waits_of_long_queue", "waits_while_unavailable", "waits_with_estimates"]


def waits_while_unavailable(jobs: Iterable[Job], before: Mapping[str, Wait], why: str) -> dict[str, Wait]:
    """Return the waits while the pool is unavailable and nothing is planned: all keep their places."""
    waiting = [job for job in jobs if job.waits]
    places = {name: wait.place for name, wait in before.items() if wait.is_queued}
    last = max(places.values(), default=0) + 1
    waiting.sort(key=lambda job: (places.get(job.id, last), job.number))
    reason = f"The pool is unavailable. {why} The job starts when it is available again."
    return {job.id: Wait(job.id, reason, place, len(waiting)) for place, job in enumerate(waiting, start=1)}


def waits_with_estimates(
    draft: Draft, picture: Pool, waits: Sequence[Wait], estimator: StartEstimator
) -> dict[str, Wait]:
    """Return the waits with start estimates and offers; the first message of each job is one of its events."""
    out: dict[str, Wait] = {}
    idle: FreeCapacity | None = None
    is_whole = all(node.cordoned is None for node in picture.nodes)
    for wait in waits:  # thousands of jobs may wait, and most have their message already
        span, job = estimator.expected.get(wait.job), draft.job(wait.job)
        now = wait if is_whole else replace(wait, reason=f"{wait.reason}{said_of_nodes(picture, job)}")
        offer = estimator.offers.get(wait.job)
        if offer:  # computed beside the loop: other jobs may have started there since
            idle = idle or free_of(picture.nodes, {**picture.jobs, **draft.changed}.values())
            offer = offer if idle.fit_count(shape_of(job), offer) >= offer else None
        out[wait.job] = now = with_start(now, span, draft.now_s, offered(job, offer))
        if wait.is_queued and (not job.is_wait_recorded or (job.start_estimate is None and span is not None)):
            low_s, high_s = span or (None, None)
            draft.apply(job.id, WaitRecorded(reason=now.reason, low_s=low_s, high_s=high_s))
    return out


def waits_of_long_queue(
    draft: Draft,
    picture: Pool,
    waits: Sequence[Wait],
    estimator: StartEstimator,
    active: Mapping[str, Job],
    before: Mapping[str, Wait],
    *,
    has_news: bool,
) -> dict[str, Wait]:
    """Return the waits of a long queue, of which the plan examined only a part: `waits` is exact for running jobs only.

    Queued jobs get the result of the estimator if it is new, else their message `before`. `active`: all jobs before
    the plan.
    """
    jobs = {**active, **draft.changed}
    gone = {name for name, job in draft.changed.items() if not job.waits} | draft.deleted
    kept = {name: wait for name, wait in before.items() if wait.is_queued and name not in gone}
    news = [wait for wait in estimator.waits if wait.job in jobs and jobs[wait.job].waits] if has_news else []
    return kept | waits_with_estimates(
        draft, picture, [*(wait for wait in waits if not wait.is_queued), *news], estimator
    )
