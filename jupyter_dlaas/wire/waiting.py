"""Waiting reasons: why a learner or a guardian of a placed job does not run yet. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WaitingReason"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingReason:
    """Reason why a process of a job that has its seats does not run yet."""

    member: int | None = None
    """Member that waits; None: its guardian, or the job as a whole."""
    code: str
    """Stable code of the cause: "image_pull", "unschedulable", "quota", "volume", "starting", "unavailable" …"""
    object: str = ""
    """Name of the object that waits or blocks, as its tools print it: "pod ml/digits-1-m0"."""
    what: str
    """Sentence: "The image python:3.12 is being pulled."."""
    advice: str = ""
    """Sentence that says what to do; empty if waiting is enough."""
    since_s: float | None = None
    """Time since which it waits for this."""
