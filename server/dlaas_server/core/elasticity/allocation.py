"""Allocation of devices among running jobs: which jobs grow, and which shrink.

Each waiting job first gets its least size, from the running jobs that lose least. Free devices then go where they gain
most. Devices move between jobs only if the gain clearly exceeds loss and cost. Gain and loss are those of log(rate) per
device, weighted more for jobs that are closer to their end.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.placement.gang_placement import fit_count, place

__all__ = ["Gang", "Sizes", "sized"]

CLEARLY: Final = 1.5
"""Factor by which the gain must exceed the losses of other jobs for devices to move between jobs."""
ANY: Final = 1 << 20
HORIZON_S: Final = 600.0
"""Seconds within which a change must pay, or the job's remaining time if that is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job that may change its size now, as input of the allocation."""

    id: str
    number: int
    """Unique number, ascending by age."""
    shape: Shape
    rates: Mapping[int, float]
    """Learners -> rate in any unit. Only these sizes are possible; includes the least and the present size."""
    least: int = 1
    seats: tuple[Seat, ...] = ()
    """Held seats; empty: the job waits."""
    priority: int = 0
    left_s: float | None = None
    """Expected remaining run time at its least size; None if unknown."""
    cost_s: float = 0.0
    """Seconds of training that a change costs."""
    may_move: bool = False
    """True if all its learners may move at once, for the cost of a change."""


@dataclass(slots=True, eq=False)
class _State:
    """A gang while its size is decided."""

    gang: Gang
    seats: tuple[Seat, ...]
    logs: dict[int, float]
    sizes: list[int]
    share: float = 1.0
    """Weight of its log rate."""

    @property
    def size(self) -> int:
        return len(self.seats)

    @property
    def cost_s(self) -> float:
        """Cost of a change beyond changes decided already."""
        return self.gang.cost_s if self.seats == self.gang.seats else 0.0

    def saved_s(self, size: int) -> float:
        """Return the seconds of the horizon that this size saves (first-order approximation)."""
        left_s, rates = self.gang.left_s, self.gang.rates
        horizon_s = HORIZON_S
        if left_s is not None:
            horizon_s = min(left_s * rates[self.gang.least] / rates[self.size], HORIZON_S)
        return horizon_s * (self.logs[size] - self.logs[self.size])


_Wish = tuple[float, int, int, int, _State]
"""Negative gain per device, negative priority, number, size, gang; the smallest goes first."""


@dataclass(slots=True, eq=False)
class Sizes:
    """Sizes of all gangs that may change, and free capacity. Mutable, but without clock or randomness."""

    capacity: FreeCapacity
    gangs: Iterable[Gang]
    decided: Mapping[str, tuple[Seat, ...]] = field(default_factory=dict)
    """Gang -> seats decided already."""
    states: dict[str, _State] = field(init=False)

    def __post_init__(self) -> None:
        self.states = {}
        for gang in sorted(self.gangs, key=lambda g: g.number):
            logs = {size: log(rate) for size, rate in gang.rates.items()}
            self.states[gang.id] = _State(gang, self.decided.get(gang.id, gang.seats), logs, sorted(logs))
        self._weigh()

    def _weigh(self) -> None:
        """Set the weights: of m jobs, the i-th longest gets 2i - 1, on average m; here divided by m.

        If rates grow like the square root of the size, shares of devices in these proportions minimize the mean
        completion time. Source: Berg, Vesilo, Harchol-Balter, "heSRPT: Parallel scheduling to minimize mean slowdown",
        Performance Evaluation 2020. Jobs of unknown length get the average.
        """
        known = [(s.gang.left_s, s.gang.number, s) for s in self.states.values() if s.gang.left_s is not None]
        known.sort(reverse=True)
        for place_in_line, (_, _, state) in enumerate(known, start=1):
            state.share = (2 * place_in_line - 1) / len(known)

    # -- room for waiting jobs ----------------------------------------------------------------------------------------

    def start(self, gang: Gang) -> bool:
        """Give a waiting gang its least size, shrinking others if that suffices. Return whether it starts."""
        if not self.shrink_for(gang.shape, gang.least, gang.priority):
            return False
        self.states[gang.id].seats = place(self.capacity, gang.shape, gang.least) or ()
        return True

    def shrink_for(self, shape: Shape, learners: int, priority: int) -> bool:
        """Shrink gangs of this priority or a lower one, those that lose least first, until this request fits.

        Return False, with nothing changed, if that does not suffice.
        """
        if fit_count(self.capacity, shape, learners) >= learners:
            return True
        before = {name: state.seats for name, state in self.states.items()}
        while (fits := fit_count(self.capacity, shape, learners)) < learners:
            loser = self._loser(_weight(shape) * (learners - fits), priority)
            if loser is None:
                self._put_back(before)
                return False
            self._shrink(*loser)
        return True

    def _loser(self, devices: int, priority: int, spare: str = "") -> tuple[_State, int] | None:
        """Return the gang that loses the least per device wanted, and its new size."""
        best: tuple[_State, int] | None = None
        best_key: tuple[float, ...] = (inf,)
        for state in self.states.values():
            gang, size = state.gang, len(state.seats)
            if size <= gang.least or gang.priority > priority or gang.id == spare:
                continue
            least, weight, share, logs, here = (
                gang.least,
                _weight(gang.shape),
                state.share,
                state.logs,
                state.logs[size],
            )
            cost = state.cost_s / HORIZON_S
            for smaller in state.sizes:
                if smaller >= size:
                    break
                if smaller >= least:
                    given = (size - smaller) * weight
                    loss = (share * (here - logs[smaller]) + cost) / (given if given < devices else devices)
                    if (gang.priority, loss) <= best_key:
                        key = (gang.priority, loss, -smaller, -gang.number)
                        if key < best_key:
                            best_key, best = key, (state, smaller)
        return best

    def _shrink(self, state: _State, size: int) -> None:
        """Release seats, first on the nodes where the gang holds the fewest."""
        kept, given = _parted(state.seats, size)
        self.capacity.give(state.gang.shape, given)
        state.seats = kept

    def _put_back(self, before: Mapping[str, tuple[Seat, ...]]) -> None:
        """Restore the seats."""
        changed = [(state, before[name]) for name, state in self.states.items() if state.seats != before[name]]
        for state, _ in changed:
            self.capacity.give(state.gang.shape, state.seats)
        for state, seats in changed:
            self.capacity.claim(state.gang.shape, seats)
            state.seats = seats

    # -- free devices ---------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Give free devices to the gangs that gain the most; of equals, to the higher priority."""
        todo: list[_Wish] = []
        for state in self.states.values():
            self._wish(todo, state, fit_count(self.capacity, state.gang.shape, ANY))
        while todo:
            *_, size, state = heapq.heappop(todo)
            more = size - state.size
            if fit_count(self.capacity, state.gang.shape, more) >= more:
                state.seats += place(self.capacity, state.gang.shape, more) or ()
            self._wish(todo, state, fit_count(self.capacity, state.gang.shape, ANY))

    def _wish(self, todo: list[_Wish], state: _State, most: int) -> None:
        found = self._best(state, most) if state.size else None
        if found is not None:
            heapq.heappush(todo, (-found[0], -state.gang.priority, state.gang.number, found[1], state))

    def _best(self, state: _State, most: int) -> tuple[float, int] | None:
        """Return the largest gain per device with at most `most` more learners, and the size at which it is reached."""
        best: tuple[float, int] | None = None
        size, here = state.size, state.logs[state.size]
        for larger in state.sizes:
            if larger <= size or larger - size > most:
                continue
            gain = state.share * (state.logs[larger] - here) / ((larger - size) * _weight(state.gang.shape))
            if gain > 0 and (best is None or gain > best[0]) and state.saved_s(larger) > state.cost_s:
                best = gain, larger
        return best

    # -- exchange between jobs ----------------------------------------------------------------------------------------

    def exchange(self) -> bool:
        """Move devices from other gangs to one gang, if that clearly pays. Return whether any moved."""
        wishes: list[_Wish] = []
        for state in self.states.values():
            self._wish(wishes, state, ANY)
        return any(self._moved(state, size, -gain) for gain, _, _, size, state in sorted(wishes, key=_order))

    def _moved(self, state: _State, size: int, gain: float) -> bool:
        gang, more = state.gang, size - state.size
        weight = _weight(gang.shape)
        before = {name: other.seats for name, other in self.states.items()}
        saved_s, loss = state.share * state.saved_s(size) - state.cost_s, 0.0
        while (fits := fit_count(self.capacity, gang.shape, more)) < more:
            loser = self._loser(weight * (more - fits), gang.priority, gang.id)
            if loser is None:
                break
            other, smaller = loser
            loss += other.share * (other.logs[other.size] - other.logs[smaller])
            saved_s += other.share * other.saved_s(smaller) - other.cost_s
            if gain * more * weight <= CLEARLY * loss or saved_s <= 0:
                break
            self._shrink(other, smaller)
        else:
            state.seats += place(self.capacity, gang.shape, more) or ()
            return True
        self._put_back(before)
        return False

    # -- placement ----------------------------------------------------------------------------------------------------

    def pack(self) -> None:
        """Repack the gangs that change and may move, largest first: on fewer nodes they are faster."""
        moving = [s for s in self.states.values() if s.gang.may_move and s.seats != s.gang.seats and s.seats]
        moving.sort(key=lambda s: (-s.size * _weight(s.gang.shape), s.gang.number))
        before = {state.gang.id: state.seats for state in moving}
        for state in moving:
            self.capacity.give(state.gang.shape, state.seats)
        for done, state in enumerate(moving):
            seats = place(self.capacity, state.gang.shape, state.size)
            if seats is None:
                for other in moving[:done]:
                    self.capacity.give(other.gang.shape, other.seats)
                for other in moving:
                    other.seats = before[other.gang.id]
                    self.capacity.claim(other.gang.shape, other.seats)
                return
            state.seats = seats

    def changes(self) -> dict[str, tuple[Seat, ...]]:
        """Return the new seats of all gangs whose seats change."""
        return {n: s.seats for n, s in self.states.items() if Counter(s.seats) != Counter(s.gang.seats)}


def sized(capacity: FreeCapacity, gangs: Sequence[Gang], waiting: Sequence[Gang] = ()) -> dict[str, tuple[Seat, ...]]:
    """Return the new seats of all gangs that start or change; `waiting` in queue order. Consumes `capacity`."""
    sizes = Sizes(capacity, [*gangs, *waiting])
    while True:  # devices left over by an exchange are offered to waiting jobs, too
        for gang in waiting:
            if not sizes.states[gang.id].seats:
                sizes.start(gang)
        sizes.grow()
        if not sizes.exchange():
            break
    sizes.pack()
    return sizes.changes()


def _order(wish: _Wish) -> tuple[float, int, int]:
    return wish[:3]


def _weight(shape: Shape) -> int:
    return shape.gpus or 1


def _parted(seats: Sequence[Seat], size: int) -> tuple[tuple[Seat, ...], tuple[Seat, ...]]:
    """Return the seats to keep, on the nodes with most of them, and the seats to release; each in their order."""
    nodes = Counter(seat.node for seat in seats)
    first = sorted(range(len(seats)), key=lambda i: (-nodes[seats[i].node], seats[i].node, i))
    kept = set(first[:size])
    return tuple(s for i, s in enumerate(seats) if i in kept), tuple(s for i, s in enumerate(seats) if i not in kept)
