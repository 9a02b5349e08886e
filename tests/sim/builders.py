"""Small traces to simulate."""

from __future__ import annotations

from dlaas_server.sim.replay.event_loop import Done, Replay
from dlaas_server.sim.trace.trace import Trace, TraceJob


def tjob(name: str, submit_s: float, gpus: int, duration_s: float | None, *, learners: int = 1) -> TraceJob:
    return TraceJob(id=name, submit_s=submit_s, duration_s=duration_s, learners=learners, gpus_per_learner=gpus)


def trace(*jobs: TraceJob) -> Trace:
    return Trace(name="small", format="gang", jobs=tuple(sorted(jobs, key=lambda j: j.submit_s)))


def done(result: Replay, name: str) -> Done:
    return next(d for d in result.done if d.job.id == name)


def times(result: Replay) -> dict[str, tuple[float, float]]:
    return {d.job.id: (d.start_s, d.end_s) for d in result.done}
