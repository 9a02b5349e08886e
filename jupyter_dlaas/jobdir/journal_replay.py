"""Journal replay: the state that earlier guardians left, as far as a new one needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jupyter_dlaas.wire.journal import (
    CheckpointSaved,
    Fact,
    GenerationLost,
    GenerationStarted,
    JobClosed,
    JobCompleted,
    LearnerDown,
    LearnerReady,
    LearnersLost,
    LearnerUp,
    LoopBegun,
    ResultsStoring,
    StepsCommitted,
    WantedSeen,
)
from jupyter_dlaas.wire.protocol import Failure

__all__ = ["JournalState", "int_or", "members_in", "replay"]


def int_or(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalState:
    """State of a job after the replay of its journal."""

    revision: int = -1
    closed_revision: int | None = None
    """Last revision that was read before the job was closed, unless a later one followed."""
    generation: int = -1
    up: Mapping[int, LearnerUp]
    """Members that were started and not seen to end."""
    ever: frozenset[int] = frozenset()
    """All members that were ever started."""
    ready: frozenset[int] = frozenset()
    failed: Sequence[tuple[int, Failure]] = ()
    """Failures of the last generation, in the order in which they were recorded."""
    members: frozenset[int] = frozenset()
    """Members of the last generation."""
    ranks: Mapping[int, int]
    """Ranks of its members."""
    order: tuple[int, ...] = ()
    """Members of the last generation that changed while it trained, in rank order."""
    together: int = -1
    """Last generation that is recorded as training."""
    plain: int = -1
    """Last recorded generation if it is `plain` and no later fact changed that; otherwise -1."""
    lost: int = -1
    storing: int = -1
    checkpoints: frozenset[tuple[int, int]] = frozenset()
    """(generation, step) of the recorded checkpoints."""
    kept: int = 0
    """Number of the last checkpoint request that one of them answers."""
    committed: Mapping[int, int]
    """Recorded end of the trained steps per generation."""
    is_completed: bool = False

    def has_begun(self, member: int) -> bool:
        """Return whether a member was started for a generation that has trained. Later ones only wait to join."""
        fact = self.up.get(member)
        return fact is not None and (fact.generation or 0) <= self.together


def members_in(value: object) -> set[int]:
    """Return the integers in a list of a JSON document; empty if the value is not a list."""
    return {one for one in value if isinstance(one, int)} if isinstance(value, list) else set()


def _number(generation: int | None) -> int:
    return -1 if generation is None else generation


def replay(facts: Iterable[Fact]) -> JournalState:
    """Replay a journal."""
    up: dict[int, LearnerUp] = {}
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
        if isinstance(fact, WantedSeen):
            revision, closed = max(revision, fact.revision), None
        elif isinstance(fact, LearnerUp):
            number = _number(fact.generation)
            if number > generation:
                generation, is_completed = number, False
                failed, ranks = [], {}
            up[fact.member] = fact
            ever.add(fact.member)
            ranks[fact.member] = fact.rank or 0
        elif isinstance(fact, LearnerReady):
            ready.add(fact.member)
        elif isinstance(fact, LearnerDown):
            up.pop(fact.member, None)
            if fact.failure is not None and _number(fact.generation) == generation:
                failed.append((fact.member, fact.failure))
        elif isinstance(fact, GenerationStarted):
            together, order = _number(fact.generation), fact.members or ()
            plain = together if fact.plain else -1
            failed = [] if fact.live else failed
        elif isinstance(fact, LoopBegun):
            plain = -1
        elif isinstance(fact, LearnersLost):
            order, failed = fact.members or (), []
        elif isinstance(fact, GenerationLost):
            lost = _number(fact.generation)
        elif isinstance(fact, ResultsStoring):
            storing = _number(fact.generation)
        elif isinstance(fact, CheckpointSaved) and fact.step is not None:
            checkpoints.add((_number(fact.generation), fact.step))
            kept = max(kept, fact.asked or 0)
        elif isinstance(fact, StepsCommitted) and fact.step is not None:
            committed[_number(fact.generation)] = fact.step
        elif isinstance(fact, JobCompleted):
            is_completed = True
        elif isinstance(fact, JobClosed):
            closed = revision
    return JournalState(
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
