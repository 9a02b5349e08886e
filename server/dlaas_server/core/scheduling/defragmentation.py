"""Room for one large learner by moving a small one: enough devices are free, but not on one node.

As jobs come and go, what is free lies in pieces. Who needs a whole node would wait until one happens to empty; a small
job on it loses no more than a restart when it goes on elsewhere at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.placement.gang_placement import Free, Frees
from dlaas_server.core.scheduling.fit import seated
from dlaas_server.core.scheduling.gang_request import Ask

__all__ = ["Move", "gathered"]

Move = tuple[Ask, tuple[Seat, ...]]
"""Who goes on elsewhere, and where."""
NODES_MOST: Final = 32
TRIES_MOST: Final = 8


def gathered(
    ask: Ask, frees: Frees, on: Mapping[str, Mapping[int, Ask]], now_s: float, ran_factor: float
) -> tuple[tuple[Seat, ...], Move] | list[Ask]:
    """Seats for this job, and for the one that makes way for it, both taken.

    If none does, nothing is taken, and those are returned that would be asked if they were not about to end: when they
    have not ended by then, they may be. `on`: jobs of one learner, by node. Who moves may be preempted, did not begin
    just now, and has more before it than `ran_factor` x what the move costs. The smallest that helps: two for one
    gained 1 % more, for a fifth more stops.
    """
    found: dict[tuple[int, int], Ask] = {}
    brief: list[Ask] = []
    for free in _nearest(ask, frees):
        for mover in on.get(free.name, {}).values():
            if len(free.devices) + mover.weight < ask.weight or not _may_move(mover, ask, now_s):
                continue
            if _is_brief(mover, now_s, ran_factor):
                brief.append(mover)
                continue
            alike = found.setdefault((mover.weight, free.index), mover)
            if mover.number > alike.number:
                found[mover.weight, free.index] = mover
    for _, mover in sorted(found.items())[:TRIES_MOST]:
        tried = _tried(ask, mover, frees, now_s)
        if tried is not None:
            return tried
    return brief


def _may_move(mover: Ask, ask: Ask, now_s: float) -> bool:
    return mover.is_victim and mover.began_s < now_s and mover.priority <= ask.priority


def _is_brief(mover: Ask, now_s: float, ran_factor: float) -> bool:
    end_s = mover.end_s(now_s)
    return end_s is not None and end_s - now_s < ran_factor * mover.restart_s


def _nearest(ask: Ask, frees: Frees) -> Iterator[Free]:
    """Nodes with some free devices, but too few: those first that lack the fewest."""
    left = NODES_MOST
    for devices in range(ask.shape.gpus - 1, 0, -1):
        for free in frees.takers(replace(ask.shape, gpus=devices)):
            if len(free.devices) > devices or not left:
                break
            left -= 1
            yield free


def _tried(ask: Ask, mover: Ask, frees: Frees, now_s: float) -> tuple[tuple[Seat, ...], Move] | None:
    frees.give(mover.shape, mover.seats)
    seats = seated(frees, ask, now_s)
    if seats is not None:
        its = seated(frees, mover, now_s)
        if its is not None:
            return seats, (mover, its)
        frees.give(ask.shape, seats)
    frees.claim(mover.shape, mover.seats)
    return None
