"""Policy of a pool: order, shares of queues, and preemption settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlaas_server.core.placement.shape import Layout

__all__ = ["Policy", "Share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of a queue in a `fair` pool. Other queues may borrow the idle part until the queue reclaims it."""

    guaranteed: int = 0
    """Number of devices."""
    weight: float = 1.0
    """Relative share in idle devices, for queues without a guarantee."""

    @property
    def size(self) -> float:
        """Divisor for the queue's usage: the guaranteed devices, else the weight."""
        return self.guaranteed or self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Policy of a pool, used alike by the engine, the simulator and the forecast."""

    order: str = "shortest"
    placement: Layout = Layout.PACK
    """Layout of gangs over nodes, for jobs that do not set their own."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """Queue -> its share, in order `fair`. A queue that is missing has weight 1."""
    age_s: float = 3600.0
    """Bound on a job's wait: this, or the order's factor times its expected length if that is longer. See `Lateness`.

    A gang with one device per learner starts within `Lateness.OVERDUE` times its bound plus the longest job that runs
    then, if jobs of a higher priority leave it room. They may not: a gang of the whole pool may never find it empty,
    even at half load. After `Lateness.STARVING` times its bound it therefore goes before them too, one such job at a
    time. In order `fair`, jobs within the guarantee of their queue always go first, so a job that needs more than these
    leave has no bound. Spot jobs have no bound at all.
    """
    ran_factor: float = 10.0
    """Minimum run time before preemption, as a multiple of the job's stop and restart cost."""
    preempts: bool = True
    """True if running jobs are stopped for others at all."""
    patience_factor: float = 50.0
    """Minimum wait before preempting by rank, in restart costs. Preemption by priority needs no wait."""
    spot_price: float = 0.3
    """Usage that one device lent to a spot job adds to its queue."""
    spot_notice_s: float = 30.0
    """Seconds that a spot job has to write a checkpoint before its devices are reclaimed."""

    @property
    def is_strict(self) -> bool:
        """True if the first job that does not fit blocks the queue."""
        return self.order == "fifo"
