"""Each difficulty in difficulties/: cells ran in a real shell; the job sees what the training cell saw there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.difficulty import Case, cases_of

HERE = Path(__file__).parent
CASES = cases_of(HERE / "difficulties")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run each case. Return its results in the kernel and in the job."""
    work = tmp_path_factory.mktemp("difficulties")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "PYTEST"))}
    environment |= {
        "PYTHONPATH": str(HERE.parents[1]),
        "IPYTHONDIR": str(work / "ipython"),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebook.difficulty", str(HERE / "difficulties"), str(work), str(work / "all")],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((work / "all").read_text())
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_job_has_the_values_that_the_training_cell_saw(case: Case, outcomes: dict[str, Any]) -> None:
    kernel, job = outcomes[case.name]["kernel"], outcomes[case.name]["job"]
    assert "error" not in kernel, kernel["error"]
    made = kernel["capture"]
    assert made["errors"] == []
    assert "error" not in job, f"{made['text']}\n{job['error']}"
    assert job["seen"] == kernel["seen"], made["text"]
    assert kernel["unbound_unseen"] == [] or made["literals"] or case.files, "without a kernel a name is unbound"

    taken_too_much = [one["source"] for one in made["kept"] if one["source"].split("\n")[-1].endswith("#-")]
    taken_too_much += [one["source"] for one in made["kept"] if one["source"].split("\n")[0].endswith("#-")]
    assert taken_too_much == []
    typed = {line.strip() for cell in case.cells for line in cell.split("\n") if not line.startswith("%%")}
    left = [one["source"] for one in made["left_out"] if one["kind"] in {"unneeded", "shown", "saved"}]
    assert [source for source in left if source in typed and not source.endswith(("#-", "#?"))] == []


def test_there_is_a_case_for_each_difficulty_that_was_promised() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 140
