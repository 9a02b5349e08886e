"""Jobs that are gone when their test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runtime.jobs import Job, clean, make_job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Build jobs of a test. End the processes that are alive afterwards."""
    made: list[Job] = []

    def build(source: str, **options: object) -> Job:
        made.append(make_job(tmp_path / f"job-{len(made)}", source, **options))  # type: ignore[arg-type]  # the builder's own
        return made[-1]

    yield build
    for one in made:
        one.want_nothing()
    list(clean(made))
