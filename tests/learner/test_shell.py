"""Shell commands in a job: as IPython runs them in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

import jupyter_dlaas as dlaas
from jupyter_dlaas import learner

WHERE = {"folder": "of the module"}


def test_output_of_a_command_is_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    dlaas.shell("printf 'loss 0.5\\n'; printf 'ä' >&2; exit 3")

    said = capfd.readouterr()
    assert said.out == "loss 0.5\nä"
    assert said.err.startswith("[exit code 3: ")


def test_the_lines_of_a_command_are_a_list() -> None:
    lines = dlaas.shell_lines("echo a b; echo c")

    assert lines == ["a b", "c"]
    assert isinstance(lines, list)
    assert (lines.n, lines.s, lines.l) == ("a b\nc", "a b c", lines)
    assert dlaas.shell_lines("echo a", split=False) == "a\n"


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("echo {name.upper()}", "ADA"),
        ("echo $name", "ada"),
        ("echo {WHERE['folder']}", "of the module"),
        ("echo {name[1:]}", "da"),
        ("echo a b | awk '{print $2}'", "b"),
        ("X=1; echo $X ${X}", "1 1"),
        ("echo '$name'", "$name"),
    ],
)
def test_variables_are_filled_in_and_those_of_the_shell_stay(command: str, written: str) -> None:
    name = "ada"

    assert dlaas.shell_lines(command) == [written], name


def test_learner_modules_hide_no_function() -> None:
    modules = {path.stem for path in Path(learner.__file__).parent.iterdir()}

    assert modules.isdisjoint(learner.__all__)


def test_no_package_hides_a_public_function_of_its_name() -> None:
    modules = {path.stem for path in Path(dlaas.__file__).parent.iterdir()}

    assert modules.isdisjoint(dlaas.__all__)
