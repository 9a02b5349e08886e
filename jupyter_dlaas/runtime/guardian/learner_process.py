"""The learners of a job as its guardian knows them: who they are, what they said, how they ended."""

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
    """One learner process, alive or just gone."""

    member: int
    generation: int
    rank: int
    who: Identity
    pidfd: int | None = None
    """None: gone."""
    line: Lines | None = None
    is_adopted: bool = False
    """An earlier guardian started it."""
    is_ready: bool = False
    uses_run: bool = False
    trains_from: int | None = None
    """The step at which its loop began."""
    began_s: float = 0.0
    is_asked: bool = False
    """It was told to leave or to end: how it ends says nothing about it."""
    is_limited: bool = False
    """It promised somebody to wait at its next boundary."""
    proposed: int = 0
    """The last proposal that went over `line`."""
    is_told: bool = False
    """Where to stop went over `line`."""
    promise: tuple[int, int | None, int | None] | None = None
    """(number of the proposal, boundary it is before, boundary that an earlier guardian told it)."""
    trains_as: int = -1
    """The generation that it says it trains in: changes of it pass by a learner that had nothing to change."""
    may_change: bool = False
    """It can go over into other groups while it trains."""
    round: int = 0
    """The group that it trains in; -1: it joins, and is in none yet."""
    built: int = -1
    is_waiting: bool = False
    is_held: bool = False
    stranded: int = -1
    """The group that does not answer it any more."""
    missed: int = -1
    """The newest group that it could not build, or not come into."""
    agreed: tuple[int, int] | None = None
    idle_s: float | None = None
    trained: tuple[Any, ...] = ()
    """Per generation that it is through with: what it trained, as `Range`s."""
    heard: set[object] = field(default_factory=set)
    """Orders that went over `line`."""
    failure: Failure | None = None
    """Why this guardian ended it, or what it failed of where its disk is full."""
    is_done: bool = False
    """It came to the program's end."""
    status: int | None = None
    """As `waitpid` gave it; None for a learner that was adopted."""
    oom_kills: int = 0

    def __post_init__(self) -> None:
        self.trains_as = self.generation

    @property
    def is_alive(self) -> bool:
        return self.pidfd is not None

    def listen(self, message: Message) -> None:
        """Take in what the learner says of itself; a hello repeats all of it after a guardian was away."""
        kind = message.get("t")
        if kind in ("hello", "run", "training"):
            self.uses_run = self.uses_run or message.get("uses_run") is True
            self.is_limited = self.is_limited or message.get("is_limited") is True
            self._listen_to_changes(message)
            step, at_s = message.get("step"), message.get("at_s")
            if isinstance(step, int):
                self.trains_from = step
                self.began_s = float(at_s) if isinstance(at_s, int | float) else 0.0
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
    """The learners of an earlier guardian that are alive: member -> who it is and a pidfd.

    Named by the journal, or, where the guardian died between starting one and writing it down, found by the job's mark:
    of the processes with the mark of a member that the journal never named the oldest is the learner, the others are
    its children.
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
