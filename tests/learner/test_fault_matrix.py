"""Time without a step, read from a job's journal."""

from __future__ import annotations

from jupyter_dlaas.wire.journal import Fact, GenerationStarted, JobClosed, LearnerDown, LearnersLost
from jupyter_dlaas.wire.protocol import Cause, Failure
from tests.learner.fault_matrix import longest_stop_s

KILLED = Failure(cause=Cause.EVICTED, code="killed", what="killed", advice="")


def test_longest_pause_is_measured_or_inferred() -> None:
    facts: list[Fact] = [
        GenerationStarted(n=0, at_s=1.0, idle_s=0.25),
        LearnerDown(n=1, at_s=2.0, member=0, failure=KILLED),
        LearnerDown(n=2, at_s=2.5, member=1, failure=KILLED),
        LearnersLost(n=3, at_s=5.0, idle_s=2.0),
        JobClosed(n=4, at_s=9.0),
    ]

    assert longest_stop_s(facts) == 3.0
    assert longest_stop_s(facts[:1]) == 0.25
    assert longest_stop_s([]) == 0.0
