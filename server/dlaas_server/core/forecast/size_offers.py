"""Size offers: smaller sizes at which a waiting job would start at once, found by planning with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dlaas_server.core.model.pool import Pool
from dlaas_server.core.placement.gang_placement import free_of, shape_of
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.scheduler_snapshot import scheduler_of
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.policy import Policy

__all__ = ["offers"]

OFFERS_MAX: Final = 20
"""Number of waiting jobs, first in the queue, for which smaller sizes are tried."""
QUEUE_PLACES_MAX: Final = 300
"""Number of waiting jobs, first in the queue, that such a plan considers."""


def offers(pool: Pool, now_s: float, policy: Policy, order: Order | None = None) -> Mapping[str, int]:
    """Return job -> learners, for the first queued jobs that the next plan would start at this smaller size.

    `order`: with what it learned from finished jobs. Only sizes that fit on idle devices are planned.
    """
    line = [ask.id for ask in scheduler_of(pool, now_s, policy, order)[0].queue_order()[:QUEUE_PLACES_MAX]]
    near = {name: job for name, job in pool.jobs.items() if not job.waits or name in set(line)}
    idle = free_of(pool.nodes, (*pool.jobs.values(), *pool.taken))
    found: dict[str, int] = {}
    for name in line[:OFFERS_MAX]:
        job = pool.jobs[name]
        shape, asked = shape_of(job, policy.placement), job.spec.learners_min
        fits = idle.fit_count(shape, asked - 1) if asked > 1 else 0
        if not fits:
            continue
        smaller = replace(job, spec=replace(job.spec, learners_min=fits))
        then = plan(replace(pool, jobs={**near, name: smaller}), now_s, policy, order)
        if any(start.job == name for start in then.starts):
            found[name] = fits
    return found
