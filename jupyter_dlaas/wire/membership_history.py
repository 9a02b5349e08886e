"""Membership of a job over time: changes of its size, and interruptions of its training."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Interruption", "Resize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """One change of size: when, at which step, from, to, by whom, pause in seconds.

    By "you", "program" (`run.request_gpus`), "schedule", "auto" (the autoscaler), "pool", "drain" or "lost".
    """

    at_s: float
    step: int
    before: int
    after: int
    by: str
    idle_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """A time in which a job did not train: it was preempted or halted, or learners were lost.

    `by`: "preempted", "halted" or "lost". `text`: a sentence for the job's owner.
    """

    at_s: float
    """When training stopped."""
    step: int
    before: int
    """Learners that trained until then."""
    by: str
    text: str
    held_s: float | None = None
    """Since when it holds devices again; None: it holds none."""
    to_s: float | None = None
    """Since when it trains again; None: not yet."""
    after: int | None = None
    """Learners that train since then."""
