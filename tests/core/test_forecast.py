"""When waiting jobs will start, by the scheduler run forward."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.forecast import forecast, forward
from dlaas_server.core.model import Known, Pool
from dlaas_server.core.scheduler import Policy
from tests.core.builders import job, node, pool, seats, training

FIFO = Policy(order="fifo")


def waiting(*lengths: float | None, executed: float = 40.0) -> Pool:
    """A job of 100 s that has run for `executed`; behind it jobs of these lengths. Each takes the whole pool."""
    running = training(job(1, (2, 2)), *seats("n1", 2))
    behind = [job(n, (2, 2)) for n in range(2, 2 + len(lengths))]
    known = {j.id: Known(length_s=length) for j, length in zip(behind, lengths, strict=True)}
    known[running.id] = Known(length_s=100.0, executed_s=executed)
    return replace(pool([node(devices=2)], running, *behind), known=known)


def test_each_starts_when_those_before_it_have_ended() -> None:
    assert forward(waiting(30.0, 50.0, 10.0), 1000.0, FIFO) == {"job-2": 1060.0, "job-3": 1090.0, "job-4": 1140.0}


def test_nobody_can_say_when_who_waits_for_a_job_of_unknown_length_starts() -> None:
    assert forward(waiting(None, 50.0), 1000.0, FIFO) == {"job-2": 1060.0}


def test_a_job_that_overran_is_expected_to_take_as_long_again() -> None:
    assert forward(waiting(30.0, executed=150.0), 1000.0, FIFO) == {"job-2": 1050.0}


@given(st.lists(st.floats(1.0, 1e5), max_size=5), st.floats(0.0, 2.0), st.floats(0.0, 1.0))
def test_intervals_hold_the_expected_time_and_those_of_less_doubt(
    lengths: list[float], doubt: float, less: float
) -> None:
    picture = waiting(*lengths)
    wide, narrow = (forecast(picture, 1000.0, FIFO, one) for one in (doubt, doubt * less))
    exact = forward(picture, 1000.0, FIFO)

    assert wide.keys() == narrow.keys() == exact.keys()
    for name, at_s in exact.items():
        assert wide[name][0] <= narrow[name][0] + 1e-6
        assert narrow[name][0] <= at_s + 1e-6
        assert at_s <= narrow[name][1] + 1e-6
        assert narrow[name][1] <= wide[name][1] + 1e-6
