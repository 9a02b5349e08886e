"""The example notebooks run from top to bottom, on a real pool with two slots."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from jupyter_dlaas.wire.protocol import State
from tests.notebook_e2e.rooms import Pool, kernel_in
from tests.selection import exhaustive

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = '[pool]\ndevices = "cpus"\ncpu_slots = 2\n'
VARIABLES = {"JUPYTER_DLAAS_WARM": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"}
NOTEBOOKS = [path for path in sorted(EXAMPLES.glob("*.ipynb")) if path.stem != "quickstart"]

pytestmark = pytest.mark.timeout(600)


@exhaustive  # `make test` runs the quickstart
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.directory.mkdir()
    (pool.directory / "config.toml").write_text(CONFIG)
    try:
        with kernel_in(tmp_path, **VARIABLES) as kernel:
            for cell in nbformat.read(path, as_version=4).cells:
                if cell.cell_type == "code":
                    kernel.run(cell.source, timeout_s=300)
        states = {view.id: view.state for view in pool.client.jobs(limit=100)}
        assert set(states.values()) == {State.COMPLETED}, states
    finally:
        pool.close()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells

    assert not [cell.id for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert cells[0].cell_type == "markdown"


def test_every_notebook_is_in_the_docs() -> None:
    listed = (EXAMPLES.parent / "docs" / "examples" / "index.md").read_text(encoding="utf-8")

    missing = [path.stem for path in EXAMPLES.glob("*.ipynb") if f"<{path.stem}>" not in listed]
    assert missing == []
    assert sorted(link.name for link in (EXAMPLES.parent / "docs" / "examples").glob("*.ipynb")) == sorted(
        path.name for path in EXAMPLES.glob("*.ipynb")
    )
