"""When jobs that wait will start: the scheduler itself, run forward in time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from math import exp
from typing import Final

from dlaas_server.core.model import Pool
from dlaas_server.core.plan import scheduled
from dlaas_server.core.scheduler import Policy
from jupyter_dlaas.facts import Goal

__all__ = ["EVENTS_MOST", "forecast", "forward"]

EVENTS_MOST: Final = 2000
"""Further ahead nobody can see, and it would cost too much."""
Z: Final = 1.2816
"""Between -Z and Z lie eight of ten values of a normal distribution."""


def forward(pool: Pool, now_s: float, policy: Policy, factor: float = 1.0) -> dict[str, float]:
    """When each waiting job starts if every job runs `factor` times as long as expected.

    Jobs behind one of unknown length are left out: nobody can say.
    """
    leaving = {job.id for job in pool.jobs.values() if job.members and job.goal is not Goal.RUN}
    scheduler, _ = scheduled(pool, now_s, policy, leaving)
    starts: dict[str, float] = {}
    ends: list[tuple[float, int, int]] = []
    asks = {ask.number: ask for ask in [*scheduler.running.values(), *scheduler.line()]}
    for ask in scheduler.running.values():
        _push(ends, asks[ask.number].end_s(now_s), now_s, factor, ask.number, ask.starts)
    at_s = now_s
    for _ in range(EVENTS_MOST):
        choice = scheduler.decide(at_s)
        for ask in choice.starts:
            starts.setdefault(ask.id, at_s)
            _push(ends, ask.end_s(at_s), at_s, factor, ask.number, ask.starts)
        if not scheduler.waiting:
            break
        while ends and (asks[ends[0][1]].starts != ends[0][2] or asks[ends[0][1]].since_s is None):
            heapq.heappop(ends)
        times = [*([ends[0][0]] if ends else []), *([choice.wake_s] if choice.wake_s is not None else [])]
        if not ends:
            break  # what runs has no known end, or nobody runs: waiting for time alone leads nowhere
        at_s = max(min(times), at_s)
        while ends and ends[0][0] <= at_s:
            _, number, began = heapq.heappop(ends)
            ask = asks[number]
            if ask.starts == began and ask.since_s is not None:
                scheduler.leave(ask, at_s, has_ended=False)
    return starts


def _push(
    ends: list[tuple[float, int, int]], end_s: float | None, now_s: float, factor: float, number: int, starts: int
) -> None:
    if end_s is not None:
        heapq.heappush(ends, (now_s + (end_s - now_s) * factor, number, starts))


def forecast(pool: Pool, now_s: float, policy: Policy, spread: float) -> Mapping[str, tuple[float, float]]:
    """Between which times each waiting job is expected to start.

    `spread`: standard deviation of the logarithm of how wrong expected lengths were until now.
    """
    early, late = (forward(pool, now_s, policy, exp(sign * Z * spread)) for sign in (-1, 1))
    return {job: (min(early[job], late[job]), max(early[job], late[job])) for job in early if job in late}
