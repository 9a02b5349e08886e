"""Membership changes of a gang as its guardian carries them out: the imperative shell around `membership`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from jupyter_dlaas.runtime.guardian import membership
from jupyter_dlaas.runtime.guardian.journal_writer import JournalWriter
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.guardian.membership import Build, Membership, Order, Peer, Propose
from jupyter_dlaas.runtime.hosts.learner_host import LearnerHost
from jupyter_dlaas.wire.journal import Goal, Wanted
from jupyter_dlaas.wire.learner_messages import BuildGroup, ProposeChange, Release, SwitchGroup, to_line
from jupyter_dlaas.wire.protocol import Failure

__all__ = ["MembershipCoordinator"]

Where = Callable[[], tuple[str, int]]
"""Function that returns host and port of the rendezvous store and starts the store if necessary."""
Join = Callable[[Wanted, int], None]
"""Function that starts a joining member."""


_EPOCHS_PER_GUARDIAN: Final = 1_000_000
"""Upper bound of the membership epochs that one guardian assigns."""


class MembershipCoordinator:
    """Membership changes of a gang while it trains, possible once all of its learners train."""

    def __init__(
        self, learners: Mapping[int, Learner], host: LearnerHost, journal: JournalWriter, join: Join, where: Where
    ) -> None:
        self._learners, self._host, self._journal = learners, host, journal
        self._join, self._where = join, where
        self._state: Membership | None = None
        self._lost: tuple[int, Failure] | None = None
        """First member that was lost since the gang last changed, and its failure."""
        self._store: tuple[int, tuple[str, int]] = (-1, ("", 0))
        """Membership epoch and its rendezvous store.

        All members of an epoch get the same store, even if it is gone before the last one receives the order.
        """
        self._next = 0
        """Generation that results from the change under way."""

    @property
    def is_elastic(self) -> bool:
        """True if this gang can change while it trains."""
        return self._state is not None and bool(self._state.members)

    @property
    def first(self) -> int | None:
        """Member with rank 0 of the gang; None while the gang is as it was started."""
        return self._state.members[0] if self._state is not None and self._state.members else None

    @property
    def is_committed(self) -> bool:
        """True if a membership change is committed and can no longer be cancelled."""
        return self._state is not None and self._state.change is not None and self._state.change.is_committed

    @property
    def is_over(self) -> bool:
        """True if a learner reached the end of the program: the others reach it too, and no learner joins any more."""
        return any(not one.is_alive and one.is_done for one in self._learners.values())

    def may_become(self, wanted: Wanted) -> bool:
        """Return whether the gang can change to the wanted members: a learner that has the state must stay."""
        if self._state is None or self.is_over:
            return False
        goal = membership.goal(self._state, self._peers(), [one.member for one in wanted.members])
        return any(member in self._state.members for member in goal)

    def begin(self, *, is_new: bool) -> None:
        """Enable membership changes once all learners train and can change.

        `is_new` says that this guardian started the gang, so that no change is under way.
        """
        if self._state is not None:
            return
        alive = sorted((one for one in self._learners.values() if one.is_alive), key=lambda one: one.rank)
        present = [one for one in alive if one.membership_epoch >= 0]
        if not present or any(not one.may_change or one.trains_from is None for one in present):
            return
        if any(not one.is_connected for one in alive):
            return  # an adopted learner connects within moments
        ranked = tuple(one.member for one in alive)
        above = self._journal.guardians * _EPOCHS_PER_GUARDIAN
        self._state = Membership(members=ranked) if is_new else membership.found(self._peers(), ranked, above=above)

    def lost(self, member: int, failure: Failure) -> bool:
        """Record a learner that ended without being asked. Return whether the others continue without it."""
        if self._state is None or not any(
            one.is_alive and one.membership_epoch >= 0 for one in self._learners.values()
        ):
            return False
        self._lost = self._lost or (member, failure)
        return True

    def unmended(self, wanted: Wanted | None) -> list[tuple[int, Failure]]:
        """Return, once, the loss after which no learner is left to continue: those that lived were about to leave."""
        is_running = wanted is not None and wanted.goal is Goal.RUN
        if self._lost is None or not is_running or any(one.is_alive for one in self._learners.values()):
            return []
        lost, self._lost = self._lost, None
        return [lost]

    def change(self, wanted: Wanted, generation: int) -> int:
        """Advance the change to the wanted members and return the generation that trains."""
        assert self._state is not None
        if wanted.goal is not Goal.RUN:
            return self._turn(self._state.members, generation, generation)
        target = [one.member for one in wanted.members]
        for member in target:
            if member not in self._learners:
                self._join(wanted, member)
        generation = self._turn(target, generation, wanted.generation)
        present = membership.goal(self._state, self._peers(), target)
        if generation < wanted.generation and self._state.members == present and self._state.change is None:
            self._through(wanted.generation, None, changed=False)
            generation = wanted.generation
        return generation

    def mend(self, generation: int) -> None:
        """Let the survivors of a loss continue at once without the lost learners."""
        assert self._state is not None
        self._turn(self._state.members, generation, generation)

    def _turn(self, target: Sequence[int], now: int, then: int) -> int:
        """Advance the state and send the resulting orders. `then` is the generation that `target` forms."""
        assert self._state is not None
        peers = self._peers()
        for _ in range(8):
            before, self._state = self._state, membership.advance(self._state, peers, target)
            if self._state == before:
                break
            if before.change is not None and self._state.change is None and self._state.members:
                now = self._next
                self._through(now, self._idle_s())
        change = self._state.change
        if change is not None:
            self._next = then if set(change.members) == set(membership.goal(self._state, peers, target)) else now
        for member in membership.strays(self._state, peers, target):
            self._end(self._learners[member])
        self._send_orders()
        for member in membership.released(self._state, self._peers()):
            one = self._learners[member]
            if one.is_connected and "go" not in one.orders_sent:
                one.orders_sent.add("go")
                self._host.send(one.member, to_line(Release(membership_epoch=self._state.membership_epoch)))
        return now

    def _idle_s(self) -> float | None:
        """Return the longest time in seconds for which a current member stood still in the last change."""
        assert self._state is not None
        present = [self._learners[member] for member in self._state.members]
        return max((one.idle_s for one in present if one.idle_s is not None), default=None)

    def _through(self, generation: int, idle_s: float | None, *, changed: bool = True) -> None:
        """Record the new generation. `changed`: the members are others, so that training paused at a step."""
        assert self._state is not None
        members = self._state.members
        for one in self._learners.values():
            if one.member not in members and not one.is_alive:
                one.generation = -1  # it is no longer part of the gang
        for rank, member in enumerate(members):
            one = self._learners[member]
            one.generation, one.rank = generation, rank
            for steps in one.trained:
                self._journal.committed(steps.generation, steps.ranges)
        lost, self._lost = self._lost, None
        step = max(self._learners[member].trains_from or 0 for member in members) if changed else None
        self._journal.regrouped(generation, members, step, idle_s, lost[1] if lost is not None else None)

    def _send_orders(self) -> None:
        assert self._state is not None
        for member, orders in membership.orders(self._state).items():
            one = self._learners[member]
            for order in orders:
                if one.is_connected and order not in one.orders_sent:
                    one.orders_sent.add(order)
                    self._host.send(one.member, to_line(self._message(order)))
            if self._state.change is not None and self._state.change.is_committed:
                one.is_asked = member not in self._state.change.members

    def _message(self, order: Order) -> ProposeChange | BuildGroup | SwitchGroup:
        epoch = order.membership_epoch
        if isinstance(order, Propose):
            return ProposeChange(membership_epoch=epoch)
        if isinstance(order, Build):
            if self._store[0] != epoch:
                self._store = (epoch, self._where() if len(order.members) > 1 else ("", 0))
            host, port = self._store[1]
            return BuildGroup(membership_epoch=epoch, members=order.members, host=host, port=port)
        return SwitchGroup(membership_epoch=epoch, members=order.members, boundary=order.at, generation=self._next)

    def call_off(self, alive: Sequence[Learner]) -> list[Learner]:
        """Cancel the change under way because all leave. Kill learners that only wait to join and return the others."""
        if self._state is not None:
            self._state = Membership(membership_epoch=self._state.membership_epoch, members=self._state.members)
        for one in alive:
            if one.membership_epoch < 0:
                self._end(one)
        return [one for one in alive if one.membership_epoch >= 0]

    def _end(self, one: Learner) -> None:
        one.is_asked = True
        self._host.signal(one.member, signal.SIGKILL)

    def _peers(self) -> dict[int, Peer]:
        return {one.member: _peer(one) for one in self._learners.values()}


def _peer(one: Learner) -> Peer:
    agreed = one.agreed
    return Peer(
        is_alive=one.is_alive,
        membership_epoch=one.membership_epoch,
        is_waiting=one.is_waiting,
        built=one.built,
        is_limited=one.is_held,
        is_stranded=one.stranded == one.membership_epoch >= 0,  # a learner that is in no group yet has lost none
        missed=one.missed,
        promise=None if agreed is None else (agreed.membership_epoch, agreed.boundaries_passed),
        is_asked=one.is_asked,
    )
