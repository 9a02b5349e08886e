"""Spot jobs in a trace: those that the file marks, or a random part of all."""

from __future__ import annotations

import random
from dataclasses import replace

from dlaas_server.sim.replay.event_loop import Replay
from dlaas_server.sim.trace.trace import Trace

__all__ = ["has_spot", "marked", "parted"]


def marked(trace: Trace, share: float, seed: int) -> Trace:
    """Return the trace with this share of its jobs marked as spot jobs, drawn by the seed."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    return replace(trace, jobs=tuple(replace(job, spot=job.spot or chance.random() < share) for job in trace.jobs))


def has_spot(trace: Trace) -> bool:
    """Return whether some of its jobs are spot jobs."""
    return any(job.spot for job in trace.jobs)


def parted(result: Replay) -> dict[str, Replay]:
    """Return the results of all, ordinary and spot jobs if there are both. Figures of the pool are the same in each."""
    kinds = {"ordinary": False, "spot": True}
    parts = {name: tuple(done for done in result.done if done.job.spot is is_spot) for name, is_spot in kinds.items()}
    if not all(parts.values()):
        return {}
    return {"all": result, **{name: replace(result, done=done) for name, done in parts.items()}}
