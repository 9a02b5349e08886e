"""Journal replay: the state that earlier guardians left, as far as a new one needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jupyter_dlaas.wire.journal import Fact, FactKind
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
    up: Mapping[int, Fact]
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


def replay(facts: Iterable[Fact]) -> JournalState:
    """Replay a journal."""
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
