"""Choice of a guardian's next action from the wanted and the observed state. Pure: no clock, files or processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from jupyter_dlaas.wire.journal import Goal, Wanted

__all__ = ["Act", "Seen", "agree", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Observed state of a job: the generation that was started last (-1: none) and the state of its learners."""

    generation: int
    alive: int
    """Number of learners whose process exists."""
    is_broken: bool = False
    """True if a learner of this generation failed without being asked to end."""
    is_complete: bool = False
    """True if this generation finished its program: its rank 0 ended with outcome "ok" and no learner failed."""
    may_change: bool = False
    """True if the gang can change to the wanted generation while it trains."""
    is_changing: bool = False
    """True if a membership change is committed and can no longer be cancelled."""
    is_leaving: bool = False
    """True if the learners of this generation were asked to leave.

    The request cannot be withdrawn, because some learners may already be shutting down.
    """


class Act(StrEnum):
    """Next action of a guardian."""

    WAIT = "wait"
    START = "start"
    """Start the wanted generation."""
    CHANGE = "change"
    """Change the gang to the wanted generation while it trains."""
    LEAVE = "leave"
    """Let the living learners write a checkpoint and exit."""
    END = "end"
    """End the living learners now: their work no longer counts."""
    COMPLETE = "complete"
    HALTED = "halted"
    STOPPED = "stopped"


def decide(wanted: Wanted | None, seen: Seen) -> Act:
    """Return the next action.

    The guardian calls this function after each change of state. Carrying out an action twice must have no further
    effect.
    """
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
        return Act.COMPLETE  # also if a halt arrives at the last moment: no training is left to resume
    if wanted.goal is Goal.HALT:
        return Act.HALTED
    if wanted.generation > seen.generation:
        return Act.START
    # A halt was withdrawn too late. Close the job all the same, so that a caller that wants it to run asks for it anew.
    return Act.HALTED if seen.is_leaving else Act.WAIT


def agree(passed: Iterable[int | None]) -> int:
    """Return the step boundary at which all learners leave: the first that none of them has passed.

    Each learner reports how many boundaries it has passed and waits at the next one for the agreed boundary. A learner
    that has not begun yet (None) will reach every boundary.
    """
    return max((0 if count is None else count for count in passed), default=0)
