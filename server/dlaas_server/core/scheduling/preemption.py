"""Preemption: choice of victims for a gang, and reclaim from borrowing queues."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dlaas_server.core.placement.gang_placement import FreeCapacity
from dlaas_server.core.scheduling.backfill import Room, learners_that_fit, room_gained
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.policy import Share

__all__ = ["Rank", "VictimIndex", "borrowers", "victims_for"]


def victims_for(request: GangRequest, capacity: FreeCapacity, candidates: Iterable[GangRequest]) -> list[GangRequest]:
    """Return the shortest prefix of candidates whose seats, with the free ones, suffice for the gang; [] if none does.

    Candidates that free nothing on the nodes that fit the gang are left out.
    """
    shape = request.shape
    fits = capacity.room(shape, request.learners)
    rooms: dict[str, Room] = {}
    tried: list[GangRequest] = []
    for victim in candidates:
        tried.append(victim)
        fits += room_gained(rooms, capacity, shape, victim)
        if fits >= request.learners:
            useful = {name for name, room in rooms.items() if learners_that_fit(room, shape)}
            return [one for one in tried if any(seat.node in useful for seat in one.seats)]
    return []


def borrowers(
    request: GangRequest, running: Iterable[GangRequest], used: Mapping[str, int], share_of: Callable[[str], Share]
) -> Iterator[GangRequest]:
    """Yield victims from other queues that exceed their guarantee, lowest priority and youngest first.

    Only jobs whose queue still uses at least its guarantee without them are victims.
    """
    left = dict(used)
    for one in sorted(running, key=lambda one: (one.priority, -one.began_s, -one.number)):
        over = left[one.queue] - share_of(one.queue).guaranteed
        may_go = one.is_victim or (one.lateness is Lateness.STARVING and one.is_preemptible)
        if may_go and one.priority <= request.priority and one.queue != request.queue and over >= one.weight:
            left[one.queue] -= one.weight
            yield one


Rank = tuple[int, int]
"""Priority and rank."""


@dataclass(slots=True)
class VictimIndex:
    """Jobs that may be preempted, by priority and rank, then by start time."""

    weights: dict[Rank, int] = field(default_factory=dict)
    """(priority, rank) -> devices that these jobs hold."""
    _by_rank: dict[Rank, list[tuple[float, int]]] = field(default_factory=dict)

    def add(self, request: GangRequest) -> None:
        """Add a job that may be preempted from now on."""
        named = (request.priority, request.rank)
        insort(self._by_rank.setdefault(named, []), (request.began_s, request.number))
        self.weights[named] = self.weights.get(named, 0) + request.weight
        request.is_victim = True

    def drop(self, request: GangRequest) -> None:
        """Remove a job; do nothing if it is not a possible victim."""
        if request.is_victim:
            named = (request.priority, request.rank)
            victims = self._by_rank[named]
            del victims[bisect_left(victims, (request.began_s, request.number))]
            self.weights[named] -= request.weight
            request.is_victim = False

    def of(self, ranks: Iterable[Rank]) -> Iterator[int]:
        """Yield the numbers of jobs of these ranks: lowest priority, then worst rank, then youngest first."""
        for rank in sorted(ranks, key=lambda one: (one[0], -one[1])):
            for _, number in reversed(self._by_rank[rank]):
                yield number
