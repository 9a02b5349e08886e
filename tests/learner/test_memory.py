"""Memory that a training frees at each step stays with its process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_dlaas.transfer.results import load
from tests.runtime.jobs import Job

STEPS = 50
PROGRAM = f"""
import resource
import numpy as np

def step():
    blocks = [np.ones(200_000) for _ in range(4)]
    del blocks

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

step()
before = page_faults()
for _ in range({STEPS}):
    step()
faults = page_faults() - before
"""


def _faults(job: Job) -> int:
    job.run()
    assert job.closed() == "completed", job.report()
    found = load((job.dir / "results" / "faults.bin").read_bytes())
    assert isinstance(found, int)
    return found


def test_memory_freed_at_each_step_is_not_faulted_again(job: Callable[..., Job]) -> None:
    assert _faults(job(PROGRAM, outputs=("faults",))) < 10 * STEPS, "400 pages a block go back to the kernel each time"


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_user_settings_of_malloc_are_kept(job: Callable[..., Job], variable: str) -> None:
    assert _faults(job(PROGRAM, outputs=("faults",), environment={variable: "4096"})) > 100 * STEPS
