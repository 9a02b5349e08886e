"""Step boundaries: the agreement with the guardian where a learner stops or changes its group.

The training loop and the control thread share it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from jupyter_dlaas.learner.control.guardian_channel import Control
from jupyter_dlaas.wire.learner_messages import (
    BuildGroup,
    ChangeAgreement,
    CheckpointRequest,
    CheckpointWritten,
    Dismiss,
    GuardianMessage,
    ProposeChange,
    ProposeStop,
    Release,
    StopAgreement,
    StopAt,
    SwitchGroup,
)

__all__ = ["Boundaries", "Verdict"]

_PART_S: Final = 60.0
"""The maximum time in seconds that a leaving learner waits for the others."""
_NOTHING_KEPT: Final = (
    "[a checkpoint was requested: it is written when run.epochs, run.batches or a framework's fit begins]"
)
_ORPHAN_S: Final = 20.0
"""The time in seconds in which a learner without a guardian must reach a boundary before a signal ends it."""


class Verdict(StrEnum):
    """The action of a learner at a boundary."""

    GO = "go"
    STOP = "stop"
    SWITCH = "switch"
    """Enter another group, then check again."""


class Boundaries:
    """The step boundaries at which this learner stops or changes its group.

    PROPOSE: the learner passes no further boundary without permission, and replies how many it has passed. COMMIT or
    SWITCH: the boundary at which all learners stop or change. Otherwise a boundary costs one uncontended lock, and
    nothing is sent. A boundary is identified by the number of those before it, which is equal in all learners.
    """

    def __init__(self, control: Control | None) -> None:
        self._changed = threading.Condition()
        self._passed: int | None = None
        """The number of boundaries passed; None before the loop has begun."""
        self._limit: int | None = None
        self._stop_at: int | None = None
        self._switch: SwitchGroup | None = None
        self._let_go = 0
        """The last membership epoch for which a leaving learner has permission to leave."""
        self._control = control
        self._is_asking = False
        """True while the learner waits for a decision of the guardian."""
        self.membership_epoch = 0
        """The membership epoch of the current group: the first one, or the last one switched to."""
        self.asked = self.kept = 0
        """The numbers of the last checkpoint request received and of the last one handled."""
        self.is_stopping = False
        """True once a stop was requested; read without the lock."""
        self.on_build: Callable[[BuildGroup], None] | None = None
        """Called with the order to build a group."""
        self.on_urgent: Callable[[int], None] | None = None
        """Called when all groups before this epoch are lost, to release a thread that waits in one."""
        self.on_request: Callable[[], None] | None = None
        """Called in the control thread on a request that the next boundary must handle."""
        self.is_between = False
        """True between two trainings of a framework, with nothing to save: the program may be stopped anywhere."""
        if control is not None:
            control.on_message = self._on_message
            control.on_orphaned = self._orphaned
            control.beats.step = lambda: self._passed
            control.beats.awaits_guardian = lambda: self._is_asking

    @property
    def wants_checkpoint(self) -> bool:
        """True if a checkpoint was requested and not taken yet."""
        return self.asked > self.kept

    def begin(self) -> None:
        """Begin the loop: boundaries are counted from now on."""
        with self._changed:
            if self._passed is None:
                self._passed = 0

    def ask(self, step: int | None = None, *, is_stranded: bool = False) -> Verdict:
        """Return the action at a boundary; wait if the learners have not agreed on one yet.

        `step`: the number of steps before it, if learners may begin at different steps; otherwise boundaries are
        counted. `is_stranded`: the group is lost, and training cannot continue before there is another.
        """
        with self._changed:
            step = step if step is not None else self._passed or 0
            while True:
                if self._switch is not None and (self._switch.boundary is None or step >= self._switch.boundary):
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
        """Count a boundary without asking, in a learner that trains alone and may choose where it stops."""
        assert self._passed is not None
        self._passed += 1

    def take(self) -> SwitchGroup | None:
        """Return the due switch; wait for one if necessary. None: stop instead."""
        with self._changed:
            while self._switch is None and self._stop_at is None:
                self._wait()
            found, self._switch, self._limit = self._switch, None, None
            if found is not None:
                self.membership_epoch = found.membership_epoch
        return found

    def may_leave(self, number: int) -> bool:
        """Wait until the others have entered the group of this epoch; return False if this learner is needed again."""
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
        """Mark the program as between trainings, with its state saved, so that no boundary is needed to stop it."""
        self.is_between = True
        with self._changed:
            is_stop_requested = self._stop_at is not None
        if is_stop_requested:
            os.kill(os.getpid(), signal.SIGTERM)

    # -- in the control thread

    def _on_message(self, message: GuardianMessage) -> None:
        if isinstance(message, ProposeChange):
            passed, _ = self._hold()
            if self._control is not None:
                self._control.update_state(is_held=True)
                self._control.send(
                    ChangeAgreement(membership_epoch=message.membership_epoch, boundaries_passed=passed or 0)
                )
        elif isinstance(message, ProposeStop):
            self.is_stopping = True
            passed, committed = self._hold()
            if self._control is not None:
                self._control.update_state(is_limited=True)
                self._control.send(
                    StopAgreement(proposal=message.proposal, boundaries_passed=passed, committed_boundary=committed)
                )
        elif isinstance(message, StopAt):
            self._stop(message.boundary)
        elif isinstance(message, BuildGroup):
            if self.on_build is not None:
                self.on_build(message)
        elif isinstance(message, SwitchGroup):
            if message.membership_epoch <= self.membership_epoch:
                return  # repeated after a guardian restart
            if message.boundary is None and self.on_urgent is not None:
                self.on_urgent(message.membership_epoch)  # first, so that it cannot affect the group entered next
            with self._changed:
                self._switch = message
                self._changed.notify_all()
        elif isinstance(message, Release):
            with self._changed:
                self._let_go = message.membership_epoch
                self._changed.notify_all()
        elif isinstance(message, CheckpointRequest):
            self.asked = max(self.asked, message.number)
            if self._passed is None and self.wants_checkpoint:
                print(_NOTHING_KEPT, flush=True)
            elif not self.wants_checkpoint and self._control is not None:
                self._control.send(CheckpointWritten())  # repeated request: the guardian may have missed the reply
        elif isinstance(message, Dismiss):
            os.kill(os.getpid(), signal.SIGTERM)
        self.call_up()

    def _hold(self) -> tuple[int | None, int | None]:
        """Pass no further boundary. Return the number passed, and the boundary to stop at if there is one."""
        with self._changed:
            self._limit = self._passed or 0
            return self._passed, self._stop_at

    def call_up(self) -> None:
        """Notify the training loop of a request that the next boundary must handle."""
        if self.on_request is not None:
            self.on_request()

    def _stop(self, at: int) -> None:
        with self._changed:
            self._stop_at = at
            self.is_stopping = True
            self._changed.notify_all()
        self.call_up()
        if self.is_between:
            os.kill(os.getpid(), signal.SIGTERM)

    def _orphaned(self) -> None:
        """Stop at the next boundary, since no guardian answers; rank 0's checkpoint does not need the others."""
        with self._changed:
            has_begun = self._passed is not None
        self._stop(0)
        if not has_begun:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        timer = threading.Timer(_ORPHAN_S, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
