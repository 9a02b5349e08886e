"""Snapshot of a pool, from which a plan is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job

if TYPE_CHECKING:
    from dlaas_server.core.model.resources import Loan


__all__ = ["Known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Knowledge of a job's length."""

    length_s: float | None = None
    """Expected total run time."""
    usual_s: float | None = None
    """Expected total run time, shrunk towards the pool's usual length."""
    mean_s: float | None = None
    """Mean run time of jobs with such an estimate; None: the estimate itself."""
    spread: float | None = None
    """Standard deviation of the logarithm of the estimate's error; None: that of the pool's estimates."""
    executed_s: float = 0.0
    """Run time until now."""
    restart_s: float = 0.0
    """Cost of stopping and restoring the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Snapshot of a pool, from which a plan is made."""

    nodes: tuple[Node, ...] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    """Job -> knowledge of its length; a missing job: none."""
    taken: tuple[Job, ...] = ()
    """Jobs that are not planned, and whose seats are taken."""
    lent: tuple[Loan, ...] = ()
    """Seats of jobs that are not planned, and that can be reclaimed, in this order."""
    leaving: tuple[Loan, ...] = ()
    """Seats that count as free but are still being released: no job can start on them yet."""
