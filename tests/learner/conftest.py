"""Jobs that are gone when their test is. Those with torch are forks of a zygote that has loaded it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.runtime.zygote.start_guardian import stop_zygotes
from tests.learner.fault_matrix import STOPS, TRIALS, warmed
from tests.runtime.conftest import job as plain_job
from tests.runtime.jobs import Job, until
from tests.runtime.test_zygote import is_running, warm_up

__all__ = ["job", "plain_job", "zygotes"]

Build = Callable[..., Job]
_NEEDS_TORCH = re.compile(r"^\s*(import|from) (torch|lightning|pytorch_lightning|transformers)\b", re.M)
_PRELOADS = {
    "transformers": "from transformers import BertForSequenceClassification, Trainer, TrainerCallback",
    "lightning": "import lightning.pytorch, torchmetrics.classification",
    "keras": "import keras",
    "jax": "import jax, optax, sklearn.datasets",
    "sklearn": "import sklearn.datasets, sklearn.linear_model, sklearn.neural_network, sklearn.ensemble",
}
"""What is imported for the jobs of a framework: once in a zygote, instead of once in each learner. The first counts."""
_PRELOADING = """
import sys
if "jupyter_dlaas.runtime.zygote.zygote" in sys.orig_argv:
    {imports}
"""


@pytest.fixture
def job(plain_job: Build, zygotes: Path) -> Build:
    """Build jobs. Those that import torch or a large framework are forks of one process that did."""

    def build(source: str, **options: Any) -> Job:
        if options.get("interpreter", sys.executable) != sys.executable:
            return plain_job(source, **options)
        environment = options.get("environment") or {}
        backend = environment.get("KERAS_BACKEND", "")
        found = next((name for name in _PRELOADS if re.search(rf"^\s*(import|from)\b.*\b{name}\b", source, re.M)), None)
        if found is not None:
            folder = preloading(zygotes, found, backend)
            options["environment"] = {**environment, "PYTHONPATH": str(folder)}
        one = plain_job(source, **options)
        if _NEEDS_TORCH.search(source) or backend == "torch":
            one.framework = "torch"
            warmed(one, zygotes)
        elif found is not None:
            one.zygote_dir = zygotes
            warm_up(one, zygotes)
        return one

    return build


def preloading(zygotes: Path, framework: str, backend: str) -> Path:
    """Create a folder for PYTHONPATH with which zygotes, and no other processes, import a framework at their start."""
    folder = zygotes / f"{framework}-{backend}"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_PRELOADING.format(imports=_PRELOADS[framework]))
    return folder


@pytest.fixture(scope="session")
def zygotes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Torch zygotes for all tests, so that those who join come while the others train."""
    folder = tmp_path_factory.mktemp("zygotes")
    yield folder
    stop_zygotes(folder)
    until(lambda: not any(map(is_running, folder.glob("*.lock"))), "the zygote is gone")


@pytest.fixture(autouse=True)
def stops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Report the stops of a test, from other test processes, too."""
    yield
    request.node.user_properties += [("stopped", seconds) for seconds in STOPS]
    STOPS.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the longest stops of faulty jobs. They are never asserted, since a loaded machine lengthens them."""
    ends = [one for one in terminalreporter.stats.get("", []) if getattr(one, "when", "") == "teardown"]
    longest = [(value, one.nodeid) for one in ends for name, value in one.user_properties if name == "stopped"]
    if TRIALS > 1 and longest:
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        terminalreporter.section(f"longest time without a step, by the journals; {len(longest)} jobs, load {load}")
        for seconds, test in sorted(longest, reverse=True)[:8]:
            terminalreporter.line(f"{seconds:7.2f} s  {test.rpartition('::')[2]}")
