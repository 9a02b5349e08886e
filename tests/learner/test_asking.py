"""Requests that a program may make while it runs."""

from __future__ import annotations

import pytest

from jupyter_dlaas.learner.training_run.size_request import learners_for
from jupyter_dlaas.wire.protocol import Elastic, JobSpec, NotAllowed

SPEC = JobSpec(learners_min=1, learners_max=4, gpus_per_learner=2)


def test_gpus_are_asked_for_and_become_learners() -> None:
    assert learners_for(SPEC, 6) == 3


@pytest.mark.parametrize(
    ("spec", "gpus", "says"),
    [
        (SPEC, 10, "takes 2 to 8. Submit it with --gpus 2:10"),
        (SPEC, 3, "take 2 each"),
        (JobSpec(), 2, "takes exactly 1. Submit it with --gpus 1:2"),
        (JobSpec(learners_max=2, elastic=Elastic.OFF), 2, "--elastic off"),
        (SPEC, 2.5, "whole number"),
    ],
)
def test_size_request_that_is_not_allowed_is_refused_with_advice(spec: JobSpec, gpus: int, says: str) -> None:
    with pytest.raises(NotAllowed, match=says.replace("(", r"\(")):
        learners_for(spec, gpus)
