"""View of a job's learner. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LearnerView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerView:
    """Training process. `state`: Starting, Joining, Training, Leaving, Lost, Ended."""

    member: int
    generation: int
    rank: int
    node: str
    devices: tuple[str, ...]
    state: str
    pod: str = ""
    """Pod in which it runs; empty if it runs in none."""
