"""Picture of a pool that a plan is made from."""

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
    """What is known of how long a job runs."""

    length_s: float | None = None
    """How long it is expected to run in all."""
    usual_s: float | None = None
    """The same, drawn to what is usual in this pool."""
    mean_s: float | None = None
    """The mean of what such an expectation may mean; None: it is taken at its word."""
    spread: float | None = None
    """How wrong that may be: standard deviation of its logarithm. None: as guesses in this pool usually are."""
    executed_s: float = 0.0
    """How long it has run until now."""
    restart_s: float = 0.0
    """What stopping and restoring it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The picture that a plan is made from."""

    nodes: tuple[Node, ...] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    """Job -> what is known of its length; nothing, where it is missing."""
    taken: tuple[Job, ...] = ()
    """Jobs that are not decided on, and whose seats are taken."""
    lent: tuple[Loan, ...] = ()
    """Seats of jobs that are not decided on, and that give them back, in this order."""
    leaving: tuple[Loan, ...] = ()
    """Seats that count as free, and that their jobs are just giving up: nobody can start there yet."""
