"""Run lengths of jobs and their time left, from measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import log
from operator import attrgetter
from typing import Final

from dlaas_server.core.forecast.track_record import soon
from dlaas_server.core.lifecycle.journal_events import executed_s as ran_for_s
from dlaas_server.core.lifecycle.time_limit import limit_s
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.pool import Known
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.scheduling.ordering import Order, new_order
from dlaas_server.core.scheduling.run_length import History
from dlaas_server.engine.estimation.pace import SPREAD, Paces, Timing
from jupyter_dlaas.wire.protocol import Progress, State

__all__ = ["Lengths", "offered", "with_start"]

SPREAD_LEFT_MIN: Final = 0.1
"""Fraction of the uncertainty that remains, however little time is left."""
LEAST_LEFT_S: Final = 1.0
"""Time left of a job that has done everything, as far as is known."""
RESTART_S: Final = 3.0
"""Assumed cost in seconds of stopping and restoring a job, until it was measured."""

_SIMILAR: Final = attrgetter(
    "owner",
    "spec.name",
    "spec.origin.notebook",
    "spec.origin.cell_id",
    "spec.learners_min",
    "spec.gpus_per_learner",
    "spec.max_time_s",
)
"""Fields on which the known length of a job that never ran depends."""


class Lengths:
    """Run lengths of jobs: by their own progress, else by the most similar jobs that have ended (at least two).

    That is: of the same owner's the same cell of the same notebook, else the same name, else any; else the pool's of
    the same size, else all.
    """

    def __init__(self) -> None:
        self._alike: dict[tuple[str, ...], History] = {}
        self._by_size = History()
        self._seen: set[str] = set()
        self._served: list[tuple[float, float | None]] = []
        """GPU-seconds, and the logarithm of the factor by which the expectation was wrong."""
        self._orders: dict[str, Order] = {}
        self.paces = Paces()

    def learn(self, job: Job) -> None:
        """Record the run length of a completed job."""
        if job.id in self._seen or job.state is not State.COMPLETED or job.started_s is None or job.ended_s is None:
            return
        self._seen.add(job.id)
        length_s = ran_for_s(job, job.ended_s)
        usual_s = self._usual_s(job)
        self._by_size.learn(usual_s, length_s, _weight(job))
        for alike in _alike(job):
            self._alike.setdefault(alike, History(enough=2)).learn(None, length_s, _weight(job))
        if job.spec.spot:
            return  # spot jobs change nothing about the turn of others
        wrong = log(length_s / usual_s) if usual_s and length_s > 0 else None
        self._served.append((length_s * _weight(job), wrong))
        for order in self._orders.values():
            order.learn(*self._served[-1])

    def order(self, name: str) -> Order:
        """Return the order of this name, with the run lengths of completed jobs."""
        order = self._orders.get(name)
        if order is None:
            order = self._orders[name] = new_order(name)
            for served in self._served:
                order.learn(*served)
        return order

    @property
    def spread(self) -> float:
        """Return the error of expected lengths so far: the standard deviation of their logarithm."""
        return self._by_size.spread

    def _most_alike(self, job: Job) -> History:
        histories = (self._alike.get(alike) for alike in _alike(job))
        return next((h for h in histories if h is not None and h.all_lengths.count >= h.enough), self._by_size)

    def _usual_s(self, job: Job) -> float | None:
        return self._most_alike(job).expected_s(None, _weight(job))

    def known(self, jobs: Iterable[Job], progress: Mapping[str, Progress], now_s: float) -> dict[str, Known]:
        """Return the known lengths of these jobs. Similar jobs that never ran share one."""
        jobs = list(jobs)
        if self._by_size.is_due:
            timings = ((job, self._timing(job, progress.get(job.id), now_s)) for job in jobs)
            self._by_size.look((_weight(job), _executed_s(job, measured, now_s)) for job, measured in timings)
        found: dict[str, Known] = {}
        fresh: dict[tuple[object, ...], Known] = {}
        for job in jobs:
            report = progress.get(job.id)
            if report is not None or job.started_s is not None:
                found[job.id] = _limited(self._known(job, report, now_s), job, now_s)
                continue
            similar = _SIMILAR(job)
            if (known := fresh.get(similar)) is None:
                known = fresh[similar] = _limited(self._known(job, None, now_s), job, now_s)
            found[job.id] = known
        return found

    def _timing(self, job: Job, progress: Progress | None, now_s: float) -> Timing | None:
        return None if progress is None else self.paces.timing(job, progress, now_s)

    def _known(self, job: Job, progress: Progress | None, now_s: float) -> Known:
        measured = self._timing(job, progress, now_s)
        executed_s = _executed_s(job, measured, now_s)
        if measured is not None:
            left_s = max(measured.left_s, LEAST_LEFT_S)
            length_s = executed_s + left_s
            doubt = SPREAD * max((left_s - measured.silent_s) / length_s, SPREAD_LEFT_MIN)
            doubt += measured.silent_s / length_s
            return Known(length_s=length_s, usual_s=length_s, spread=doubt, executed_s=executed_s, restart_s=RESTART_S)
        history, weight = self._most_alike(job), _weight(job)
        usual_s = history.expected_s(None, weight)
        return Known(
            length_s=usual_s,
            usual_s=usual_s,
            mean_s=self._by_size.mean_s(usual_s, weight),
            spread=history.doubt(weight),
            executed_s=executed_s,
            restart_s=RESTART_S,
        )


def _executed_s(job: Job, measured: Timing | None, now_s: float) -> float:
    """Return how long the job has run, by its pace if known. Time in the queue does not count."""
    if measured is not None and measured.executed_s is not None:
        return measured.executed_s
    return job.ran_s if job.waits or job.state is State.HALTED else ran_for_s(job, now_s)


def _limited(known: Known, job: Job, now_s: float) -> Known:
    """Return the length cut at the job's time limit, at which it halts and releases its devices."""
    if job.spec.max_time_s is None or known.length_s is None:
        return known
    at_s = limit_s(job)
    left_s = max(job.spec.max_time_s - job.limit_used_s if at_s is None else at_s - now_s, LEAST_LEFT_S)
    if known.length_s - known.executed_s <= left_s:
        return known
    length_s = known.executed_s + left_s
    return replace(known, length_s=length_s, usual_s=length_s, mean_s=None, spread=SPREAD * SPREAD_LEFT_MIN)


def with_start(wait: Wait, expected: tuple[float, float] | None, now_s: float, offer: str = "") -> Wait:
    """Return the wait with the start estimate, if there is one, and the offer of a smaller size."""
    if not wait.is_queued:
        return wait
    said = "" if expected is None else f" Expected to start {soon(expected, now_s)}."
    return replace(wait, reason=f"{wait.reason}{said}{offer}") if said or offer else wait


def offered(job: Job, learners: int | None) -> str:
    """` With 2 GPUs it would start now: --gpus 2:4.` Return "" if it would not start with fewer either."""
    if not learners:
        return ""
    each = job.spec.gpus_per_learner
    how = f": --gpus {learners}:{job.spec.learners_max}" if each == 1 else ""
    return f" With {count(learners * each, job.unit) if each else count(learners, 'learner')} it would start now{how}."


def _weight(job: Job) -> int:
    return (len(job.gang) or job.spec.learners_min) * max(job.spec.gpus_per_learner, 1)


def _alike(job: Job) -> tuple[tuple[str, ...], ...]:
    """Return the keys of similar jobs, most similar first."""
    origin = job.spec.origin
    cell = ((job.owner, origin.notebook, origin.cell_id),) if origin.notebook and origin.cell_id else ()
    return (*cell, (job.owner, job.name), (job.owner,))
