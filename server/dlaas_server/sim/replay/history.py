"""History of a pool as a trace: jobs in its engine's store, to be replayed under another policy or size."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlaas_server.core.model.job import Job
from dlaas_server.sim.replay.event_loop import Done, Replay
from dlaas_server.sim.trace.trace import NodeSpec, Trace, TraceJob
from dlaas_server.store import STORE_FILE, Store
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["NoHistory", "Past", "past_of", "read_past"]

TRIES: Final = 20
GB: Final = 10**9


class NoHistory(DlaasError):
    """Store without jobs to replay."""

    code = "no_history"
    http_status = 404


@dataclass(frozen=True, slots=True)
class Past:
    """History of the pool's jobs."""

    trace: Trace
    as_it_was: Replay
    """Figures of what really happened, as of a replay."""
    left_out: int
    """Jobs that never started, or have not ended."""

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """Return one node with the largest number of devices ever in use at once: the store has no nodes."""
        return (NodeSpec(name="pool", gpus=self.as_it_was.gpus),)


def read_past(folder: Path) -> Past:
    """Read the history of the pool in this directory, without changing it. Raises NoHistory, StoreError."""
    if not (folder / STORE_FILE).is_file():
        raise NoHistory(f"there is no pool in {folder}: say --pool-dir DIRECTORY")
    with tempfile.TemporaryDirectory(prefix="dlaas-history-") as copied:
        _copy(folder, Path(copied))
        return past_of(asyncio.run(_jobs(Path(copied) / STORE_FILE)), folder.name)


def _copy(folder: Path, to: Path) -> None:
    """Open a copy of the store with its log: a second connection to a store in use could block the engine."""
    names = (STORE_FILE, f"{STORE_FILE}-wal")
    for _ in range(TRIES):
        before = [_state(folder / name) for name in names]
        for name in names:
            (to / name).unlink(missing_ok=True)
            if (folder / name).exists():
                shutil.copyfile(folder / name, to / name)
        if [_state(folder / name) for name in names] == before:
            return
    raise NoHistory(f"the store in {folder} changes all the time: try again when the pool is quieter")


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


async def _jobs(path: Path) -> list[Job]:
    store = await Store.open(path)
    try:
        return list((await store.load()).jobs.values())
    finally:
        await store.close()


def past_of(jobs: Iterable[Job], name: str) -> Past:
    """Return the history of the jobs that started and ended. Raises NoHistory if there are none."""
    all_of_them = sorted(jobs, key=lambda job: (job.submitted_s, job.number))
    ended = [job for job in all_of_them if job.started_s is not None and job.ended_s is not None]
    if not ended:
        raise NoHistory(f"the pool {name} remembers no job that started and ended")
    first_s = ended[0].submitted_s
    done = [_done(job, first_s) for job in ended]
    trace = Trace(name=f"history of {name}", format="history", jobs=tuple(one.job for one in done))
    return Past(trace, _replayed(trace, done), len(all_of_them) - len(ended))


def _done(job: Job, first_s: float) -> Done:
    assert job.started_s is not None
    assert job.ended_s is not None
    spec = job.spec
    # What it held last; a job that could not change its size held what it asked for.
    learners = job.resizes[-1].after if job.resizes else job.wish
    learners = min(max(learners, spec.learners_min), spec.learners_max)
    return Done(
        job=TraceJob(
            id=job.id,
            submit_s=job.submitted_s - first_s,
            duration_s=max(job.ended_s - job.started_s, 1e-3),
            learners=learners,
            gpus_per_learner=spec.gpus_per_learner,
            cpus_per_learner=spec.cpus_per_learner,
            mem_gb_per_learner=spec.memory_bytes_per_learner / GB,
            queue=spec.queue,
            spot=spec.spot,
        ),
        start_s=job.started_s - first_s,
        end_s=job.ended_s - first_s,
        preemptions=0,
    )


def _replayed(trace: Trace, done: list[Done]) -> Replay:
    """Return the real events as a replay."""
    steps = [(one.job.submit_s, 0, 1) for one in done]
    steps += [(one.start_s, one.job.gpus, -1) for one in done] + [(one.end_s, -one.job.gpus, 0) for one in done]
    busy = waiting = busiest = longest = 0
    busy_gpu_s = queued_s = at_s = 0.0
    timeline: list[tuple[float, int, int]] = []
    for now_s, gpus, queued in sorted(steps):
        busy_gpu_s += busy * (now_s - at_s)
        queued_s += waiting * (now_s - at_s)
        at_s, busy, waiting = now_s, busy + gpus, waiting + queued
        busiest, longest = max(busiest, busy), max(longest, waiting)
        timeline.append((now_s, busy, waiting))
    return Replay(
        trace=trace,
        gpus=busiest,
        done=tuple(done),
        events=len(steps),
        begin_s=0.0,
        end_s=max(one.end_s for one in done),
        busy_gpu_s=busy_gpu_s,
        queued_s=queued_s,
        queued_max=longest,
        blocked_s=0.0,
        blocked_free_gpu_s=0.0,
        timeline=tuple(timeline),
    )
