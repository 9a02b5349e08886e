"""Defragmentation: make room for one large learner by migrating a small job.

Jobs that come and go fragment the free devices. Without migration a job that needs a whole node waits until one happens
to empty. A small job that moves to other seats at once loses no more than a restart.
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
"""A job to migrate, and its new seats."""
NODES_MOST: Final = 32
TRIES_MOST: Final = 8


def gathered(
    ask: Ask, frees: Frees, on: Mapping[str, Mapping[int, Ask]], now_s: float, ran_factor: float
) -> tuple[tuple[Seat, ...], Move] | list[Ask]:
    """Return the seats for this job and the move of the job that makes room, all taken.

    If no move helps, take nothing and return the candidates that were skipped because they are about to end. They may
    be moved if they are still running after that. `on`: jobs with one learner, by node. A job may move if it may be
    preempted, did not start just now, and has at least `ran_factor` times the move's cost left to run. The smallest job
    that helps is chosen. Moving two jobs for one gained 1 % more, with a fifth more stops.
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
    """Yield nodes with some free devices, but too few; those that lack the fewest come first."""
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
