"""How a gang changes while it trains: who is told what next. Pure: no torch, no clock, no processes.

Make before break: those who come rehearse while the others train; the new group is built beside the old one; all agree
on a boundary; there they change over. Who leaves stays until all others are together: should they die, it has the
state. After a loss the survivors change over at once. Each group has a round of its own, which only rises; what is said
of an earlier round no longer counts. One change at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jupyter_dlaas.runtime.guardian.decide import agree

__all__ = [
    "Build",
    "Change",
    "Order",
    "Peer",
    "Propose",
    "Regroup",
    "Switch",
    "advance",
    "found",
    "goal",
    "orders",
    "released",
    "strays",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One learner, as far as it is known."""

    is_alive: bool = True
    round: int = -1
    """The group that it trains in; -1: in none yet."""
    is_waiting: bool = False
    """It has rehearsed, and joins when it is told where."""
    built: int = -1
    """The newest group that it has built."""
    is_limited: bool = False
    """It promised not to run past a boundary, or was told where to change over, and has not done so yet."""
    is_stranded: bool = False
    """Its group does not answer any more."""
    missed: int = -1
    """The newest group that it could not build, or not come into."""
    promise: tuple[int, int] | None = None
    """(round, first boundary that it has not passed)."""
    is_asked: bool = False
    """It was asked to leave."""


@dataclass(frozen=True, slots=True)
class Build:
    """Build the group of this round, beside the one in use."""

    round: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Pass no further boundary before the switch of this round, and say how many were passed."""

    round: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Train in the group of this round from boundary `at` on; None: now, the group in use is lost."""

    round: int
    members: tuple[int, ...]
    at: int | None


Order = Build | Propose | Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is under way."""

    round: int
    members: tuple[int, ...]
    """In rank order; who was there before comes first, so that rank 0 has the state."""
    is_built: bool = False
    """All have the group: now they agree on a boundary."""
    at: int | None = None
    is_told: bool = False
    """The word is given: there is no way back to the group before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """Who trains together, and what is under way."""

    round: int = 0
    """The newest that was given out."""
    members: tuple[int, ...] = ()
    change: Change | None = None


def found(peers: Mapping[int, Peer], members: Sequence[int], *, above: int) -> Regroup:
    """Take over from an earlier guardian. `members`: who trains or was to, in rank order.

    `above`: no earlier guardian gave out this round or a later one. What it said last may still be on its way to a
    learner, that nobody knows of; its number must not come again.

    If they are of one mind nothing happens; else all who are ready make a new group, which is always possible: somebody
    who waits to join may have been told where, and would go there alone. Who only came to join is nobody's group.
    """
    newest = max((max(peer.round, peer.built) for peer in peers.values()), default=0)
    newest = max(newest, above)
    there = tuple(m for m in members if m in peers and peers[m].is_alive)
    ready = tuple(m for m in there if peers[m].round >= 0 or peers[m].is_waiting)
    state = Regroup(round=newest, members=ready)
    rounds = {peers[m].round for m in ready}
    if len(rounds) <= 1 and -1 not in rounds and not any(peers[m].is_limited for m in ready):
        return state
    return _now(state, ready, peers)


def strays(state: Regroup, peers: Mapping[int, Peer], target: Sequence[int]) -> tuple[int, ...]:
    """Learners that nobody wants and that will not leave by themselves.

    Nobody told them to; or their group was lost before they came to the boundary at which they were to leave.
    """
    if state.change is not None:
        return ()
    unwanted = (m for m, peer in peers.items() if peer.is_alive and m not in state.members and m not in target)
    return tuple(m for m in unwanted if not peers[m].is_asked or peers[m].is_stranded)


def released(state: Regroup, peers: Mapping[int, Peer]) -> tuple[int, ...]:
    """Who was asked to leave and may go now: all others are together, so nobody needs what it has any more."""
    if state.change is not None:
        return ()
    return tuple(m for m, peer in peers.items() if peer.is_alive and peer.is_asked and m not in state.members)


def goal(state: Regroup, peers: Mapping[int, Peer], target: Sequence[int]) -> tuple[int, ...]:
    """Who is to train together, in rank order: those of the target that are not dead, who was there before first.

    For each that is dead one stays that was to leave: nobody goes for somebody who never comes.
    """
    there = tuple(m for m in target if m not in peers or peers[m].is_alive)
    leavers = [m for m in state.members if m not in target and peers[m].is_alive]
    kept = {*there, *leavers[: len(target) - len(there)]}
    return tuple(m for m in state.members if m in kept) + tuple(m for m in there if m not in state.members)


def advance(state: Regroup, peers: Mapping[int, Peer], target: Sequence[int]) -> Regroup:
    """What follows from what is known. `target`: who is wanted, in rank order; what follows from that is the `goal`.

    Called again after each change of what is known; the same knowledge gives the same state.
    """
    change = state.change
    alive = tuple(m for m in state.members if peers[m].is_alive)
    if change is not None and change.is_told:
        there = tuple(m for m in change.members if peers[m].is_alive)
        # Those who were to leave take part until the boundary.
        if there != change.members or any(_is_lost(peers[m], change) for m in {*there, *alive}):
            return _now(state, there, peers)
        if all(peers[m].round == change.round for m in change.members):
            return replace(state, members=change.members, change=None)
        return state
    if alive != state.members or any(peers[m].is_stranded for m in alive):
        return _now(state, alive, peers)
    wanted = goal(state, peers, target)
    if not any(m in state.members for m in wanted):
        return state
    is_ready = all(m in state.members or peers[m].is_waiting for m in wanted)
    if change is None:
        return _begin(state, wanted) if wanted != state.members and is_ready else state
    if any(not peers[m].is_alive or peers[m].missed >= change.round for m in change.members):
        return _begin(state, wanted if is_ready else state.members)
    if not change.is_built:
        if any(peers[m].built < change.round for m in change.members):
            return state
        return replace(state, change=replace(change, is_built=True))
    ticks = [p[1] for m in state.members if (p := peers[m].promise) is not None and p[0] == change.round]
    if len(ticks) < len(state.members):
        return state
    return replace(state, change=replace(change, at=agree(ticks), is_told=True))


def _is_lost(peer: Peer, change: Change) -> bool:
    """It cannot come to the boundary (a leaver died before it, say), or its new group was lost, too."""
    if peer.missed >= change.round:
        return True
    return peer.is_stranded and (change.at is not None or peer.round == change.round)


def _begin(state: Regroup, members: tuple[int, ...]) -> Regroup:
    number = state.round + 1
    ordered = tuple(m for m in members if m in state.members) + tuple(m for m in members if m not in state.members)
    return replace(state, round=number, change=Change(round=number, members=ordered))


def _now(state: Regroup, members: tuple[int, ...], peers: Mapping[int, Peer]) -> Regroup:
    """Those who are left change over at once.

    If none of them has the state (they only came to get it), with those who were to leave and have not left yet: that
    their group is lost may be heard before the deaths that lost it. Nobody, if nobody has it.
    """
    number = state.round + 1
    if all(peers[m].round < 0 for m in members):
        kept = tuple(m for m, one in peers.items() if m not in members and one.is_alive and one.round >= 0)
        members = (*kept, *members) if kept else ()
    change = Change(round=number, members=members, is_built=True, is_told=True) if members else None
    return Regroup(round=number, members=members, change=change)


def orders(state: Regroup) -> dict[int, tuple[Order, ...]]:
    """All that each learner should have been told by now of what is under way."""
    change = state.change
    if change is None:
        return {}
    build, switch = Build(change.round, change.members), Switch(change.round, change.members, change.at)
    told: dict[int, tuple[Order, ...]] = dict.fromkeys(change.members, (build,))
    if change.is_built and not change.is_told:
        for m in state.members:
            told[m] = (*told.get(m, ()), Propose(change.round))
    if change.is_told:
        for m in (*change.members, *state.members):
            told[m] = (build, switch) if m in change.members else (switch,)
    return told
