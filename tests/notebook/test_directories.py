"""Working directories of cells: the program changes to them, by the effect of a statement and not by its text."""

from __future__ import annotations

from jupyter_dlaas.analysis.model import Capture, ExecutedCell, KernelFacts, TrainingCell
from jupyter_dlaas.capture.capture import capture
from tests.notebook.cases import job, prelude

HOME = "/home/ada/chdir_demo"


def in_directories(*cells: tuple[str, str | None], started_in: str, now: str) -> Capture:
    """Cells with the directory in which each began."""
    ran = [ExecutedCell(count=n, source=source, directory=where) for n, (source, where) in enumerate(cells, 1)]
    facts = KernelFacts(directory=now, started_in=started_in)
    return capture(ran, TrainingCell(count=len(cells) + 1, source="print(open('data.txt'))"), facts)


def test_notebook_below_a_folder_named_chdir_follows_its_cells() -> None:
    made = in_directories(("import os", HOME), ("os.chdir('sub')", HOME), started_in=HOME, now=f"{HOME}/sub")

    assert prelude(made) == [
        f"__import__(\"os\").chdir('{HOME}')  # directory of the kernel",
        f"__import__(\"sys\").path.append('{HOME}')",
        "import os",
        "os.chdir('sub')",
    ]


def test_a_word_in_a_string_or_comment_moves_no_cell() -> None:
    """The first cell's directory is not known; it cannot have changed it, so it ran where the second began."""
    text = "x = 'os.chdir(path)'  # chdir("
    made = in_directories((text, None), ("y = x", "/a"), started_in="/elsewhere", now="/a")

    assert "chdir" not in made.text.replace(text, "")


def test_early_chdir_is_repeated_from_the_start_directory() -> None:
    made = in_directories(("import os\nos.chdir('/a')", None), ("y = 1", "/a"), started_in="/s", now="/a")

    assert prelude(made)[0] == "__import__(\"os\").chdir('/s')  # directory of the kernel"
    assert "os.chdir('/a')" in prelude(made)


def test_a_script_gets_arguments_where_its_program_reads_them() -> None:
    plain = KernelFacts(files={"make.py": "# click here, fire and forget: sys.argv\nx = 'argparse'\n"})
    reading = KernelFacts(files={"make.py": "import sys\nx = sys.argv[1]\n"})

    assert prelude(job("%run make.py 3", facts=plain)) == ["x = 'argparse'"]
    assert "sys.argv = ['make.py', '3']" in prelude(job("%run make.py 3", facts=reading))
