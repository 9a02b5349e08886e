"""Time limit: it counts training time only, and starts again after a resume."""

from __future__ import annotations

from dataclasses import replace

from dlaas_server.core.lifecycle import time_limit
from dlaas_server.core.lifecycle.journal_events import apply_fact
from dlaas_server.core.lifecycle.plan_outcomes import started
from dlaas_server.core.lifecycle.user_requests import apply_request
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.states import Event
from jupyter_dlaas.wire.journal import GenerationStarted, JobClosed
from jupyter_dlaas.wire.protocol import JobSpec, State

SEAT = Seat(node="n1", devices=("n1/cpu-0",))


def job() -> Job:
    return Job(id="a-1", number=1, owner="me", spec=JobSpec(max_time_s=100.0), submitted_s=0.0, wish=1)


def trains(one: Job, at_s: float) -> Job:
    one = started(one, (SEAT,), at_s)[0]
    fact = GenerationStarted(n=one.facts_read, at_s=at_s, generation=one.generation, step=0)
    return apply_fact(one, fact)[0]


def closes(one: Job, at_s: float) -> Job:
    return apply_fact(one, JobClosed(n=one.facts_read, at_s=at_s, why="halted"))[0]


def test_waiting_in_the_queue_uses_nothing_of_the_limit() -> None:
    one = closes(trains(job(), 1000.0), 1060.0)
    assert time_limit.limit_s(one) is None

    one = trains(one, 5000.0)

    assert time_limit.limit_s(one) == 5040.0
    assert not time_limit.is_overdue(one, 5039.0)
    assert time_limit.is_overdue(one, 5040.0)


def test_resumed_job_has_its_whole_limit_again() -> None:
    one, [event] = apply_request(trains(job(), 1000.0), Event.HALT, by="its time limit of 100 s", now_s=1100.0)
    assert event.text.startswith("Its time limit of 100 s requested a halt.")
    one = closes(one, 1101.0)
    assert one.state is State.HALTED

    one = trains(apply_request(one, Event.RESUME, by="me", now_s=2000.0)[0], 2000.0)

    assert not time_limit.is_overdue(one, 2001.0)
    assert time_limit.limit_s(one) == 2100.0


def test_sleep_of_the_machine_does_not_count() -> None:
    one = time_limit.slept(trains(job(), 1000.0), 8 * 3600.0)

    assert time_limit.limit_s(one) == 1100.0 + 8 * 3600.0


def test_running_job_of_an_earlier_version_keeps_its_limit() -> None:
    one = replace(trains(job(), 1000.0), limit_since_s=None)

    assert time_limit.limit_s(time_limit.adopted(one)) == 1100.0
    assert time_limit.limit_s(time_limit.adopted(job())) is None
