"""An exception of user code, told in the user's cells: "cell [7], line 3"."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from jupyter_dlaas.protocol import Failure, Where
from jupyter_dlaas.runtime.failures import from_exception

__all__ = ["CellMap", "failure_of", "in_cells"]

_OURS: Final = str(Path(__file__).parent.parent)
_LONGEST: Final = 20_000
_AROUND: Final = 3
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_IN_WORKER: Final = re.compile(r"Caught \w+ in (.+)\.\nOriginal Traceback")


@dataclass(frozen=True, slots=True)
class Cell:
    first: int
    last: int
    label: str
    line: int
    """The line of the cell that stands at `first`."""


class CellMap:
    """From lines of train.py to lines of cells."""

    def __init__(self, script: Path, cells: Mapping[str, str]) -> None:
        self.script = str(script)
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
        """The cell that a line of train.py came from."""
        return next((cell for cell in self._cells if cell.first <= line <= cell.last), None)

    def where(self, path: str, line: int, function: str | None) -> Where:
        """A place in the user's words, with some lines around it."""
        cell = self.find(line) if path == self.script else None
        first, last = max(1, line - _AROUND), line + _AROUND
        label, shift = Path(path).name, 0
        if cell is not None:
            first, last = max(first, cell.first), min(last, cell.last)
            label, shift = cell.label, cell.line - cell.first
        lines = [linecache.getline(path, number) for number in range(first, last + 1)]
        while lines and not lines[-1]:
            lines.pop()
        source = _dedent([text.rstrip("\n") for text in lines])
        name = None if function in (None, "<module>") else function
        return Where(label=label, line=line + shift, function=name, first_line=first + shift, source=tuple(source))

    def place(self, path: str, line: int, function: str) -> str:
        """A place in a few of the user's words."""
        cell = self.find(line) if path == self.script else None
        label, line = (cell.label, line - cell.first + cell.line) if cell is not None else (Path(path).name, line)
        return f"{label}, line {line}" + ("" if function == "<module>" else f", in {function}")

    def rewrite(self, text: str) -> str:
        """A traceback's text with cells in place of train.py's lines."""

        def said(match: re.Match[str]) -> str:
            cell = self.find(int(match[1]))
            if cell is None:
                return f"{match[0]}"
            return f"{cell.label}, line {int(match[1]) - cell.first + cell.line}"

        return re.sub(rf'File "{re.escape(self.script)}", line (\d+)', said, text)


def _dedent(lines: list[str]) -> list[str]:
    """Without the common indentation: the training cell stands under an `if` in train.py."""
    widths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    width = min(widths, default=0)
    return [line[width:] for line in lines]


def _is_ours(path: str) -> bool:
    return path.startswith((_OURS, "<frozen"))


def _user_part(tb: TracebackType | None) -> TracebackType | None:
    """Without our own frames at the outer end; all of it where there are only ours."""
    inner = tb
    while inner is not None and _is_ours(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner or tb


def _frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, frame.f_code.co_name


def in_cells(error: BaseException, cells: CellMap) -> str:
    """The traceback as the log shows it: in cells, without our frames, of bounded length."""
    text = "".join(traceback.format_exception(type(error), error, _user_part(error.__traceback__)))
    text = cells.rewrite(text)
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}\n… {len(text) - _LONGEST:,} characters left out …\n{text[-half:]}"
    return text


def failure_of(error: BaseException, cells: CellMap, own_folder: Path) -> Failure:
    """Cause, what, where and advice for an exception that ended user code."""
    where: Where | None = None
    if isinstance(error, SyntaxError) and error.filename == cells.script and error.lineno is not None:
        where = cells.where(error.filename, error.lineno, None)
    else:
        frames = [one for one in _frames(error) if not _is_ours(one[0])]
        users = [one for one in frames if one[0] == cells.script or one[0].startswith(str(own_folder))]
        if users or frames:
            where = cells.where(*(users or frames)[-1])
    names = [kind.__name__ for kind in type(error).__mro__]
    told = _told_by_worker(error)
    for path, line, function in _FRAME.findall(told):
        if path == cells.script or path.startswith(str(own_folder)):
            where = cells.where(path, int(line), function)
    return from_exception(names, _message(error), where=where, traceback=in_cells(error, cells))


def _told_by_worker(error: BaseException) -> str:
    """The traceback of another process as text, where the error came from one: a DataLoader's, or a pool's."""
    cause = error.__cause__
    if cause is not None and type(cause).__name__ in ("RemoteTraceback", "_RemoteTraceback"):
        return str(cause)
    return str(error) if _IN_WORKER.match(str(error)) else ""


def _message(error: BaseException) -> str:
    """What it says, without the text of another process' traceback around it."""
    found = _IN_WORKER.match(str(error))
    if found is None:
        return str(error)
    last = str(error).rstrip().rpartition("\n")[2].removeprefix(f"{type(error).__name__}: ")
    return f"{last} (in {found[1]})"
