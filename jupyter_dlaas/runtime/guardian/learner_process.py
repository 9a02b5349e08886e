"""Learner processes as the guardian knows them: identity, reported state and exit status."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from jupyter_dlaas.jobdir.journal_replay import int_or
from jupyter_dlaas.runtime.system.json_lines import Lines, Message
from jupyter_dlaas.runtime.system.process import Identity, boot_id, marked, open_process
from jupyter_dlaas.wire.codec import Invalid, decode
from jupyter_dlaas.wire.journal import Fact
from jupyter_dlaas.wire.protocol import Failure

__all__ = ["Learner", "find_living"]


@dataclass(slots=True)
class Learner:
    """Learner process that is alive or has just ended."""

    member: int
    generation: int
    rank: int
    who: Identity
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
    is_told: bool = False
    """True if the boundary to stop at was sent over `line`."""
    promise: tuple[int, int | None, int | None] | None = None
    """(number of the proposal, next boundary, boundary that an earlier guardian committed)."""
    trains_as: int = -1
    """Generation that the learner reports. It keeps the old one through changes that did not affect it."""
    may_change: bool = False
    """True if it can change to other process groups while it trains."""
    round: int = 0
    """Membership epoch that it trains in; -1 while it joins and is in no group yet."""
    built: int = -1
    is_waiting: bool = False
    is_held: bool = False
    stranded: int = -1
    """Membership epoch of the group that no longer answers it."""
    missed: int = -1
    """Newest membership epoch whose group it could not build or enter."""
    agreed: tuple[int, int] | None = None
    idle_s: float | None = None
    trained: tuple[Any, ...] = ()
    """Steps trained per finished generation, as `Range`s."""
    heard: set[object] = field(default_factory=set)
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

    def listen(self, message: Message) -> None:
        """Record the state that a learner reports. A hello repeats all of it to a new guardian."""
        kind = message.get("t")
        if kind in ("hello", "run", "training"):
            self.uses_run = self.uses_run or message.get("uses_run") is True
            self.is_limited = self.is_limited or message.get("is_limited") is True
            self._listen_to_changes(message)
            step, up_s = message.get("step"), message.get("up_s")
            if isinstance(step, int):
                self.trains_from = step
                self.began_s = float(up_s) if isinstance(up_s, int | float) else None
        elif kind == "failed":
            with suppress(Invalid):
                self.failure = decode(Failure, message.get("failure"), unknown="ignore")
        elif kind == "agrees":
            self.agreed = (int_or(message.get("round"), -1), int_or(message.get("tick"), 0))
        elif kind == "promise":
            number, tick, told = message.get("n"), message.get("tick"), message.get("told")
            if isinstance(number, int):
                self.promise = (
                    number,
                    tick if isinstance(tick, int) else None,
                    told if isinstance(told, int) else None,
                )

    def _listen_to_changes(self, message: Message) -> None:
        self.may_change = self.may_change or message.get("may_change") is True
        self.round = int_or(message.get("round"), self.round)
        self.trains_as = int_or(message.get("generation"), self.trains_as)
        self.built = int_or(message.get("built"), self.built)
        self.stranded = int_or(message.get("stranded"), self.stranded)
        self.missed = int_or(message.get("missed"), self.missed)
        self.is_waiting = message.get("is_waiting") is True
        self.is_held = message.get("is_held") is True
        idle_s, trained = message.get("idle_s"), message.get("trained")
        self.idle_s = float(idle_s) if isinstance(idle_s, int | float) else None
        self.trained = tuple(trained) if isinstance(trained, list) else self.trained

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def find_living(job_dir: str, up: Mapping[int, Fact], ever: frozenset[int]) -> dict[int, tuple[Identity, int]]:
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
    for who, number in marked(job_dir):
        if number is not None and number not in ever:
            candidates.setdefault(number, who)
    living: dict[int, tuple[Identity, int]] = {}
    for member, who in sorted(candidates.items()):
        fd = open_process(who, job_dir)
        if fd is not None:
            living[member] = (who, fd)
    return living
