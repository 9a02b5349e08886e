"""A job of one learner trains as the notebook does, although its learner has the variables of a gang."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.learner.test_running import result
from tests.runtime.jobs import Job

Build = Callable[..., Job]

ACCELERATE = """
import os
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(2, 1)), None)
found = type(model).__name__, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]
"""


@pytest.mark.parametrize(("most", "kind"), [(1, "Sequential"), (2, "DistributedDataParallel")])
def test_accelerate_distributes_only_what_can_be_a_gang(job: Build, most: int, kind: str) -> None:
    one = job(ACCELERATE, outputs=("found",), learners_max=most)
    one.run(1)

    assert one.closed(deadline_s=60) == "completed"
    assert result(one, "found") == (kind, "0", "1")
