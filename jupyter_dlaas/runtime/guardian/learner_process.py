"""The learners of a job as its guardian knows them: who they are, what they said, how they ended."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_dlaas.failures import diagnosis
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.runtime.spawn.launch import learner_folder
from jupyter_dlaas.runtime.system.json_lines import Lines, Message
from jupyter_dlaas.runtime.system.process import Identity, boot_id, marked, open_process
from jupyter_dlaas.wire.codec import Invalid, decode
from jupyter_dlaas.wire.journal import Fact, FactKind, Wanted
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = [
    "Learner",
    "Result",
    "Told",
    "find_living",
    "how_it_ended",
    "members_in",
    "read_result",
    "reap",
    "told",
    "was_let_go",
]


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
            self.agreed = (_number(message.get("round"), -1), _number(message.get("tick"), 0))
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
        self.round = _number(message.get("round"), self.round)
        self.trains_as = _number(message.get("generation"), self.trains_as)
        self.built = _number(message.get("built"), self.built)
        self.stranded = _number(message.get("stranded"), self.stranded)
        self.missed = _number(message.get("missed"), self.missed)
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


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A learner's last word."""

    outcome: str
    code: int
    failure: Failure | None = None
    step: int | None = None
    at_s: float | None = None
    trained: tuple[Any, ...] = ()
    results: tuple[str, ...] = ()


def read_result(job_dir: Path, member: int) -> Result | None:
    """What `learner-N/result.json` says; None when the learner was killed before it wrote it."""
    body = read_json(learner_folder(job_dir, member) / "result.json")
    try:
        return None if body is None else decode(Result, body, unknown="ignore")
    except Invalid:
        return None


def was_let_go(result: Result | None, member: int, wanted: Wanted | None) -> bool:
    """Whether somebody who ended before its guardian came left because nobody wanted it any more."""
    is_wanted = wanted is not None and member in {one.member for one in wanted.members}
    return not is_wanted and result is not None and result.outcome == "left"


def how_it_ended(learner: Learner, result: Result | None) -> tuple[int | None, int | None, Failure | None]:
    """Exit code, signal, and the failure where the learner was not asked to end."""
    code: int | None = None
    signal: int | None = None
    if learner.status is not None:
        ended = os.waitstatus_to_exitcode(learner.status)
        code, signal = (ended, None) if ended >= 0 else (None, -ended)
    elif result is not None:
        code = result.code
    if learner.is_asked:
        return code, signal, None
    if learner.failure is not None:
        return code, signal, learner.failure
    if result is None:
        is_full = diagnosis.oom_kills() > learner.oom_kills
        return code, signal, diagnosis.from_exit(code, signal, out_of_memory=is_full)
    if result.outcome == "left":
        return code, signal, result.failure or _UNGUARDED
    if result.outcome == "ok":
        return code, signal, None
    return code, signal, result.failure or diagnosis.exited(result.code)


_UNGUARDED = Failure(
    cause=Cause.PLATFORM,
    code="unguarded",
    what="left, since no guardian answered for a while",
    advice="Nothing to do: it goes on from its checkpoint.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the journal of earlier guardians says, as far as a new one needs it."""

    revision: int = -1
    closed_revision: int | None = None
    """The last revision that was seen before the job was closed, if nothing came after."""
    generation: int = -1
    up: Mapping[int, Fact]
    """Members that were started and not seen to end."""
    ever: frozenset[int] = frozenset()
    """All members that were ever started."""
    ready: frozenset[int] = frozenset()
    failed: Sequence[tuple[int, Failure]] = ()
    """Of the last generation, in the order in which they were seen."""
    members: frozenset[int] = frozenset()
    """Of the last generation."""
    ranks: Mapping[int, int]
    """Of its members."""
    order: tuple[int, ...] = ()
    """The members of the last generation that changed while it trained, in rank order."""
    together: int = -1
    """The last generation of which it was told that it trains."""
    plain: int = -1
    """That generation, if it was told that nothing of it could be gone on with, and nothing else since."""
    lost: int = -1
    storing: int = -1
    checkpoints: frozenset[tuple[int, int]] = frozenset()
    """(generation, step) of those that were told."""
    kept: int = 0
    """The last request for a checkpoint that one of them answers."""
    committed: Mapping[int, int]
    """Per generation the step up to which was told what it trained."""
    is_completed: bool = False

    def has_begun(self, member: int) -> bool:
        """Whether it was started for a generation that has trained: who came later only was to join."""
        fact = self.up.get(member)
        return fact is not None and (fact.generation or 0) <= self.together


def members_in(value: object) -> set[int]:
    """The numbers in a list of a JSON document; none where it is no list."""
    return {one for one in value if isinstance(one, int)} if isinstance(value, list) else set()


def told(facts: Iterable[Fact]) -> Told:
    """Fold a journal."""
    up: dict[int, Fact] = {}
    ready: set[int] = set()
    failed: list[tuple[int, Failure]] = []
    ranks: dict[int, int] = {}
    ever: set[int] = set()
    checkpoints: set[tuple[int, int]] = set()
    committed: dict[int, int] = {}
    order: tuple[int, ...] = ()
    revision = generation = together = plain = lost = storing = -1
    kept, closed = 0, None
    is_completed = False
    for fact in facts:
        its = -1 if fact.generation is None else fact.generation
        if fact.kind is FactKind.SEEN and fact.revision is not None:
            revision, closed = max(revision, fact.revision), None
        elif fact.kind is FactKind.LEARNER_UP and fact.member is not None:
            if its > generation:
                generation, is_completed = its, False
                failed, ranks = [], {}
            up[fact.member] = fact
            ever.add(fact.member)
            ranks[fact.member] = fact.rank or 0
        elif fact.kind is FactKind.LEARNER_READY and fact.member is not None:
            ready.add(fact.member)
        elif fact.kind is FactKind.LEARNER_DOWN and fact.member is not None:
            up.pop(fact.member, None)
            if fact.failure is not None and its == generation:
                failed.append((fact.member, fact.failure))
        elif fact.kind is FactKind.GENERATION:
            together, order, plain = its, fact.members or (), its if fact.plain else -1
            failed = [] if fact.live else failed
        elif fact.kind is FactKind.BEGUN:
            plain = -1
        elif fact.kind is FactKind.REGROUPED:
            order, failed = fact.members or (), []
        elif fact.kind is FactKind.LOST:
            lost = its
        elif fact.kind is FactKind.STORING:
            storing = its
        elif fact.kind is FactKind.CHECKPOINT and fact.step is not None:
            checkpoints.add((its, fact.step))
            kept = max(kept, fact.asked or 0)
        elif fact.kind is FactKind.COMMITTED and fact.step is not None:
            committed[its] = fact.step
        elif fact.kind is FactKind.COMPLETED:
            is_completed = True
        elif fact.kind is FactKind.CLOSED:
            closed = revision
    return Told(
        revision=revision,
        closed_revision=closed,
        generation=generation,
        up=up,
        ever=frozenset(ever),
        ready=frozenset(ready),
        failed=tuple(failed),
        members=frozenset(ranks),
        ranks=ranks,
        order=order,
        together=together,
        plain=plain,
        lost=lost,
        storing=storing,
        checkpoints=frozenset(checkpoints),
        kept=kept,
        committed=committed,
        is_completed=is_completed,
    )


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


def reap() -> dict[int, int]:
    """Wait for every child that ended, orphans that came to us too: pid -> status."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended
