"""Range of trained steps, as manifests, results and messages between learner and guardian record it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Range"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Steps [first, end) of the job, all in one epoch."""

    epoch: int
    first: int
    end: int
