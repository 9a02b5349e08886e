"""CUDA_VISIBLE_DEVICES of a notebook stays within the job's GPUs, and does not limit the pool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_dlaas.learner.environment.visible_devices import within_assigned
from tests.runtime.jobs import Job

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, subprocess
def show():
    inherited = subprocess.run('echo $CUDA_VISIBLE_DEVICES', shell=True, capture_output=True, text=True).stdout.strip()
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"], inherited)
show()
for value in ("1", "4", "-1"):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    show()
os.environ.pop("CUDA_VISIBLE_DEVICES")
show()
os.environ.clear()
os.environ["OTHER"] = "4"
print(sorted(os.environ), type(os.environ), isinstance(os.environ, os._Environ))
"""
ENGINE = """
import os
from jupyter_dlaas.client import discovery
{cell}
print(discovery._engine_environment().get("CUDA_VISIBLE_DEVICES"))
"""


@pytest.mark.parametrize(
    ("value", "assigned", "expected"),
    [
        ("0", "GPU-a", ("GPU-a", True)),
        ("1,0", "GPU-a,GPU-b", ("GPU-b,GPU-a", True)),
        (" 0 , 1 ", "GPU-a,GPU-b,GPU-c", ("GPU-a,GPU-b", True)),
        ("3", "GPU-a,GPU-b", ("GPU-a", False)),
        ("0,1,2,3", "GPU-a,GPU-b", ("GPU-a,GPU-b", False)),
        ("GPU-b", "GPU-a,GPU-b", ("GPU-b", True)),
        ("GPU-x", "GPU-a,GPU-b", ("GPU-a", False)),
        ("0,-1,1", "GPU-a,GPU-b", ("GPU-a", True)),
        ("-1", "GPU-a", ("", True)),
        ("", "GPU-a", ("", True)),
        ("2", "", ("", True)),
    ],
)
def test_values_select_among_the_assigned_gpus(value: str, assigned: str, expected: tuple[str, bool]) -> None:
    assert within_assigned(value, assigned) == expected


def test_program_keeps_the_gpus_of_its_job(job: Callable[..., Job]) -> None:
    one = job(PROGRAM)
    one.run(1, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b")

    assert one.closed() == "completed", one.report()
    assert [line for line in one.log().splitlines() if "ready" not in line] == [
        "sees GPU-a,GPU-b GPU-a,GPU-b",
        "sees GPU-b GPU-b",
        "[CUDA_VISIBLE_DEVICES=4 names GPUs that this job does not have; it uses its own: GPU-a]",
        "sees GPU-a GPU-a",
        "sees  ",
        "sees GPU-a,GPU-b GPU-a,GPU-b",
        "['CUDA_VISIBLE_DEVICES', 'OTHER'] <class 'os._Environ'> True",
    ]


@pytest.mark.parametrize(
    "cell", ["os.environ['CUDA_VISIBLE_DEVICES'] = '1'", "os.environ.pop('CUDA_VISIBLE_DEVICES', None)", "pass"]
)
@pytest.mark.parametrize("started_with", ["0,2", None])
def test_cell_that_sets_it_does_not_limit_the_pool(cell: str, started_with: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment |= {"CUDA_VISIBLE_DEVICES": started_with} if started_with else {}
    done = subprocess.run(
        [sys.executable, "-c", ENGINE.format(cell=cell)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == str(started_with)
