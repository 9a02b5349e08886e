"""How long it will still take, from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from dlaas_server.core.estimates import History
from dlaas_server.core.model import Job, Known
from dlaas_server.core.orders import Order, made
from dlaas_server.core.plan import Wait
from dlaas_server.core.record import soon
from jupyter_dlaas.protocol import Progress, State

__all__ = ["Lengths", "with_start", "with_time_left"]

SPREAD: Final = 0.15
"""Half width of the range around steps left / measured rate: the first version; a measured spread replaces it."""
RESTART_S: Final = 3.0
"""What stopping a job and restoring it costs, as long as nothing was measured."""


def with_time_left(progress: Progress) -> Progress:
    """The report with a range for the time left, where total steps and rate are known."""
    if progress.steps is None or not progress.steps_per_s:
        return progress
    left = max(progress.steps - progress.step, 0) / progress.steps_per_s
    return replace(progress, left_s_low=left * (1 - SPREAD), left_s_high=left * (1 + SPREAD))


class Lengths:
    """How long jobs run: by their own progress, else by those of the same name, else by those of the same size."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], History] = {}
        self._by_size = History()
        self._seen: set[str] = set()
        self._served: list[float] = []
        self._orders: dict[str, Order] = {}

    def learn(self, job: Job) -> None:
        """A job that completed teaches how long such jobs run."""
        if job.id in self._seen or job.state is not State.COMPLETED or job.started_s is None or job.ended_s is None:
            return
        self._seen.add(job.id)
        length_s = job.ended_s - job.started_s
        self._by_size.learn(self._usual_s(job), length_s, _weight(job))
        self._by_name.setdefault((job.owner, job.name), History(enough=2)).learn(None, length_s, _weight(job))
        self._served.append(length_s * _weight(job))
        for order in self._orders.values():
            order.learn(self._served[-1])

    def order(self, name: str) -> Order:
        """The order of this name, with what it learnt from jobs that completed."""
        order = self._orders.get(name)
        if order is None:
            order = self._orders[name] = made(name)
            for gpu_s in self._served:
                order.learn(gpu_s)
        return order

    @property
    def spread(self) -> float:
        """How wrong expected lengths were until now: the standard deviation of their logarithm."""
        return self._by_size.spread

    def _usual_s(self, job: Job) -> float | None:
        same = self._by_name.get((job.owner, job.name))
        usual_s = same.expected_s(None, _weight(job)) if same is not None else None
        return self._by_size.expected_s(None, _weight(job)) if usual_s is None else usual_s

    def known(self, jobs: Iterable[Job], progress: Mapping[str, Progress], now_s: float) -> dict[str, Known]:
        """What is known of each of these jobs."""
        return {job.id: self._known(job, progress.get(job.id), now_s) for job in jobs}

    def _known(self, job: Job, progress: Progress | None, now_s: float) -> Known:
        executed_s = 0.0 if job.started_s is None else max(now_s - job.started_s, 0.0)
        usual_s = length_s = self._usual_s(job)
        if progress is not None and progress.steps is not None and progress.steps_per_s:
            executed_s = progress.step / progress.steps_per_s  # time in the queue, between two starts, is no work
            length_s = progress.steps / progress.steps_per_s
        return Known(length_s=length_s, usual_s=usual_s, executed_s=executed_s, restart_s=RESTART_S)


def with_start(wait: Wait, expected: tuple[float, float] | None, now_s: float) -> Wait:
    """The reason, with when the job is expected to start where that can be said."""
    if expected is None or not wait.place:
        return wait
    return replace(wait, reason=f"{wait.reason} Expected to start {soon(expected, now_s)}.")


def _weight(job: Job) -> int:
    return (len(job.gang) or job.spec.learners_min) * max(job.spec.gpus_per_learner, 1)
