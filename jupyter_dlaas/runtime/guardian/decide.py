"""What a guardian does next: from what is wanted and what is, without clock, files or processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from jupyter_dlaas.wire.journal import Goal, Wanted

__all__ = ["Act", "Seen", "agree", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A picture of a job: the last generation that was started (-1: none) and how it fares."""

    generation: int
    alive: int
    """Learners whose process exists."""
    is_broken: bool = False
    """A learner of this generation failed, unasked."""
    is_complete: bool = False
    """All learners of this generation ended well by themselves."""
    may_change: bool = False
    """They can go over into another generation while they train."""
    is_changing: bool = False
    """They are about to, and it cannot be taken back."""
    is_leaving: bool = False
    """The learners of this generation were asked to leave. That is not taken back: they may be half out already."""


class Act(StrEnum):
    """The one thing to do now."""

    WAIT = "wait"
    START = "start"
    """Start the wanted generation."""
    CHANGE = "change"
    """Bring the gang over into the wanted generation while it trains."""
    LEAVE = "leave"
    """Bring the living learners to a checkpoint and out."""
    END = "end"
    """End the living learners now: nothing they do counts any more."""
    COMPLETE = "complete"
    HALTED = "halted"
    STOPPED = "stopped"


def decide(wanted: Wanted | None, seen: Seen) -> Act:
    """The next act. Asked again after each change; doing the same act twice must do nothing twice."""
    if wanted is None:
        return Act.WAIT
    if wanted.goal is Goal.STOP:
        return Act.END if seen.alive else Act.STOPPED
    if seen.alive:
        if seen.is_broken:
            return Act.END
        if seen.is_changing and not seen.is_leaving:
            return Act.CHANGE
        if seen.is_leaving or wanted.goal is Goal.HALT:
            return Act.LEAVE
        if wanted.generation > seen.generation:
            return Act.CHANGE if seen.may_change else Act.LEAVE
        return Act.WAIT
    if seen.is_complete:
        return Act.COMPLETE  # also when a halt came in the last moment: there is nothing to go on with
    if wanted.goal is Goal.HALT:
        return Act.HALTED
    if wanted.generation > seen.generation:
        return Act.START
    # A halt that was taken back too late: closed all the same, so that whoever wants the job to run wants it anew.
    return Act.HALTED if seen.is_leaving else Act.WAIT


def agree(passed: Iterable[int | None]) -> int:
    """The boundary at which all leave: the first that none of them has passed.

    Each learner said how many boundaries it has passed, and that it passes no other before it is told where to stop.
    One that has not begun yet (None) will come to every boundary.
    """
    return max((0 if count is None else count for count in passed), default=0)
