"""Where a learner stops: the agreement with its guardian, as the training loop and the control thread share it."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Final

from jupyter_dlaas.learner.control import Control

__all__ = ["Boundaries"]

_LOOSE_S: Final = 30.0
"""How long a learner without a guardian may take to its next boundary before a signal ends it."""


class Boundaries:
    """Counts the step boundaries that this learner passed, and knows at which one it stops.

    PROPOSE: from now on it passes no further boundary untold, and says how many it has passed. COMMIT: the boundary at
    which all learners stop. Until then a boundary costs one uncontended lock, and nothing is sent.
    """

    def __init__(self, control: Control | None) -> None:
        self._changed = threading.Condition()
        self._passed: int | None = None
        """None: no loop has begun."""
        self._limit: int | None = None
        self._stop_at: int | None = None
        self._control = control
        self.wants_checkpoint = False
        self.is_stopping = False
        """A stop was asked for; read without the lock."""
        self.is_between = False
        """The program is between two trainings of a framework, with nothing to save: it may be stopped anywhere."""
        if control is not None:
            control.on_message = self._told
            control.on_orphaned = self._orphaned

    def begin(self) -> None:
        """The loop begins: from now on there are boundaries."""
        with self._changed:
            if self._passed is None:
                self._passed = 0

    def may_pass(self) -> bool:
        """At a boundary: True to go on, False to stop here. Waits while the others have not agreed yet."""
        with self._changed:
            passed = self._passed or 0
            while self._limit is not None and self._stop_at is None and passed >= self._limit:
                self._changed.wait()
            if self._stop_at is not None and passed >= self._stop_at:
                return False
            self._passed = passed + 1
            return True

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
            with self._changed:
                self._limit = self._passed or 0
                self.is_stopping = True
                passed, stop_at = self._passed, self._stop_at
            if self._control is not None:
                self._control.state(is_limited=True)
                self._control.tell(t="promise", n=message.get("n"), tick=passed, told=stop_at)
        elif kind == "commit":
            self._stop(int(message["at"]))
        elif kind == "checkpoint":
            self.wants_checkpoint = True
        elif kind == "leave":
            os.kill(os.getpid(), signal.SIGTERM)

    def _stop(self, at: int) -> None:
        with self._changed:
            self._stop_at = at
            self.is_stopping = True
            self._changed.notify_all()
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
