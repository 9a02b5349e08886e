"""Files that kept cells have read and that were changed since are named before the job starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_dlaas.analysis.model import ExecutedCell, KernelFacts, NameFact, TrainingCell
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.capture.input_files import read_files

IMPORTS = (
    "def fetch(path):\n    return path\n"
    "import glob, os, json, numpy as np, pandas as pd\nfrom pathlib import Path\nname = 'data.txt'\nroot = '.'"
)
FACTS = {
    "x": NameFact(type_name="DataFrame", size_bytes=10_000),
    "name": NameFact(type_name="str", literal="'data.txt'"),
    "root": NameFact(type_name="PosixPath", literal="PosixPath('.')"),
}
READS = [
    "x = pd.read_csv('data.txt')",
    "x = pd.read_csv(filepath_or_buffer=name)",
    "x = np.loadtxt(root / 'data.txt')",
    "x = json.load(open(os.path.join(root, 'data.txt')))",
    "with open(name) as f:\n    x = f.read()",
    "x = Path('data.txt').read_text()",
    "def get(n):\n    return open('data.txt').read()\nx = get(1)",
]
LISTS = ["x = os.listdir('folder')", "x = glob.glob('folder/*.png')", "x = [p for p in Path('folder').iterdir()]"]


def warned(folder: Path, cell: str, *, ended_s: float = 1000.0) -> list[str]:
    cells = [
        ExecutedCell(count=n, source=source, ended_s=ended_s, directory=str(folder))
        for n, source in enumerate((IMPORTS, *cell.replace("\nx = get", "\n\nx = get").split("\n\n")), 1)
    ]
    files = read_files(cells, FACTS, folder)
    facts = KernelFacts(names=FACTS, modified=files.modified, missing=files.missing)
    made = capture(cells, TrainingCell(count=len(cells) + 1, source="print(x)"), facts)
    assert made.is_ready, made.errors
    return [problem.message for problem in made.warnings if problem.code in ("file_changed", "file_gone")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a file and a folder that were changed at 2000."""
    (tmp_path / "data.txt").write_text("1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.png").touch()
    for one in (tmp_path / "data.txt", tmp_path / "folder"):
        os.utime(one, (2000.0, 2000.0))
    return tmp_path


@pytest.mark.parametrize("cell", [*READS, *LISTS])
def test_file_changed_since_it_was_read_is_reported(folder: Path, cell: str) -> None:
    (said,) = warned(folder, cell)

    assert "which has changed since; the job reads the current file. To send the notebook's value: --push x." in said
    assert "`folder" in said if cell in LISTS else "data.txt`" in said


@pytest.mark.parametrize("cell", [READS[0], READS[3], LISTS[0]])
def test_a_file_that_was_not_changed_is_not_named(folder: Path, cell: str) -> None:
    assert warned(folder, cell, ended_s=3000.0) == []


@pytest.mark.parametrize(
    "cell",
    [
        "x = open('data.txt', 'w')",
        "x = pd.read_csv('http://a/data.txt')",
        "x = print('data.txt')",
    ],
)
def test_code_that_reads_no_file_is_not_reported(folder: Path, cell: str) -> None:
    assert warned(folder, cell) == []


@pytest.mark.parametrize("cell", READS[:-1])
def test_a_file_that_is_gone_is_named(tmp_path: Path, cell: str) -> None:
    (said,) = warned(tmp_path, cell)

    assert "data.txt`, which no longer exists; the job fails there. To send the notebook's value: --push x." in said


@pytest.mark.parametrize(
    "cell",
    [
        "if os.path.exists('data.txt'):\n    x = pd.read_csv('data.txt')\nelse:\n    x = 1",
        "try:\n    x = pd.read_csv('data.txt')\nexcept OSError:\n    x = 1",
        "other = name\nname = 'a'\nx = pd.read_csv(name)",
        "x = pd.read_csv('http://a/data.txt')",
        "made = fetch('data.txt')\nx = pd.read_csv('data.txt'), made",
    ],
)
def test_file_that_the_job_does_not_read_is_not_reported(tmp_path: Path, cell: str) -> None:
    assert warned(tmp_path, cell) == []
