"""Variables that a program reads and that stayed where its job was submitted."""

from __future__ import annotations

import pytest

from jupyter_dlaas.learner.environment.left_out_variables import left_out_note, variables_read


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('x = os.environ["BATCH"]', {"BATCH"}),
        ('x = int(environ.get("BATCH", "32"))', {"BATCH"}),
        ('x = os.getenv("BATCH") or getenv("SIZE", 1)', {"BATCH", "SIZE"}),
        ('if "BATCH" in os.environ: pass', {"BATCH"}),
        ('x = settings["BATCH"] + settings.get("BATCH") + os.environ[name]', set()),
        ("x = (", set()),
    ],
)
def test_names_that_a_program_looks_up_are_found(line: str, names: set[str]) -> None:
    assert variables_read(line) == names


def test_only_variables_that_are_read_and_missing_are_reported() -> None:
    program = 'import os\nprint(os.environ["BATCH"], os.environ["HOME"], os.environ.get("ABSENT"))\n'
    environment = {"DLAAS_LEFT_OUT": "BATCH,HOME,PWD", "HOME": "/home"}
    note = left_out_note(program, environment)

    assert note is not None
    assert note.startswith("BATCH is set where the job was submitted, but not sent")
    assert "-e BATCH=VALUE" in note
    assert environment == {"HOME": "/home"}
    assert left_out_note(program, environment) is None
