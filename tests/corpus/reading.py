"""Notebooks to run: `.ipynb` files of anybody's, and our own `.cells` files, which are text and so can be reviewed.

A `.cells` file begins with comment lines: what it is about, and perhaps

    # order: 1 3 2 2    the code cells that ran before the training, in this order, instead of all from the top
    # options: …        what stands on the line of `%%train` (where the job's advice is taken)
    # repeats: no       it seeds nothing, so that it has other numbers each time; `per hash seed`: it has the same
                        numbers in two kernels with the same PYTHONHASHSEED only; `but for times`: it keeps
                        measured times
    # warns: CODE       what `check` must warn of

Then cells follow, each under `# %%`. `# %% train` marks the training cell where another looks like training, too, and
`# %% file NAME` is no cell but a file that lies beside the notebook.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.suggest.notebook_report import Report, check

__all__ = ["Notebook", "read"]

_MARK: Final = re.compile(r"^# %%[ \t]*(.*)$", re.MULTILINE)
_SAID: Final = re.compile(r"^# (order|options|repeats|warns): *(.*)$", re.MULTILINE)
_NOT_BESIDE: Final = ("*.ipynb", "*.cells", ".ipynb_checkpoints", ".git", "__pycache__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """Code cells, which of them is the training, and what lies beside it."""

    path: Path
    cells: tuple[str, ...]
    training: int
    """Counted from 1, over code cells."""
    order: tuple[int, ...]
    """The code cells that run before it."""
    options: str = ""
    repeats: str = "yes"
    """yes, no, or per hash seed."""
    warns: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.cells[self.training - 1]

    def lay_out(self, folder: Path) -> None:
        """Make a working directory with what lies beside the notebook."""
        if self.path.suffix == ".cells":
            folder.mkdir(parents=True)
        else:
            shutil.copytree(self.path.parent, folder, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_BESIDE))
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def checked(self) -> Report:
        """Check the cells that ran, one below the other, and the training cell, as `jupyter dlaas check` does."""
        cells = [self.cells[cell - 1] for cell in self.order]
        return check(_ipynb([*cells, self.source]), str(self.path), len(cells) + 1, files=self.files)


def read(path: Path, cell: int | None = None) -> Notebook:
    """`cell`: take this code cell for the training. Else the one tagged `train`, else the first that trains.

    Raises ValueError where there is none.
    """
    said: dict[str, str] = {}
    files: dict[str, str] = {}
    if path.suffix == ".cells":
        cells, marked, files, said = _cells(path.read_text())
    else:
        cells, marked = _notebook(json.loads(path.read_text(encoding="utf-8-sig")))
    training = cell or marked or _first_training(cells, path)
    if training > len(cells):
        raise ValueError(f"there is no code cell {training}: it has {len(cells)}")
    order = tuple(map(int, said["order"].split())) if "order" in said else tuple(range(1, training))
    return Notebook(
        path=path,
        cells=tuple(cells),
        training=training,
        order=order,
        options=said.get("options", ""),
        repeats=said.get("repeats", "yes"),
        warns=tuple(said.get("warns", "").split()),
        files=files,
    )


def _cells(text: str) -> tuple[list[str], int | None, dict[str, str], dict[str, str]]:
    head, *rest = _MARK.split(text)
    cells: list[str] = []
    files: dict[str, str] = {}
    marked = None
    for mark, body in zip(rest[::2], rest[1::2], strict=True):
        kind, _, name = mark.partition(" ")
        if kind == "file":
            files[name] = body.strip("\n") + "\n"
        elif kind != "markdown":
            cells.append(body.strip("\n"))
            marked = len(cells) if kind == "train" else marked
    return cells, marked, files, dict(_SAID.findall(head))


def _notebook(document: dict[str, Any]) -> tuple[list[str], int | None]:
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    tagged = [n for n, cell in enumerate(code, 1) if "train" in cell.get("metadata", {}).get("tags", ())]
    sources = [cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"]) for cell in code]
    return sources, tagged[0] if tagged else None


def _first_training(cells: list[str], path: Path) -> int:
    report = check(_ipynb(cells), str(path))
    if report.error is not None:
        raise ValueError(report.error)
    found = [one.cell for one in report.cells if one.is_training]
    if not found:
        raise ValueError("no cell looks like training; --cell N names one")
    return found[0]


def _ipynb(cells: list[str] | tuple[str, ...]) -> bytes:
    code = [{"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in cells]
    return json.dumps({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
