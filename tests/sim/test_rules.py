"""The fast forms of Tiresias' rules decide as the plain ones do that sort every job at every event, ties included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlaas_server.sim.replay.event_loop import Decision, Rule, Run, replay
from dlaas_server.sim.rules.attained import LIMITS, Attained, GittinsIndex
from dlaas_server.sim.rules.tiresias import Sorted, remaining_gpu_s, remaining_s, size
from dlaas_server.sim.trace.trace import Trace
from tests.sim.builders import tjob, trace

GPUS = 5
INDEX = GittinsIndex([100, 900, 2000, 2000, 4000, 9000, 20000])
jobs = st.tuples(st.integers(0, 12), st.integers(1, GPUS), st.integers(1, 12))


def traces(scale: int) -> st.SearchStrategy[Trace]:
    """Coarse times, so that many things happen at once and many keys are equal."""
    return st.lists(jobs, min_size=1, max_size=20).map(
        lambda asked: trace(*(tjob(f"j{i}", s * scale, g, d * scale) for i, (s, g, d) in enumerate(asked)))
    )


def given_in(order: Sequence[Run]) -> Decision:
    """GPUs go to the jobs in this order, skipping what does not fit."""
    free, starts, stops = GPUS, list[Run](), list[Run]()
    for run in order:
        if run.gpus <= free:
            free -= run.gpus
            if run.since_s is None:
                starts.append(run)
        elif run.since_s is not None:
            stops.append(run)
    return Decision(starts=starts, stops=stops)


class PlainSorted:
    def __init__(self, key: Callable[[Run, float], float]) -> None:
        self.key = key
        self.jobs: list[Run] = []

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        self.jobs = [run for run in self.jobs if run not in ended] + list(arrived)
        self.jobs.sort(key=lambda run: self.key(run, now_s))
        return given_in(self.jobs)


class PlainAttained:
    def __init__(self, is_by_gpu: bool, index: GittinsIndex | None) -> None:
        self.is_by_gpu, self.index = is_by_gpu, index
        self.jobs: list[Run] = []
        self.queues: list[list[Run]] = [[], [], []]

    def service(self, run: Run, now_s: float) -> float:
        return run.executed_at(now_s) * (run.gpus if self.is_by_gpu else 1)

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        self.jobs = [run for run in self.jobs if run not in ended] + list(arrived)
        self.queues = [[run for run in queue if run not in ended] for queue in self.queues]
        self.queues[0] += arrived
        for run in self.jobs:
            level = next(i for i, queue in enumerate(self.queues) if run in queue)
            if run.since_s is not None and level < len(LIMITS) and self.service(run, now_s) >= LIMITS[level]:
                self.queues[level].remove(run)
                self.queues[level + 1].append(run)
        if self.index is not None:
            index = self.index
            for queue in self.queues:
                queue.sort(key=lambda r: (index.at(self.service(r, now_s)), -r.job.submit_s), reverse=True)
        decision = given_in([run for queue in self.queues for run in queue])
        runs = {run for run in self.jobs if run.since_s is not None} - set(decision.stops) | set(decision.starts)
        for queue in self.queues:
            queue.sort(key=lambda run: run not in runs)
        decision.wake_s = min(
            (
                now_s + (LIMITS[level] - run.executed_at(now_s)) // (run.gpus if self.is_by_gpu else 1)
                for level in range(len(LIMITS))
                for run in self.queues[level]
                if run in runs
            ),
            default=None,
        )
        return decision


def agree(small: Trace, fast: Rule, plain: Rule) -> None:
    assert replay(small, GPUS, fast).done == replay(small, GPUS, plain).done


@pytest.mark.parametrize("key", [size, remaining_s, remaining_gpu_s])
@given(small=traces(1))
@settings(max_examples=150)
def test_sorting_running_jobs_equals_sorting_all(key: Callable[[Run, float], float], small: Trace) -> None:
    agree(small, Sorted(GPUS, key), PlainSorted(key))


@pytest.mark.parametrize(("is_by_gpu", "index"), [(False, None), (True, None), (True, INDEX)])
@given(small=traces(650))
@settings(max_examples=150)
def test_queues_by_attained_service_agree(is_by_gpu: bool, index: GittinsIndex | None, small: Trace) -> None:
    agree(small, Attained(GPUS, is_by_gpu=is_by_gpu, index=index), PlainAttained(is_by_gpu, index))


def test_beyond_all_that_was_seen_the_index_is_nothing() -> None:
    assert INDEX.at(20_000) == 0
    assert INDEX.at(0) > 0
