"""Which of many that wait a plan has to look at: of jobs that are alike, no more than could run at once.

Alike are jobs that ask for the same, and of which the same is expected: whatever the order, they go by age. So who is
left out could not start before those of its kind that are looked at, and what is decided is the same.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import nsmallest
from typing import Final

from dlaas_server.core.model import Intent, Job, Known, Pool
from jupyter_dlaas.protocol import State

__all__ = ["near"]

NOTHING_KNOWN: Final = Known()


def near(pool: Pool) -> Pool:
    """The pool without those that wait behind so many of their kind that none of them can start now.

    Who has run before, or asks for no devices, is looked at always.
    """
    jobs: dict[str, Job] = {}
    kinds: dict[tuple[object, ...], list[Job]] = {}
    for name, job in pool.jobs.items():
        spec = job.spec
        if job.state is not State.QUEUED or job.queued_s or not spec.gpus_per_learner or job.intent is not Intent.RUN:
            jobs[name] = job
            continue
        kind = (
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
            pool.known.get(name, NOTHING_KNOWN),
        )
        kinds.setdefault(kind, []).append(job)
    devices = sum(device.out_of_service is None for node in pool.nodes for device in node.devices)
    for alike in kinds.values():
        spec = alike[0].spec
        most = devices // (spec.gpus_per_learner * spec.learners_min) + 1
        first = alike if len(alike) <= most else nsmallest(most, alike, key=lambda job: (job.submitted_s, job.number))
        jobs.update((job.id, job) for job in first)
    return replace(pool, jobs=jobs)
