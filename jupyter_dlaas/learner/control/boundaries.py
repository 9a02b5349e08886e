"""Where a learner stops: the agreement with its guardian, as the training loop and the control thread share it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from jupyter_dlaas.learner.control.guardian_channel import Control

__all__ = ["Boundaries", "Switch", "Verdict"]

_PART_S: Final = 60.0
"""So long who is to leave waits for the others at most."""
_NOTHING_KEPT: Final = (
    "[a checkpoint was asked for: it is taken when run.epochs, run.batches or a framework's fit begins]"
)
_LOOSE_S: Final = 20.0
"""How long a learner without a guardian may take to its next boundary before a signal ends it."""


class Verdict(StrEnum):
    """What a learner does at a boundary."""

    GO = "go"
    STOP = "stop"
    SWITCH = "switch"
    """Change over into another group, then ask again."""


@dataclass(frozen=True, slots=True)
class Switch:
    """From boundary `at` on train in the group of this round; `at` None: at once."""

    round: int
    generation: int
    members: tuple[int, ...]
    at: int | None


class Boundaries:
    """Knows at which step boundary this learner stops, or changes over into another group.

    PROPOSE: from now on it passes no further boundary untold, and says how many it has passed. COMMIT or SWITCH: the
    boundary at which all learners do so. Until then a boundary costs one uncontended lock, and nothing is sent.
    A boundary is known by the number of those before it, which is the same in all learners.
    """

    def __init__(self, control: Control | None) -> None:
        self._changed = threading.Condition()
        self._passed: int | None = None
        """None: no loop has begun."""
        self._limit: int | None = None
        self._stop_at: int | None = None
        self._switch: Switch | None = None
        self._let_go = 0
        """Who was to leave for this round, or an earlier one, may do so."""
        self._control = control
        self._is_asking = False
        """It waits for a word."""
        self.round = 0
        """The group in use: the first one, or the last that was switched to."""
        self.asked = self.kept = 0
        """Requests for a checkpoint: the last that came, and the last that was taken care of."""
        self.is_stopping = False
        """A stop was asked for; read without the lock."""
        self.on_build: Callable[[dict[str, Any]], None] | None = None
        """Takes the message that tells to build a group."""
        self.on_urgent: Callable[[int], None] | None = None
        """All groups before this round are lost: frees a thread that waits in one."""
        self.on_told: Callable[[], None] | None = None
        """Something is asked of this learner: the next boundary is to be looked at. Called in the control thread."""
        self.is_between = False
        """The program is between two trainings of a framework, with nothing to save: it may be stopped anywhere."""
        if control is not None:
            control.on_message = self._told
            control.on_orphaned = self._orphaned
            control.beats.step = lambda: self._passed
            control.beats.waits_for_word = lambda: self._is_asking

    @property
    def wants_checkpoint(self) -> bool:
        """Somebody waits for one."""
        return self.asked > self.kept

    def begin(self) -> None:
        """The loop begins: from now on there are boundaries."""
        with self._changed:
            if self._passed is None:
                self._passed = 0

    def ask(self, step: int | None = None, *, is_stranded: bool = False) -> Verdict:
        """At a boundary. Waits while the others have not agreed yet.

        `step`: how many steps are before it, where learners may begin at different ones; else boundaries are counted.
        `is_stranded`: the group is lost; nothing can go on before there is another.
        """
        with self._changed:
            step = step if step is not None else self._passed or 0
            while True:
                if self._switch is not None and (self._switch.at is None or step >= self._switch.at):
                    return Verdict.SWITCH
                if self._stop_at is not None:
                    if step >= self._stop_at or is_stranded:
                        return Verdict.STOP
                    break
                if not is_stranded and (self._limit is None or step < self._limit or self._switch is not None):
                    break
                self._wait()
            self._passed = step + 1
            return Verdict.GO

    def passed(self) -> None:
        """A boundary was passed without a look, by a learner that is alone and may choose where it stops."""
        assert self._passed is not None
        self._passed += 1

    def take(self) -> Switch | None:
        """The switch that is due; waits for one where there is none yet. None: stop instead."""
        with self._changed:
            while self._switch is None and self._stop_at is None:
                self._wait()
            found, self._switch, self._limit = self._switch, None, None
            if found is not None:
                self.round = found.round
        return found

    def may_leave(self, number: int) -> bool:
        """Wait until the others are together in the group of this round; False if they need this learner after all."""
        with self._changed:
            self._is_asking = True
            self._changed.wait_for(lambda: self._let_go >= number or self._switch or self._stop_at is not None, _PART_S)
            self._is_asking = False
            return self._switch is None

    def _wait(self) -> None:
        self._is_asking = True
        self._changed.wait()
        self._is_asking = False

    def between(self) -> None:
        """A framework's training is through, and kept: nobody needs to wait for the next boundary."""
        self.is_between = True
        with self._changed:
            is_told = self._stop_at is not None
        if is_told:
            os.kill(os.getpid(), signal.SIGTERM)

    # -- in the control thread

    def _told(self, message: dict[str, Any]) -> None:
        kind = message.get("t")
        if kind == "propose":
            is_regroup = message.get("round") is not None
            with self._changed:
                self._limit = self._passed or 0
                self.is_stopping = self.is_stopping or not is_regroup
                passed, stop_at = self._passed, self._stop_at
            if self._control is not None:
                if is_regroup:
                    self._control.state(is_held=True)
                    self._control.tell(t="agrees", round=message["round"], tick=passed or 0)
                else:
                    self._control.state(is_limited=True)
                    self._control.tell(t="promise", n=message.get("n"), tick=passed, told=stop_at)
        elif kind == "commit":
            self._stop(int(message["at"]))
        elif kind == "build" and self.on_build is not None:
            self.on_build(message)
        elif kind == "switch":
            at = message.get("at")
            switch = Switch(int(message["round"]), int(message["generation"]), tuple(message["members"]), at)
            if switch.round <= self.round:
                return  # said again after a guardian was away
            if at is None and self.on_urgent is not None:
                self.on_urgent(switch.round)  # first, so that it cannot hit the group that is entered next
            with self._changed:
                self._switch = switch
                self._changed.notify_all()
        elif kind == "go":
            with self._changed:
                self._let_go = int(message["round"])
                self._changed.notify_all()
        elif kind == "checkpoint":
            self.asked = max(self.asked, int(message["n"]))
            if self._passed is None and self.wants_checkpoint:
                print(_NOTHING_KEPT, flush=True)
            elif not self.wants_checkpoint and self._control is not None:
                self._control.tell(t="checkpoint")  # asked again: the guardian may have missed it
        elif kind == "leave":
            os.kill(os.getpid(), signal.SIGTERM)
        self.call_up()

    def call_up(self) -> None:
        """Something is asked of this learner: the next boundary is to be looked at."""
        if self.on_told is not None:
            self.on_told()

    def _stop(self, at: int) -> None:
        with self._changed:
            self._stop_at = at
            self.is_stopping = True
            self._changed.notify_all()
        self.call_up()
        if self.is_between:
            os.kill(os.getpid(), signal.SIGTERM)

    def _orphaned(self) -> None:
        """Nobody guards this job: stop at the very next boundary; rank 0's checkpoint does not need the others."""
        with self._changed:
            has_begun = self._passed is not None
        self._stop(0)
        if not has_begun:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        timer = threading.Timer(_LOOSE_S, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
