"""Mapping from the lines of a job's train.py to the lines of the user's cells or script."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.wire.protocol import Where

__all__ = ["CellMap"]

_AROUND: Final = 3


@dataclass(frozen=True, slots=True)
class Cell:
    first: int
    last: int
    label: str
    line: int
    """The line of the cell that corresponds to `first`."""


class CellMap:
    """The mapping from lines of train.py to lines of cells.

    `submitted`: path of the script that was submitted as train.py; None for a program made from cells.
    """

    def __init__(self, script: Path, cells: Mapping[str, str], submitted: str | None = None) -> None:
        self.script = str(script)
        self._submitted = submitted or self.script
        found = []
        for lines, place in cells.items():
            range_ = re.fullmatch(r"(\d+)(?:-(\d+))?", lines)
            if range_ is None:
                continue
            label, _, line = place.rpartition(":")
            if not line.isdigit():
                label, line = place, "1"
            found.append(Cell(int(range_[1]), int(range_[2] or range_[1]), label, int(line)))
        self._cells = sorted(found, key=lambda cell: cell.first)

    def find(self, line: int) -> Cell | None:
        """Return the cell that a line of train.py came from; None if there is none."""
        return next((cell for cell in self._cells if cell.first <= line <= cell.last), None)

    def location(self, path: str, line: int) -> tuple[str, int]:
        """Return the cell, or the name of the script or module, and the line in it."""
        if path != self.script:
            return Path(path).name, line
        cell = self.find(line)
        return (cell.label, line - cell.first + cell.line) if cell is not None else (Path(self._submitted).name, line)

    def where(self, path: str, line: int, function: str | None) -> Where:
        """Return a location for the user, with the source lines around it."""
        cell = self.find(line) if path == self.script else None
        first, last = max(1, line - _AROUND), line + _AROUND
        if cell is not None:
            first, last = max(first, cell.first), min(last, cell.last)
        label, shown = self.location(path, line)
        lines = [linecache.getline(path, number) for number in range(first, last + 1)]
        while lines and not lines[-1]:
            lines.pop()
        source = _dedent([text.rstrip("\n") for text in lines])
        name = None if function in (None, "<module>") else function
        return Where(label=label, line=shown, function=name, first_line=first + shown - line, source=tuple(source))

    def place(self, path: str, line: int, function: str) -> str:
        """Return a short description of a location for the user."""
        label, line = self.location(path, line)
        return f"{label}, line {line}" + ("" if function == "<module>" else f", in {function}")

    def rewrite(self, text: str) -> str:
        """Return a traceback's text with cells, or the submitted script, in place of train.py."""

        def said(match: re.Match[str]) -> str:
            if self.find(int(match[1])) is None:
                return f'File "{self._submitted}", line {match[1]}'
            return "{}, line {}".format(*self.location(self.script, int(match[1])))

        return re.sub(rf'File "{re.escape(self.script)}", line (\d+)', said, text)


def _dedent(lines: list[str]) -> list[str]:
    """Return the lines without common indentation: the training cell stands under an `if` in train.py."""
    widths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    width = min(widths, default=0)
    return [line[width:] for line in lines]
