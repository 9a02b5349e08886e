"""One module at a time: each has a pool of its own, which offers a GPU only while other pools' jobs do not use it."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    with Path(tempfile.gettempdir(), "jupyter_dlaas-gpu-tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
