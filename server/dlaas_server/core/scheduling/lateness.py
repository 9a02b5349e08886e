"""Lateness of a waiting gang, from on time to starving."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Lateness"]


class Lateness(IntEnum):
    """Lateness of a waiting job, or of a running one when it got its seats. The value is a multiple of its bound."""

    ON_TIME = 0
    LIFTED = 1
    """Goes before its equals. Once it runs, it makes room for late jobs only."""
    LATE = 4
    """Holds a reservation, may preempt jobs that are not late, and then cannot be preempted for a while."""
    OVERDUE = 16
    """Freed capacity is kept for it from now on, as jobs that ran before it end."""
    STARVING = 64
    """Starving: when its turn comes, it goes before higher priorities, too. See `starvation_guard.py`."""
