"""The event loop: what happens at one time is decided at once, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.sim.replay.event_loop import Decision, Run, Unrunnable, replay
from dlaas_server.sim.rules.names import COUNTING
from dlaas_server.sim.trace.trace import Trace
from tests.selection import covering, each_nth
from tests.sim.builders import done, times, tjob, trace

GPUS = 4
shapes = st.tuples(st.integers(0, 60), st.integers(1, GPUS), st.integers(1, 40))
traces = st.lists(shapes, min_size=1, max_size=25).map(
    lambda jobs: trace(*(tjob(f"j{i}", submit, gpus, length) for i, (submit, gpus, length) in enumerate(jobs)))
)


def test_a_gpu_freed_now_is_given_now() -> None:
    small = trace(tjob("a", 0, 4, 10), tjob("b", 10, 4, 5))

    assert times(replay(small, GPUS, COUNTING["tiresias:fifo"](GPUS))) == {"a": (0, 10), "b": (10, 15)}


def test_fifo_stops_at_the_first_that_does_not_fit() -> None:
    small = trace(tjob("a", 0, 3, 10), tjob("big", 1, 4, 10), tjob("small", 2, 1, 3))

    assert times(replay(small, GPUS, COUNTING["tiresias:fifo"](GPUS)))["small"] == (20, 23)


def test_fit_first_walks_on() -> None:
    small = trace(tjob("a", 0, 3, 10), tjob("big", 1, 4, 10), tjob("small", 2, 1, 3))

    assert times(replay(small, GPUS, COUNTING["tiresias:fjf"](GPUS)))["small"] == (2, 5)


def test_preempted_job_continues_where_it_was() -> None:
    small = trace(tjob("long", 0, 4, 100), tjob("short", 30, 4, 10))

    result = replay(small, GPUS, COUNTING["tiresias:shortest"](GPUS))

    assert times(result) == {"long": (0, 110), "short": (30, 40)}
    assert done(result, "long").preemptions == 1


def test_restart_costs_the_given_time() -> None:
    small = trace(tjob("long", 0, 4, 100), tjob("short", 30, 4, 10))

    result = replay(small, GPUS, COUNTING["tiresias:shortest"](GPUS), restart_s=60)

    assert times(result) == {"long": (0, 170), "short": (30, 40)}


def test_a_job_larger_than_the_pool_is_named() -> None:
    with pytest.raises(Unrunnable, match=r"job big \(8 GPUs\) never runs on this pool of 4 GPUs"):
        replay(trace(tjob("big", 0, 8, 10)), GPUS, COUNTING["tiresias:fjf"](GPUS))


def test_a_job_without_a_duration_is_refused() -> None:
    with pytest.raises(Unrunnable, match="job a has no duration"):
        replay(trace(tjob("a", 0, 1, None)), GPUS, COUNTING["tiresias:fifo"](GPUS))


@pytest.mark.parametrize(
    ("name", "restart_s"), covering((name, restart_s) for restart_s in (0, 7) for name in COUNTING)
)
@given(small=traces)
def test_all_jobs_end_and_gpu_seconds_are_conserved(name: str, restart_s: int, small: Trace) -> None:
    result = replay(small, GPUS, COUNTING[name](GPUS), restart_s=restart_s)

    work = sum(job.gpus * (job.duration_s or 0) for job in small.jobs)
    restarts = sum(d.preemptions * d.job.gpus * restart_s for d in result.done)
    assert all(d.end_s - d.start_s >= (d.job.duration_s or 0) and d.start_s >= d.job.submit_s for d in result.done)
    assert max(busy for _, busy, _ in result.timeline) <= GPUS
    assert work <= result.busy_gpu_s <= work + restarts
    assert result.timeline[-1][1:] == (0, 0)


@pytest.mark.parametrize("name", each_nth([*COUNTING], 3))
@given(small=traces)
def test_the_same_trace_gives_the_same_result(name: str, small: Trace) -> None:
    assert replay(small, GPUS, COUNTING[name](GPUS)) == replay(small, GPUS, COUNTING[name](GPUS))


class AtOnce:
    """Stops whatever runs and starts it again, in one decision."""

    def __init__(self) -> None:
        self.running: list[Run] = []

    def decide(self, now_s: float, ended: Sequence[Run], arrived: Sequence[Run]) -> Decision:
        stops = [run for run in self.running if run not in ended]
        self.running = [*stops, *arrived]
        return Decision(starts=self.running, stops=stops)


def test_job_stopped_and_started_at_once_continues() -> None:
    small = trace(tjob("a", 0, 1, 100), tjob("b", 30, 1, 10))

    result = replay(small, GPUS, AtOnce(), restart_s=5)

    assert times(result) == {"a": (0, 110), "b": (30, 40)}  # it is stopped as `b` comes and as it goes
    assert done(result, "a").preemptions == 2
    assert [waiting for _, _, waiting in result.timeline] == [0, 0, 0, 0]
