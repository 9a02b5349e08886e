"""How a pool is shared: by which order, with which shares of its queues, and whether running jobs make room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlaas_server.core.placement.shape import Layout

__all__ = ["Policy", "Share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a queue of a `fair` pool is entitled to. What it leaves idle, others may borrow until it wants it back."""

    guaranteed: int = 0
    """Devices."""
    weight: float = 1.0
    """How idle devices are divided among queues without a guarantee."""

    @property
    def size(self) -> float:
        """What the queue's use is measured by."""
        return self.guaranteed or self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a pool is shared. The same record steers the engine, the simulator and the forecast."""

    order: str = "shortest"
    placement: Layout = Layout.PACK
    """How gangs are laid over nodes, of jobs that do not say it themselves."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """Queue -> its share, in order `fair`; a queue that is missing has weight 1."""
    age_s: float = 3600.0
    """A job's bound: this, or the order's factor times its own expected length if that is longer. See `Late`.

    Whatever else comes, a gang with one device per learner starts within `Late.OVERDUE` times its bound and the longest
    job that runs then, where those of a higher priority leave it room. Where they leave none (a gang of the whole pool
    may never find it empty, even at half load), it goes before them too after `Late.FORGOTTEN` times its bound, one
    such job at a time. In order `fair`, jobs that take no more than is guaranteed to their queue always go first: who
    needs more than these leave has no bound. Spot jobs have none at all.
    """
    ran_factor: float = 10.0
    """Nobody is preempted before it ran so many times what its stop and restart cost."""
    preempts: bool = True
    """Whether running jobs are stopped for others at all."""
    patience_factor: float = 50.0
    """Nobody preempts for its rank (for its priority it does) before it waited so many times what that costs."""
    spot_price: float = 0.3
    """What a device that is lent to a spot job counts as use of its queue."""
    spot_notice_s: float = 30.0
    """How long a spot job may take for a checkpoint before its devices are taken back."""

    @property
    def is_strict(self) -> bool:
        """The first that does not fit stops the queue."""
        return self.order == "fifo"
