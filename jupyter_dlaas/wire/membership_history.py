"""Membership of a job over time: changes of its size, and interruptions of its training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Interruption", "Resize", "ran_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Change of a job's size: time, step, learners before and after, initiator, and pause in seconds.

    `by` is "you", "program" (`run.request_gpus`), "schedule", "auto" (the autoscaler), "pool", "drain" or "lost".
    """

    at_s: float
    step: int
    before: int
    after: int
    by: str
    idle_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Time in which a job did not train because it was preempted or halted, or lost learners.

    `by`: "preempted", "halted" or "lost". `text`: a sentence for the job's owner.
    """

    at_s: float
    """Time at which training stopped."""
    step: int
    before: int
    """Number of learners that trained until then."""
    by: str
    text: str
    held_s: float | None = None
    """Time since which the job holds devices again; None if it holds none."""
    to_s: float | None = None
    """Time since which the job trains again; None if it does not train yet."""
    after: int | None = None
    """Number of learners that train since then."""


def ran_s(started_s: float | None, ended_s: float | None, interruptions: Iterable[Interruption]) -> float | None:
    """Return how long an ended job trained, without its interruptions; None if it never trained or has not ended."""
    if started_s is None or ended_s is None:
        return None
    stopped_s = sum((ended_s if one.to_s is None else one.to_s) - one.at_s for one in interruptions)
    return max(0.0, ended_s - started_s - stopped_s)
