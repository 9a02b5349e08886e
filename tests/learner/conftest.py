"""Jobs that are gone when their test is: the same as the guardian's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.start import stop_zygotes
from tests.learner.fault_matrix import STOPS, TRIALS
from tests.runtime.conftest import job
from tests.runtime.jobs import until
from tests.runtime.test_zygote import is_running

__all__ = ["job"]


@pytest.fixture(scope="module")
def zygotes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A torch zygote for all tests of this file, so that those who join come while the others train."""
    folder = tmp_path_factory.mktemp("zygotes")
    yield folder
    stop_zygotes(folder)
    until(lambda: not any(map(is_running, folder.glob("*.lock"))), "the zygote is gone")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The longest stops of faulty jobs: printed, never asserted, since a loaded machine lengthens them."""
    if TRIALS > 1 and STOPS:
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        terminalreporter.section(f"longest time without a step, by the journals; {len(STOPS)} jobs, load {load}")
        for seconds, test in sorted(STOPS, reverse=True)[:8]:
            terminalreporter.line(f"{seconds:7.2f} s  {test}")
