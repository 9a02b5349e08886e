"""Learner processes as the guardian knows them: identity, reported state and exit status."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_dlaas.runtime.system.json_lines import Lines
from jupyter_dlaas.runtime.system.process import Identity, boot_id, marked, open_process
from jupyter_dlaas.wire.journal import LearnerUp
from jupyter_dlaas.wire.learner_messages import (
    ChangeAgreement,
    FailureReport,
    GenerationSteps,
    LearnerMessage,
    LearnerState,
    StopAgreement,
)
from jupyter_dlaas.wire.protocol import Failure

__all__ = ["Learner", "find_living"]


@dataclass(slots=True)
class Learner:
    """Learner process that is alive or has just ended."""

    member: int
    generation: int
    rank: int
    process: Identity
    pidfd: int | None = None
    """Pidfd of the process; None once it is gone."""
    line: Lines | None = None
    is_adopted: bool = False
    """True if an earlier guardian started it."""
    is_ready: bool = False
    uses_run: bool = False
    trains_from: int | None = None
    """Step at which its training loop began."""
    began_s: float | None = None
    """Uptime of the machine at that time."""
    is_asked: bool = False
    """True if it was asked to leave or end: its exit status then says nothing about a failure."""
    is_limited: bool = False
    """True if it agreed to wait at its next step boundary."""
    proposed: int = 0
    """Number of the last proposal that was sent over `line`."""
    is_stop_sent: bool = False
    """True if the boundary to stop at was sent over `line`."""
    promise: StopAgreement | None = None
    trains_as: int = -1
    """Generation that the learner reports. It keeps the old one through changes that did not affect it."""
    may_change: bool = False
    """True if it can change to other process groups while it trains."""
    membership_epoch: int = 0
    """Membership epoch that it trains in; -1 while it joins and is in no group yet."""
    built: int = -1
    is_waiting: bool = False
    is_held: bool = False
    stranded: int = -1
    """Membership epoch of the group that no longer answers it."""
    missed: int = -1
    """Newest membership epoch whose group it could not build or enter."""
    agreed: ChangeAgreement | None = None
    idle_s: float | None = None
    trained: tuple[GenerationSteps, ...] = ()
    orders_sent: set[object] = field(default_factory=set)
    """Orders that were sent over `line`."""
    failure: Failure | None = None
    """Failure for which this guardian ended it, or that it reported because its disk was full."""
    is_done: bool = False
    """True if it reached the end of its program."""
    status: int | None = None
    """Status from `waitpid`; None for an adopted learner."""
    oom_kills: int = 0

    def __post_init__(self) -> None:
        self.trains_as = self.generation

    @property
    def is_alive(self) -> bool:
        return self.pidfd is not None

    def listen(self, message: LearnerMessage) -> None:
        """Record what a learner reports. Its state is complete in each message, also for a new guardian."""
        if isinstance(message, LearnerState):
            self._listen_to_state(message)
        elif isinstance(message, FailureReport):
            self.failure = message.failure
        elif isinstance(message, ChangeAgreement):
            self.agreed = message
        elif isinstance(message, StopAgreement):
            self.promise = message

    def _listen_to_state(self, state: LearnerState) -> None:
        self.uses_run = self.uses_run or state.uses_run
        self.is_limited = self.is_limited or state.is_limited
        self.may_change = self.may_change or state.may_change
        self.membership_epoch = _newer(state.membership_epoch, self.membership_epoch)
        self.trains_as = _newer(state.generation, self.trains_as)
        self.built = _newer(state.built_epoch, self.built)
        self.stranded = _newer(state.stranded_epoch, self.stranded)
        self.missed = _newer(state.missed_epoch, self.missed)
        self.is_waiting, self.is_held = state.is_waiting, state.is_held
        self.idle_s, self.trained = state.idle_s, state.trained or self.trained
        if state.step is not None:
            self.trains_from, self.began_s = state.step, state.up_s

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _newer(reported: int | None, known: int) -> int:
    return known if reported is None else reported


def find_living(job_dir: str, up: Mapping[int, LearnerUp], ever: frozenset[int]) -> dict[int, tuple[Identity, int]]:
    """Find the living learners of an earlier guardian: member -> identity and pidfd.

    The journal names them. If the guardian died after starting a learner and before recording it, the job's mark in the
    process environment finds it: among the processes with the mark of a member that the journal never named, the oldest
    is the learner and the others are its children.
    """
    candidates = {
        member: Identity(fact.pid, fact.start, fact.boot or boot_id())
        for member, fact in up.items()
        if fact.pid is not None and fact.start is not None
    }
    for process, number in marked(job_dir):
        if number is not None and number not in ever:
            candidates.setdefault(number, process)
    living: dict[int, tuple[Identity, int]] = {}
    for member, process in sorted(candidates.items()):
        fd = open_process(process, job_dir)
        if fd is not None:
            living[member] = (process, fd)
    return living
