"""Our notebooks: executed in a real IPython shell, captured, compared with a golden program, run in a fresh process.

After a wanted change of the programs, write the golden files again and read the difference:

    DLAAS_WRITE_GOLDEN=1 python -m pytest tests/notebook/test_notebooks.py

A notebook's metadata has `dlaas`: `order` (the code cells in the order of execution, from 0; a text is a version of a
cell that was edited since), `push`, `outputs`, `answers` (to input()), `fresh` (names that an earlier training left
behind and that start fresh in the job), `warnings`, `raised`. The cell under `%%train` is never in `order`: it becomes
the job. Golden programs are no `.py` files, so that no tool tidies them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.selection import exhaustive

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOTEBOOKS = sorted((HERE / "notebooks").glob("*.ipynb"))
SLOW = {"08_classes_over_cells", "09_seeds", "16_frozen_layers"}
"""They import torch twice, as others do that `make test` runs."""


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(one, id=one.stem, marks=exhaustive if one.stem in SLOW else ()) for one in NOTEBOOKS],
)
def test_job_has_the_kernels_values_of_all_read_names(notebook: Path, tmp_path: Path) -> None:
    document = json.loads(notebook.read_text())
    sources = ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]
    options: dict[str, Any] = document["metadata"]["dlaas"]
    train = next(source for source in sources if source.startswith("%%train")).partition("\n")[2]

    kernel = _run(
        tmp_path,
        "in_kernel",
        {
            "sources": [sources[step] if isinstance(step, int) else step for step in options["order"]],
            "train": train,
            **{key: options.get(key, []) for key in ("push", "outputs", "answers")},
        },
    )
    made = kernel["capture"]
    golden = notebook.with_suffix(".golden")
    if os.environ.get("DLAAS_WRITE_GOLDEN"):
        golden.write_text(made["text"])

    assert made["errors"] == []
    assert kernel["raised"] == options.get("raised", [])
    assert [warning["code"] for warning in made["warnings"]] == options.get("warnings", [])
    assert made["text"] == golden.read_text()
    fresh = set(options.get("fresh", []))
    wanted = {name: value for name, value in kernel["values"].items() if name not in fresh and name != "dlaas"}
    job = _run(tmp_path, "in_job", {"program": made["text"], "names": sorted(wanted)})
    assert job == wanted
    assert wanted, "a test that compares nothing"


def test_there_are_notebooks_for_every_difficulty_that_was_promised() -> None:
    assert len(NOTEBOOKS) >= 15


def _run(directory: Path, program: str, asked: dict[str, Any]) -> dict[str, Any]:
    question, answer = directory / f"{program}.in.json", directory / f"{program}.out.json"
    question.write_text(json.dumps(asked))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "PYTEST"))}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(directory / "ipython"),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", f"tests.notebook.{program}", str(question), str(answer)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(answer.read_text())
    return found
