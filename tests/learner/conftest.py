"""Jobs that are gone when their test is. Those with torch are forks of a zygote that has loaded it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.start import stop_zygotes
from tests.learner.fault_matrix import STOPS, TRIALS, warmed
from tests.runtime.conftest import job as plain_job
from tests.runtime.jobs import Job, until
from tests.runtime.test_zygote import is_running

__all__ = ["job", "plain_job", "zygotes"]

Build = Callable[..., Job]
_NEEDS_TORCH = re.compile(r"^\s*(import|from) (torch|lightning|pytorch_lightning|transformers)\b", re.M)


@pytest.fixture
def job(plain_job: Build, zygotes: Path) -> Build:
    """Builds jobs. Those that import torch are forks of one process that did, as in the product."""

    def build(source: str, **options: object) -> Job:
        one = plain_job(source, **options)
        needs_torch = _NEEDS_TORCH.search(source) or one.environment.get("KERAS_BACKEND") == "torch"
        if one.interpreter == sys.executable and needs_torch:
            one.framework = "torch"
            warmed(one, zygotes)
        return one

    return build


@pytest.fixture(scope="session")
def zygotes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Torch zygotes for all tests, so that those who join come while the others train."""
    folder = tmp_path_factory.mktemp("zygotes")
    yield folder
    stop_zygotes(folder)
    until(lambda: not any(map(is_running, folder.glob("*.lock"))), "the zygote is gone")


@pytest.fixture(autouse=True)
def stops(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is told of them comes home from other test processes, too."""
    yield
    request.node.user_properties += [("stopped", seconds) for seconds in STOPS]
    STOPS.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The longest stops of faulty jobs: printed, never asserted, since a loaded machine lengthens them."""
    ends = [one for one in terminalreporter.stats.get("", []) if getattr(one, "when", "") == "teardown"]
    told = [(value, one.nodeid) for one in ends for name, value in one.user_properties if name == "stopped"]
    if TRIALS > 1 and told:
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        terminalreporter.section(f"longest time without a step, by the journals; {len(told)} jobs, load {load}")
        for seconds, test in sorted(told, reverse=True)[:8]:
            terminalreporter.line(f"{seconds:7.2f} s  {test.rpartition('::')[2]}")
