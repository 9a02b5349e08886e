"""Choice of a guardian's next action from the wanted and the observed state. Pure: no clock, files or processes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from jupyter_dlaas.wire.journal import Goal, Wanted

__all__ = ["FLAGS", "RULES", "Act", "Rule", "Seen", "agree", "decide"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Row of the decision table. A condition that is None holds for both values."""

    act: Act
    goal: Goal | None = None
    is_alive: bool | None = None
    """Learners are alive."""
    is_broken: bool | None = None
    is_changing: bool | None = None
    is_leaving: bool | None = None
    is_newer: bool | None = None
    """The wanted generation is newer than the one that was started last."""
    may_change: bool | None = None
    is_complete: bool | None = None

    def fits(self, goal: Goal, flags: Mapping[str, bool]) -> bool:
        """Return whether all conditions hold."""
        if self.goal is not None and self.goal is not goal:
            return False
        return all(getattr(self, name) in (None, value) for name, value in flags.items())


RULES: Final = (
    Rule(act=Act.END, goal=Goal.STOP, is_alive=True),
    Rule(act=Act.STOPPED, goal=Goal.STOP),
    # Learners are alive.
    Rule(act=Act.END, is_alive=True, is_broken=True),
    Rule(act=Act.CHANGE, is_alive=True, is_changing=True, is_leaving=False),  # a committed change is finished first
    Rule(act=Act.LEAVE, is_alive=True, is_leaving=True),
    Rule(act=Act.LEAVE, is_alive=True, goal=Goal.HALT),
    Rule(act=Act.CHANGE, is_alive=True, is_newer=True, may_change=True),
    Rule(act=Act.LEAVE, is_alive=True, is_newer=True),
    Rule(act=Act.WAIT, is_alive=True),
    # No learner is alive. A complete job needs no halt: no training is left to resume.
    Rule(act=Act.COMPLETE, is_complete=True),
    Rule(act=Act.HALTED, goal=Goal.HALT),
    Rule(act=Act.START, is_newer=True),
    # A halt was withdrawn too late. The job is closed all the same: a caller that wants it to run requests that again.
    Rule(act=Act.HALTED, is_leaving=True),
    Rule(act=Act.WAIT),
)
"""Decision table of a guardian: the first row whose conditions hold gives the action."""
FLAGS: Final = ("is_alive", "is_broken", "is_changing", "is_leaving", "is_newer", "may_change", "is_complete")
"""Conditions of a rule beside the goal."""


def decide(wanted: Wanted | None, seen: Seen) -> Act:
    """Return the next action.

    The guardian calls this function after each change of state. Carrying out an action twice must have no further
    effect.
    """
    if wanted is None:
        return Act.WAIT
    return _act(
        wanted.goal,
        seen.alive > 0,
        seen.is_broken,
        seen.is_changing,
        seen.is_leaving,
        wanted.generation > seen.generation,
        seen.may_change,
        seen.is_complete,
    )


@functools.cache
def _act(goal: Goal, *flags: bool) -> Act:
    """Return the action of the first row that fits; flags are in the order of `FLAGS`."""
    state = dict(zip(FLAGS, flags, strict=True))
    return next(rule.act for rule in RULES if rule.fits(goal, state))


def agree(passed: Iterable[int | None]) -> int:
    """Return the step boundary at which all learners leave: the first that none of them has passed.

    Each learner reports how many boundaries it has passed and waits at the next one for the agreed boundary. A learner
    that has not begun yet (None) will reach every boundary.
    """
    return max((0 if count is None else count for count in passed), default=0)
