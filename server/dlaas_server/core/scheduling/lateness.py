"""Lateness of a waiting gang: from on time to forgotten."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Late"]


class Late(IntEnum):
    """How far past its bound a job waits, or did when it last got seats. The value is the multiple of the bound."""

    NOT = 0
    LIFTED = 1
    """Goes before its equals, and once it runs makes room for late ones only."""
    LATE = 4
    """Going first did not help: it is promised a time, may preempt who is not late, and then is safe for a while."""
    OVERDUE = 16
    """The promise did not help: whatever it needs is kept for it from now on, as jobs that ran before it end."""
    FORGOTTEN = 64
    """Higher priorities left it no room: when its turn comes, it goes before these too. See `starvation_guard.py`."""
