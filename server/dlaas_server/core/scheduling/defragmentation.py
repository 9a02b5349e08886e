"""Defragmentation: make room for one large learner by migrating a small job.

Jobs that come and go fragment the free devices. Without migration a job that needs a whole node waits until one happens
to empty. A small job that moves to other seats at once loses no more than a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.placement.gang_placement import FreeCapacity, NodeCapacity
from dlaas_server.core.scheduling.fit import take_seats
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import SLACK_S
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.core.scheduling.preemption import Preemption
from dlaas_server.core.scheduling.running_set import SAME_S, RunningSet
from dlaas_server.core.scheduling.timers import RETRY, Timers

__all__ = ["Defragmentation", "Migration", "find_migration"]

MAX_NODES: Final = 32
"""Maximum number of nodes searched for a job to move."""
MAX_TRIES: Final = 8
"""Maximum number of jobs whose move is tried."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Move of a running job to other seats, which frees `seats` for a waiting one. All seats are taken."""

    seats: tuple[Seat, ...]
    mover: GangRequest
    mover_seats: tuple[Seat, ...]


class Defragmentation:
    """Search for the move of one job that lets a waiting job start on one node."""

    def __init__(
        self, capacity: FreeCapacity, policy: Policy, running: RunningSet, preemption: Preemption, timers: Timers
    ) -> None:
        self._capacity, self._running, self._preemption, self._timers = capacity, running, preemption, timers
        self._ran_factor = policy.ran_factor

    def migrate_for(self, request: GangRequest, now_s: float) -> Migration | None:
        """Return a migration that frees enough devices on one node, where enough devices are free but scattered."""
        shape = request.shape
        is_single = request.learners == 1 and not shape.is_share and 1 < shape.gpus <= self._capacity.devices
        if not is_single or not self._preemption.has_been_patient(request, now_s):
            return None
        found = find_migration(request, self._capacity, self._running.by_node, now_s, self._ran_factor)
        if isinstance(found, Migration):
            return found
        for mover in found:  # about to end: those still running after that may be moved
            over_s = (mover.end_s(now_s) or now_s) + SLACK_S / 2
            if abs(over_s - mover.patience_s) > SAME_S:
                mover.patience_s = over_s
                self._timers.add(over_s, RETRY, mover)
        return None


def find_migration(
    request: GangRequest,
    capacity: FreeCapacity,
    by_node: Mapping[str, Mapping[int, GangRequest]],
    now_s: float,
    ran_factor: float,
) -> Migration | list[GangRequest]:
    """Return the migration that makes room for this job.

    If none helps, take nothing and return the candidates that were skipped because they are about to end. `by_node`:
    jobs with one learner, by node. A job may move if it may be preempted, did not start just now, and has at least
    `ran_factor` times the move's cost left to run. The smallest job that helps is chosen. Moving two jobs for one
    gained 1 % more, with a fifth more stops.
    """
    movers: dict[tuple[int, int], GangRequest] = {}
    ending: list[GangRequest] = []
    for node in _nearest(request, capacity):
        for mover in by_node.get(node.name, {}).values():
            if len(node.devices) + mover.weight < request.weight or not _may_move(mover, request, now_s):
                continue
            if _is_ending(mover, now_s, ran_factor):
                ending.append(mover)
                continue
            alike = movers.setdefault((mover.weight, node.index), mover)
            if mover.number > alike.number:
                movers[mover.weight, node.index] = mover
    for _, mover in sorted(movers.items())[:MAX_TRIES]:
        migration = _try_move(request, mover, capacity, now_s)
        if migration is not None:
            return migration
    return ending


def _may_move(mover: GangRequest, request: GangRequest, now_s: float) -> bool:
    return mover.is_victim and mover.began_s < now_s and mover.priority <= request.priority


def _is_ending(mover: GangRequest, now_s: float, ran_factor: float) -> bool:
    end_s = mover.end_s(now_s)
    return end_s is not None and end_s - now_s < ran_factor * mover.restart_s


def _nearest(request: GangRequest, capacity: FreeCapacity) -> Iterator[NodeCapacity]:
    """Yield nodes with some free devices, but too few; those that lack the fewest come first."""
    left = MAX_NODES
    for devices in range(request.shape.gpus - 1, 0, -1):
        for free in capacity.takers(replace(request.shape, gpus=devices)):
            if len(free.devices) > devices or not left:
                break
            left -= 1
            yield free


def _try_move(request: GangRequest, mover: GangRequest, capacity: FreeCapacity, now_s: float) -> Migration | None:
    capacity.give(mover.shape, mover.seats)
    seats = take_seats(capacity, request, now_s)
    if seats is not None:
        mover_seats = take_seats(capacity, mover, now_s)
        if mover_seats is not None:
            return Migration(seats, mover, mover_seats)
        capacity.give(request.shape, seats)
    capacity.claim(mover.shape, mover.seats)
    return None
