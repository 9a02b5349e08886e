"""The quickstart notebook trains, through a real server, kernel, extension and engine: `make demo` in a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from jupyter_dlaas.client.discovery import engine_record

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.CompletedProcess[str]]:
    home = tmp_path_factory.mktemp("demo")
    yield subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--home", str(home)],
        env={name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=380,
        check=False,
    )
    end_engine(home)


def end_engine(home: Path) -> None:
    """Stop the engine: it would end by itself when idle, but a test does not wait for that."""
    engine = engine_record(home / "data" / "dlaas" / "local")
    if "pid" in engine and str(home).encode() in Path(f"/proc/{engine['pid']}/environ").read_bytes():
        os.kill(int(engine["pid"]), signal.SIGTERM)


def test_the_demo_trains_the_quickstart(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stdout


def test_demo_trains_on_all_learners_of_the_machine(demo: subprocess.CompletedProcess[str]) -> None:
    found = re.search(r"Trained digits-\d+ on (\d+) learners?", demo.stdout)

    assert found is not None, demo.stdout
    assert int(found[1]) == min(2, len(os.sched_getaffinity(0)))


def test_demo_prints_status_metrics_logs_accuracy_and_directory(
    demo: subprocess.CompletedProcess[str],
) -> None:
    directory = re.search(r"Job directory: (.+)", demo.stdout)

    assert directory is not None, demo.stdout
    assert (Path(directory[1]) / "train.py").exists()
    assert "status |" in demo.stdout
    assert re.search(r"metrics \| step \d+ .*accuracy", demo.stdout)
    assert re.search(r"log 0 \| epoch 12: loss", demo.stdout)
    assert re.search(r"Accuracy on the test set: 9[789]\.\d%", demo.stdout)
    assert "make lab" in demo.stdout


def test_the_quickstart_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    assert not [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


def test_the_readme_shows_the_training_cell_of_the_quickstart() -> None:
    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}

    assert cells["train"] in (ROOT / "README.md").read_text()
