"""Graceful shutdown of learners: at an agreed step boundary, otherwise by SIGTERM and then SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Final

from jupyter_dlaas.runtime.guardian.decide import agree
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.hosts.learner_host import LearnerHost
from jupyter_dlaas.wire.learner_messages import ProposeStop, StopAt, to_line

__all__ = ["TERM_S", "GracefulShutdown"]

TERM_S: Final = 5.0
"""Seconds from SIGTERM to SIGKILL if nothing needs to be saved."""


class GracefulShutdown:
    """Shutdown of one generation. Called repeatedly until no learner is left; each step is carried out once."""

    def __init__(self, host: LearnerHost, end_rendezvous: Callable[[], None]) -> None:
        """Call `end_rendezvous` after SIGTERM: a learner that waits there in native code handles no signal before."""
        self._host, self._end_rendezvous = host, end_rendezvous
        self._leave_at: list[tuple[float, int]] | None = None
        self._end_at: list[tuple[float, int]] | None = None
        self._proposal = 0
        self._stop_at: int | None = None

    @property
    def is_leaving(self) -> bool:
        """True if the learners were asked to leave."""
        return self._leave_at is not None

    def due(self) -> float | None:
        """Return the time of the next signal, by the monotonic clock."""
        return min((steps[0][0] for steps in (self._leave_at, self._end_at) if steps), default=None)

    def leave(self, alive: Sequence[Learner], grace_s: float, now: float) -> None:
        """Let learners reach a boundary, write a checkpoint and exit. Kill those left after the grace period."""
        if self._leave_at is None:
            have_begun = any(one.trains_from is not None for one in alive)
            # Without a training loop there is no boundary to stop at and nothing new to save, so a signal suffices.
            polite_s = grace_s if have_begun else 0.0
            kill_s = polite_s + (TERM_S if have_begun else grace_s)
            self._leave_at = [(now + polite_s, signal.SIGTERM), (now + kill_s, signal.SIGKILL)]
            self._proposal += 1
        for one in alive:
            one.is_asked = True
            if one.uses_run and one.is_connected and one.proposed != self._proposal:
                one.proposed = self._proposal
                self._host.send(one.member, to_line(ProposeStop(proposal=self._proposal)))
        self._commit(alive)
        self._pass(self._leave_at, alive, now)

    def _commit(self, alive: Sequence[Learner]) -> None:
        """Send the boundary to stop at, once all have agreed not to run past it."""
        promises = {
            one.member: one.promise
            for one in alive
            if one.promise is not None and one.promise.proposal == self._proposal
        }
        if self._stop_at is None:
            if len(promises) < len(alive):
                return
            committed = [one.committed_boundary for one in promises.values() if one.committed_boundary is not None]
            self._stop_at = max(committed) if committed else agree(one.boundaries_passed for one in promises.values())
        for one in alive:
            if one.is_connected and one.member in promises and not one.is_stop_sent:
                one.is_stop_sent = True
                self._host.send(one.member, to_line(StopAt(proposal=self._proposal, boundary=self._stop_at)))

    def end(self, alive: Sequence[Learner], words_s: float, grace_s: float, now: float) -> None:
        """End the learners: their work no longer counts. For `words_s` seconds they may still report failures."""
        if self._end_at is None:
            self._end_at = [(now + words_s, signal.SIGTERM), (now + words_s + grace_s, signal.SIGKILL)]
        self._pass(self._end_at, alive, now)

    def _pass(self, steps: list[tuple[float, int]], alive: Sequence[Learner], now: float) -> None:
        while steps and steps[0][0] <= now:
            _, number = steps.pop(0)
            for one in alive:
                one.is_asked = True
                self._host.signal(one.member, number)
                if number == signal.SIGTERM:
                    self._host.signal(one.member, signal.SIGCONT)  # a stopped process receives no SIGTERM
            if number == signal.SIGTERM:
                self._end_rendezvous()
