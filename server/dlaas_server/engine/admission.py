"""Admission of a new job by the pool as it is known now."""

from __future__ import annotations

from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.wait_reasons import check_feasible
from dlaas_server.pools.base import Pool

__all__ = ["check_feasible_on"]


def check_feasible_on(pool: Pool, job: Job) -> None:
    """Raise Refused if the pool is too small for the job. The nodes of a pool that was never reached are unknown."""
    nodes = pool.nodes()
    if nodes or pool.unavailable() is None:
        check_feasible(job, nodes, pool.no_devices())
