"""Pruning of the queue: a plan examines no more equivalent waiting jobs than could run at once.

Equivalent jobs have the same request and an expected length of the same level (`gang_request.length_level`). The
scheduler tries only the first of these, so they start in queue order. Pruned jobs could not start before the remaining
ones of their class, and the decisions are the same. As many late jobs are kept in addition: a reservation for a late
job delays others, whether it can start now or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import chain

from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.placement.gang_placement import free_of
from dlaas_server.core.planning.scheduler_snapshot import NOTHING_KNOWN, expect, request_of
from dlaas_server.core.scheduling.gang_request import Key, length_level
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import Order, new_order
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import Timers
from dlaas_server.core.scheduling.waiting_queue import WaitingQueue

__all__ = ["near"]


def near(pool: Pool, now_s: float, policy: Policy, order: Order | None = None) -> Pool:
    """Return the pool without waiting jobs that are too far behind in their class to start now.

    Jobs that ran before, and jobs that need no devices, are always kept. `policy` and `order` as for `plan`.
    """
    jobs: dict[str, Job] = {}
    kinds: dict[tuple[tuple[object, ...], Known], list[Job]] = {}
    for name, job in pool.jobs.items():
        spec = job.spec
        if not job.waits or job.queued_s or not spec.gpus_per_learner:
            jobs[name] = job
            continue
        asked: tuple[object, ...] = (
            spec.gpus_per_learner,
            spec.learners_min,
            job.priority,
            spec.queue,
            spec.spot,
            spec.cpus_per_learner,
            spec.memory_bytes_per_learner,
            spec.gpu_kind,
            spec.placement,
            job.not_before_s,
        )
        kinds.setdefault((asked, pool.known.get(name, NOTHING_KNOWN)), []).append(job)
    devices = sum(device.out_of_service is None for node in pool.nodes for device in node.devices)
    levels: dict[tuple[object, ...], list[list[Job]]] = {}
    for (asked, known), alike in kinds.items():  # same knowledge of all: they go by age in every order
        its = known if alike[0].spec.spot else length_level(known.length_s)
        most = _most(alike[0], devices)
        first = alike if len(alike) <= most else nsmallest(most, alike, key=_age)
        levels.setdefault((*asked, its), []).append(first)
    places: _QueuePositions | None = None
    for lines in levels.values():
        alike = [job for line in lines for job in line]
        if len(lines) > 1 and len(alike) > _most(alike[0], devices):
            places = places or _QueuePositions(pool, now_s, policy, order)
            alike = places.first(_most(alike[0], devices), lines)
        jobs.update((job.id, job) for job in alike)
    return replace(pool, jobs=jobs)


def _most(job: Job, devices: int) -> int:
    """Return one more than the number of such jobs that could run at once."""
    return devices // (job.spec.gpus_per_learner * job.spec.learners_min) + 1


def _age(job: Job) -> tuple[float, int]:
    return job.submitted_s, job.number


class _QueuePositions:
    """Queue positions of waiting jobs, without a scheduler."""

    def __init__(self, pool: Pool, now_s: float, policy: Policy, order: Order | None) -> None:
        self._pool, self._now_s, self._policy = pool, now_s, policy
        order, timers = order or new_order(policy.order), Timers()
        self._queue = WaitingQueue(free_of((), ()), order, StarvationGuard(policy, order, timers), timers)

    def first(self, most: int, lines: Sequence[list[Job]]) -> list[Job]:
        """Return the first `most` jobs of these lists and the first `most` late ones, which may hold the reservation.

        The oldest starving job is added, since the starvation guard may give it the turn at any position. All jobs have
        the same request, and within a list the same knowledge.
        """
        found: dict[int, Key] = {}
        late: list[Job] = []
        forgotten: list[Job] = []
        known, request = (
            self._pool.known,
            request_of(lines[0][0], self._pool, self._policy, self._now_s),
        )  # reused for all jobs
        for alike in lines:
            expect(request, known.get(alike[0].id, NOTHING_KNOWN))
            for job in alike:
                request.number, request.submitted_s, request.queued_s = job.number, job.submitted_s, job.submitted_s
                found[job.number], is_forgotten = self._queue.key_without_turn(request, self._now_s)
                if request.lateness >= Lateness.LATE:
                    late.append(job)
                if is_forgotten:
                    forgotten.append(job)

        def place(job: Job) -> Key:
            return found[job.number]

        first = nsmallest(most, chain(*lines), key=place) + nsmallest(most, late, key=place)
        return first + ([min(forgotten, key=_age)] if forgotten else [])
