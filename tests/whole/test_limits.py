"""A job that takes more memory than it asked for fails by itself, and says what its limit was."""

from __future__ import annotations

from collections.abc import Callable

from tests.whole.site import Site, until

PROGRAM = """
data = bytearray(1 << 20)
data = bytearray(600 << 20)
"""


def test_memory_limit_fails_the_job_with_line_and_limit(site: Callable[..., Site]) -> None:
    here = site()
    job = here.submit(PROGRAM, name="greedy", memory="100M", retries=0)

    until(lambda: job.view.state.is_final, "it failed")

    failure = job.view.failure
    assert failure is not None
    assert failure.what.endswith("[limit: --memory 100M]")
    assert "--memory 200M" in failure.advice
    assert failure.where is not None
    assert failure.where.line == 3
