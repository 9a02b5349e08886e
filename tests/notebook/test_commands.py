"""`!` lines and magics: the job runs those of the training cell, and says what it cannot run."""

from __future__ import annotations

import json

import pytest

from jupyter_dlaas.analysis.model import Capture, KernelFacts
from jupyter_dlaas.capture.render import ENTRY
from jupyter_dlaas.suggest.notebook_report import check
from tests.notebook.cases import codes, facts, job, prelude


def cell(made: Capture) -> list[str]:
    """Return the lines of the training cell in the program."""
    return [line.removeprefix("    ") for line in made.text.split(ENTRY)[1].strip("\n").splitlines()]


def test_shell_lines_of_the_training_cell_run_in_the_job() -> None:
    made = job(train="!echo hello > made.txt\nnames = !ls\nfor n in names:\n    !cat {n}\nprint(1)")

    assert cell(made) == [
        "dlaas.shell('echo hello > made.txt')",
        "names = dlaas.shell_lines('ls')",
        "for n in names:",
        "    dlaas.shell('cat {n}')",
        "print(1)",
    ]
    assert "import jupyter_dlaas as dlaas" in made.text
    assert codes(made) == []
    assert made.left_out == ()


def test_shell_commands_called_by_name_run_in_the_job() -> None:
    made = job(train="a = 1; get_ipython().system(f'echo ä{a}'); b = get_ipython().getoutput('ls')\nprint(a)")

    assert cell(made)[0] == "a = 1; dlaas.shell(f'echo ä{a}'); b = dlaas.shell_lines('ls')"


def test_variables_in_shell_commands_are_captured() -> None:
    made = job("folder = 'x'\nfile = 'y'\nother = 1", train="!cp {folder + '/a'} $file $HOME")

    assert prelude(made) == ["import jupyter_dlaas as dlaas", "folder = 'x'", "file = 'y'"]
    assert codes(made) == []


def test_a_function_that_the_job_calls_runs_its_commands() -> None:
    made = job("url = 'u'\ndef fetch(path):\n    !wget {url} -O {path}\n    %matplotlib inline", train="fetch(1)")

    assert "    dlaas.shell('wget {url} -O {path}')" in prelude(made)
    assert "url = 'u'" in prelude(made)
    assert "import jupyter_dlaas as dlaas" in made.text
    assert codes(made) == []


def test_shell_commands_of_earlier_cells_are_not_repeated() -> None:
    made = job("!mkdir data", "files = !ls data\nrest = !ls", "get_ipython().system('echo hi')", train="print(files)")

    assert prelude(made) == []
    assert "shell" not in made.text


def test_job_gets_directories_and_environment_variables() -> None:
    made = job(train="%cd data\n%env RATE=0.5\n%mkdir out\nprint(1)")

    assert cell(made)[:3] == [
        "__import__(\"os\").chdir('data')",
        "__import__(\"os\").environ['RATE'] = '0.5'",
        "dlaas.shell('mkdir out')",
    ]


def test_magics_that_only_show_are_left_out_and_listed() -> None:
    made = job(train="%matplotlib inline\n%time x = 1\n%load_ext autoreload\nprint(x)")

    assert [(left.cell, left.line, left.source, left.kind) for left in made.left_out] == [
        ("cell [1]", 2, "%matplotlib inline", "magic"),
        ("cell [1]", 4, "%load_ext autoreload", "magic"),
    ]
    assert cell(made) == ["x = 1", "", "print(x)"]


def test_own_magics_of_earlier_cells_are_not_listed() -> None:
    made = job("%load_ext jupyter_dlaas", "%dlaas jobs", "%load_ext autoreload", train="print(1)")

    assert [left.source for left in made.left_out] == ["%load_ext autoreload"]


@pytest.mark.parametrize("line", ["%run more.py", "%pip install torch", "x = %who_ls", "%cd -", "%unheard of it"])
def test_unsupported_magic_is_refused_with_advice(line: str) -> None:
    made = job(train=f"print(1)\n{line}")

    assert codes(made) == ["magic_in_job"]
    assert made.errors[0].message == (
        f"cell [1], line 3: a job cannot run the notebook command `{line}`. Move it to an earlier cell."
    )
    notebook = {"cells": [{"cell_type": "code", "source": f"for x in [1]:\n    loss.backward()\n{line}"}]}
    report = check(json.dumps(notebook).encode(), "n.ipynb", 1)
    assert "magic_in_job" in [said.code for said in report.cells[0].errors]


def test_names_provided_by_ipython_are_not_captured() -> None:
    first = "get_ipython().system('echo hi')\nx = get_ipython().getoutput('ls')\nget_ipython().magic('matplotlib')"
    made = job(first, train="print(get_ipython() is None)\nexit()")

    assert prelude(made) == []
    assert codes(made) == []
    assert codes(job(train="quit", facts=KernelFacts())) == []


def test_a_name_of_the_users_is_the_users() -> None:
    assert prelude(job("exit = [1]", "exit.append(2)", train="print(exit)")) == ["exit = [1]", "exit.append(2)"]


def test_pool_queries_are_not_repeated_in_the_job() -> None:
    made = job("dlaas.jobs()\ndlaas.job('a').halt()", train="run = dlaas.run()", facts=facts(x=1))

    assert prelude(made) == ["import jupyter_dlaas as dlaas"]
