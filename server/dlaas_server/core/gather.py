"""Room for one large learner by moving small ones: enough devices are free, but not on one node.

As jobs come and go, what is free lies in pieces. Who needs a whole node would wait until one happens to empty; a small
job on it loses no more than a restart when it goes on elsewhere at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from dlaas_server.core.asks import Ask
from dlaas_server.core.model import Seat
from dlaas_server.core.place import Free, Frees
from dlaas_server.core.seating import seated

__all__ = ["Moved", "gathered"]

Moved = tuple[Ask, tuple[Seat, ...]]
"""Who goes on elsewhere, and where."""
MOVES_MOST: Final = 2
"""So many go on elsewhere for one: with four the outcome is the same, for more stops."""
NODES_MOST: Final = 32
TRIES_MOST: Final = 8
NOBODY: Final[Mapping[int, Ask]] = {}


def gathered(
    ask: Ask, frees: Frees, on: Mapping[str, Mapping[int, Ask]], now_s: float, ran_factor: float
) -> tuple[tuple[Seat, ...], list[Moved]] | None:
    """Seats for this job, and for those that make way for it; all are taken. None, and nothing is taken, if none do.

    `on`: jobs of one learner, by node. Who moves may be preempted, and has more before it than `ran_factor` x what the
    move costs. As few move as possible, and as small ones.
    """
    found = [
        (len(movers), sum(one.weight for one in movers), free.index, movers)
        for free in _nearest(ask, frees)
        for movers in _enough(
            ask, free, [o for o in on.get(free.name, NOBODY).values() if _may_move(o, ask, now_s, ran_factor)]
        )
    ]
    for *_, movers in sorted(found, key=lambda one: one[:3])[:TRIES_MOST]:
        tried = _tried(ask, movers, frees, now_s)
        if tried is not None:
            return tried
    return None


def _may_move(one: Ask, ask: Ask, now_s: float, ran_factor: float) -> bool:
    end_s = one.end_s(now_s)
    is_brief = end_s is not None and end_s - now_s < ran_factor * one.restart_s
    return one.is_victim and one.priority <= ask.priority and not is_brief


def _nearest(ask: Ask, frees: Frees) -> Iterator[Free]:
    """Nodes with some free devices, but too few: those first that lack the fewest."""
    left = NODES_MOST
    for devices in range(ask.shape.gpus - 1, 0, -1):
        for free in frees.takers(replace(ask.shape, gpus=devices)):
            if len(free.devices) > devices or not left:
                break
            left -= 1
            yield free


def _enough(ask: Ask, free: Free, residents: Collection[Ask]) -> Iterator[tuple[Ask, ...]]:
    """Those of a node with whose devices it would have enough: one, or as few as it takes."""
    lacks = ask.weight - len(free.devices)
    sorted_ = sorted(residents, key=lambda one: (one.weight, one.number))
    for count in range(1, MOVES_MOST + 1):
        alike = set[tuple[int, ...]]()
        for movers in combinations(sorted_, count):
            sizes = tuple(one.weight for one in movers)
            if sum(sizes) >= lacks and sizes not in alike:
                alike.add(sizes)
                yield movers
        if alike:
            return


def _tried(ask: Ask, movers: Sequence[Ask], frees: Frees, now_s: float) -> tuple[tuple[Seat, ...], list[Moved]] | None:
    for mover in movers:
        frees.give(mover.shape, mover.seats)
    moved: list[Moved] = []
    seats = seated(frees, ask, now_s)
    if seats is not None:
        for mover in sorted(movers, key=lambda one: (-one.weight, one.number)):
            its = seated(frees, mover, now_s)
            if its is None:
                break
            moved.append((mover, its))
        if len(moved) == len(movers):
            return seats, moved
        frees.give(ask.shape, seats)
    for mover, its in moved:
        frees.give(mover.shape, its)
    for mover in movers:
        frees.claim(mover.shape, mover.seats)
    return None
