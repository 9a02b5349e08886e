"""Pruning of the queue: a plan examines no more equivalent waiting jobs than could run at once.

Equivalent jobs have the same request (`request_key`) and an expected length of the same level (`length_level`). The
scheduler tries only the first of these, so they start in queue order. Pruned jobs could not start before the remaining
ones of their class, and the decisions are the same. As many late jobs are kept in addition: a reservation for a late
job delays others, whether it can start now or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from heapq import nsmallest
from itertools import chain
from operator import attrgetter
from typing import Final

from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.request_key import request_key
from dlaas_server.core.placement.gang_placement import free_of
from dlaas_server.core.planning.scheduler_snapshot import NOTHING_KNOWN, request_of, set_estimates
from dlaas_server.core.scheduling.gang_request import Key, length_level
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import Order, new_order
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import Timers
from dlaas_server.core.scheduling.waiting_queue import WaitingQueue

__all__ = ["pruned"]

_AGE: Final = attrgetter("submitted_s", "number")
_VALUES: Final = attrgetter(*(field.name for field in fields(Known)))
"""Values of a `Known`: their tuple is hashed and compared faster than the record."""


def pruned(pool: Pool, now_s: float, policy: Policy, order: Order | None = None) -> Pool:
    """Return the pool without waiting jobs that are too far behind in their class to start now.

    Jobs that ran before, and jobs that need no devices, are always kept. `policy` and `order` as for `plan`.
    """
    jobs, known = dict[str, Job](), pool.known
    by_request: dict[tuple[object, ...], dict[object, list[Job]]] = defaultdict(lambda: defaultdict(list))
    for name, job in pool.jobs.items():
        if not job.waits or job.queued_s or not job.spec.gpus_per_learner:
            jobs[name] = job
        else:
            by_request[request_key(job)][_VALUES(known.get(name, NOTHING_KNOWN))].append(job)
    devices = sum(device.out_of_service is None for node in pool.nodes for device in node.devices)
    positions: _QueuePositions | None = None
    for by_known in by_request.values():
        limit = _limit(next(iter(by_known.values()))[0], devices)
        for lists in _by_length(by_known, known, limit):
            equivalent = list(chain.from_iterable(lists))
            if len(lists) > 1 and len(equivalent) > limit:
                positions = positions or _QueuePositions(pool, now_s, policy, order)
                equivalent = positions.first(limit, lists)
            jobs.update((job.id, job) for job in equivalent)
    return replace(pool, jobs=jobs)


def _by_length(
    by_known: Mapping[object, list[Job]], known: Mapping[str, Known], limit: int
) -> Iterable[list[list[Job]]]:
    """Return the classes of jobs with equal requests: lists of jobs with equal knowledge, the first ones of each.

    Jobs with equal knowledge go by age in every order.
    """
    classes: dict[object, list[list[Job]]] = defaultdict(list)
    for values, alike in by_known.items():
        first = alike[0]
        length = values if first.spec.spot else length_level(known.get(first.id, NOTHING_KNOWN).length_s)
        classes[length].append(alike if len(alike) <= limit else nsmallest(limit, alike, key=_AGE))
    return classes.values()


def _limit(job: Job, devices: int) -> int:
    """Return one more than the number of such jobs that could run at once."""
    return devices // (job.spec.gpus_per_learner * job.spec.learners_min) + 1


class _QueuePositions:
    """Queue positions of waiting jobs, without a scheduler."""

    def __init__(self, pool: Pool, now_s: float, policy: Policy, order: Order | None) -> None:
        self._pool, self._now_s, self._policy = pool, now_s, policy
        order, timers = order or new_order(policy.order), Timers()
        self._order, self._guard = order, StarvationGuard(policy, order, timers)
        self._queue = WaitingQueue(free_of((), ()), order, timers)

    def first(self, limit: int, lists: Sequence[list[Job]]) -> list[Job]:
        """Return the first `limit` jobs of these lists and the first `limit` late ones, which may hold the reservation.

        The oldest starving job is added, since the starvation guard may give it the turn at any position. All jobs have
        the same request, and within a list the same knowledge.
        """
        waiting: list[tuple[Key, Job]] = []
        late: list[tuple[Key, Job]] = []
        starving: list[Job] = []
        known = self._pool.known
        request = request_of(lists[0][0], self._pool, self._policy, self._now_s)  # reused for all jobs
        for alike in lists:
            set_estimates(request, known.get(alike[0].id, NOTHING_KNOWN))
            for job in alike:
                request.number, request.submitted_s, request.queued_s = job.number, job.submitted_s, job.submitted_s
                request.rank = self._order.rank(request, self._now_s)
                request.lateness, is_starving = self._guard.lateness_without_turn(request, self._now_s)
                entry = self._queue.key_of(request), job
                waiting.append(entry)
                if request.lateness >= Lateness.LATE:
                    late.append(entry)
                if is_starving:
                    starving.append(job)
        first = [job for _, job in nsmallest(limit, waiting) + nsmallest(limit, late)]
        return first + ([min(starving, key=_AGE)] if starving else [])
