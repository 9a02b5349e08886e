"""Membership changes of a training gang: the next order for each learner. Pure: no torch, clock or processes.

Make before break: joining learners rehearse while the others train, the new process group is built beside the old one,
all agree on a step boundary, and there they switch. A leaving learner stays until all others are in the new group:
should they die, it still has the state. After a loss the survivors switch at once. Each group has a membership epoch
that only rises; messages of an earlier epoch no longer count. Only one change is under way at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jupyter_dlaas.runtime.guardian.decide import agree

__all__ = [
    "Build",
    "Change",
    "Membership",
    "Order",
    "Peer",
    "Propose",
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
    """State of one learner as far as the guardian knows it."""

    is_alive: bool = True
    membership_epoch: int = -1
    """Membership epoch that it trains in; -1: in no group yet."""
    is_waiting: bool = False
    """True if it has rehearsed and waits for the order to join."""
    built: int = -1
    """Newest membership epoch whose group it has built."""
    is_limited: bool = False
    """True if it agreed not to pass a boundary, or was ordered to switch, and has not switched yet."""
    is_stranded: bool = False
    """True if its process group no longer answers."""
    missed: int = -1
    """Newest membership epoch whose group it could not build or enter."""
    promise: tuple[int, int] | None = None
    """(membership epoch, first boundary that it has not passed)."""
    is_asked: bool = False
    """True if it was asked to leave."""


@dataclass(frozen=True, slots=True)
class Build:
    """Order to build the process group of this membership epoch beside the one in use."""

    membership_epoch: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Order to pass no further boundary before the switch to this epoch, and to report how many were passed."""

    membership_epoch: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Order to train in the group of this epoch from boundary `at` on; None: now, because the group in use is lost."""

    membership_epoch: int
    members: tuple[int, ...]
    at: int | None


Order = Build | Propose | Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Membership change that is under way."""

    membership_epoch: int
    members: tuple[int, ...]
    """Members in rank order; former members come first, so that rank 0 has the state."""
    is_built: bool = False
    """True if all have built the group: now they agree on a boundary."""
    at: int | None = None
    is_committed: bool = False
    """True if the switch is ordered: the gang can no longer keep its former group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Learners that train together, and the membership change under way."""

    membership_epoch: int = 0
    """Newest membership epoch that was assigned."""
    members: tuple[int, ...] = ()
    change: Change | None = None


def found(peers: Mapping[int, Peer], members: Sequence[int], *, above: int) -> Membership:
    """Take over from an earlier guardian.

    `members` are those that train or were about to, in rank order. No earlier guardian assigned `above` or a later
    epoch: its last message may still be on its way to a learner, so its epoch must not be used again.

    If all report the same epoch, nothing changes. Otherwise all that are ready form a new group. This is always
    possible; a learner that waits to join may have been ordered to switch, and would otherwise switch alone. Learners
    that only wait to join do not form a group by themselves.
    """
    newest = max((max(peer.membership_epoch, peer.built) for peer in peers.values()), default=0)
    newest = max(newest, above)
    present = tuple(m for m in members if m in peers and peers[m].is_alive)
    ready = tuple(m for m in present if peers[m].membership_epoch >= 0 or peers[m].is_waiting)
    state = Membership(membership_epoch=newest, members=ready)
    epochs = {peers[m].membership_epoch for m in ready}
    if len(epochs) <= 1 and -1 not in epochs and not any(peers[m].is_limited for m in ready):
        return state
    return _now(state, ready, peers)


def strays(state: Membership, peers: Mapping[int, Peer], target: Sequence[int]) -> tuple[int, ...]:
    """Return learners that are not wanted and do not leave by themselves.

    They were not asked to leave, or their group was lost before the boundary at which they were to leave.
    """
    if state.change is not None:
        return ()
    unwanted = (m for m, peer in peers.items() if peer.is_alive and m not in state.members and m not in target)
    return tuple(m for m in unwanted if not peers[m].is_asked or peers[m].is_stranded)


def released(state: Membership, peers: Mapping[int, Peer]) -> tuple[int, ...]:
    """Return learners that were asked to leave and may go: all others are in their group and have the state."""
    if state.change is not None:
        return ()
    return tuple(m for m, peer in peers.items() if peer.is_alive and peer.is_asked and m not in state.members)


def goal(state: Membership, peers: Mapping[int, Peer], target: Sequence[int]) -> tuple[int, ...]:
    """Return the members that shall train together, in rank order: living or future ones of the target, old first.

    For each dead member of the target, one leaving member stays: none leaves in favour of a learner that never comes.
    """
    present = tuple(m for m in target if m not in peers or peers[m].is_alive)
    leavers = [m for m in state.members if m not in target and peers[m].is_alive]
    kept = {*present, *leavers[: len(target) - len(present)]}
    return tuple(m for m in state.members if m in kept) + tuple(m for m in present if m not in state.members)


def advance(state: Membership, peers: Mapping[int, Peer], target: Sequence[int]) -> Membership:
    """Return the next state. `target` lists the wanted members in rank order, from which `goal` follows.

    The guardian calls this function after each change of `peers`. The same input gives the same state.
    """
    change = state.change
    alive = tuple(m for m in state.members if peers[m].is_alive)
    if change is not None and change.is_committed:
        present = tuple(m for m in change.members if peers[m].is_alive)
        # Leaving members take part until the boundary.
        if present != change.members or any(_is_lost(peers[m], change) for m in {*present, *alive}):
            return _now(state, present, peers)
        if all(peers[m].membership_epoch == change.membership_epoch for m in change.members):
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
    if any(not peers[m].is_alive or peers[m].missed >= change.membership_epoch for m in change.members):
        return _begin(state, wanted if is_ready else state.members)
    if not change.is_built:
        if any(peers[m].built < change.membership_epoch for m in change.members):
            return state
        return replace(state, change=replace(change, is_built=True))
    ticks = [p[1] for m in state.members if (p := peers[m].promise) is not None and p[0] == change.membership_epoch]
    if len(ticks) < len(state.members):
        return state
    return replace(state, change=replace(change, at=agree(ticks), is_committed=True))


def _is_lost(peer: Peer, change: Change) -> bool:
    """Return whether a member cannot reach the boundary or lost its new group as well.

    For example, it cannot reach the boundary if a leaving member died before.
    """
    if peer.missed >= change.membership_epoch:
        return True
    return peer.is_stranded and (change.at is not None or peer.membership_epoch == change.membership_epoch)


def _begin(state: Membership, members: tuple[int, ...]) -> Membership:
    number = state.membership_epoch + 1
    ordered = tuple(m for m in members if m in state.members) + tuple(m for m in members if m not in state.members)
    return replace(state, membership_epoch=number, change=Change(membership_epoch=number, members=ordered))


def _now(state: Membership, members: tuple[int, ...], peers: Mapping[int, Peer]) -> Membership:
    """Let the remaining members switch to a new group at once.

    If none of them has the state because all only wait to join, living learners that were to leave stay as well: the
    loss of their group may be reported before the deaths that caused it. If no learner has the state, the group is
    empty.
    """
    number = state.membership_epoch + 1
    if all(peers[m].membership_epoch < 0 for m in members):
        kept = tuple(m for m, one in peers.items() if m not in members and one.is_alive and one.membership_epoch >= 0)
        members = (*kept, *members) if kept else ()
    change = Change(membership_epoch=number, members=members, is_built=True, is_committed=True) if members else None
    return Membership(membership_epoch=number, members=members, change=change)


def orders(state: Membership) -> dict[int, tuple[Order, ...]]:
    """Return all orders that each learner must have received by now for the change under way."""
    change = state.change
    if change is None:
        return {}
    build = Build(change.membership_epoch, change.members)
    switch = Switch(change.membership_epoch, change.members, change.at)
    due: dict[int, tuple[Order, ...]] = dict.fromkeys(change.members, (build,))
    if change.is_built and not change.is_committed:
        for m in state.members:
            due[m] = (*due.get(m, ()), Propose(change.membership_epoch))
    if change.is_committed:
        for m in (*change.members, *state.members):
            due[m] = (build, switch) if m in change.members else (switch,)
    return due
