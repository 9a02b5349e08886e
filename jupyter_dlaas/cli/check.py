"""The verb `check`: finds the notebooks, reads their bytes, prints what `check` found. Runs and imports nothing."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jupyter_dlaas.suggest.advice_text import suggestion_text
from jupyter_dlaas.suggest.notebook_report import CellReport, Report, check, run_by
from jupyter_dlaas.wire.codec import Invalid

__all__ = ["report_text", "run"]

RUN_BYTES_MAX = 2**20
SKIPPED = frozenset({".ipynb_checkpoints", "node_modules", "__pycache__"})
LEFT_WORDS = {
    "shown": "shows or prints",
    "saved": "writes a file",
    "magic": "notebook command",
    "trained": "earlier training",
    "job": "ran as a job",
    "raised": "raised",
}


def run(paths: Sequence[str], cell: int | None, *, as_json: bool, suggests: bool = False) -> int:
    """Check notebooks and folders; the exit code: 0 all fine, 1 something is not. Raises Invalid for wrong usage."""
    if cell is not None and cell < 1:
        raise Invalid("--cell counts code cells from 1")
    files = list(dict.fromkeys(_files(paths)))
    if cell is not None and len(files) != 1:
        raise Invalid(f"--cell goes with one notebook, not with {len(files)}")
    reports = []
    for path in files:
        with _few_collections():
            one = _checked(path, cell, suggests=suggests)
        reports.append(one)
        if not as_json:
            print(report_text(one), flush=True)
    if as_json:
        print(json.dumps({"notebooks": [dataclasses.asdict(one) for one in reports]}))
    elif len(reports) != 1:
        print(_sum_text(reports))
    return 0 if all(one.is_fine for one in reports) else 1


@contextmanager
def _few_collections() -> Iterator[None]:
    """Parsed code has no cycles: to look for some takes a fifth of a large check."""
    before = gc.get_threshold()
    gc.set_threshold(500_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _files(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if Path(path).is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith(".git"))
                yield from (str(Path(folder, name)) for name in sorted(names) if name.endswith(".ipynb"))
        elif Path(path).exists():
            yield path
        else:
            raise Invalid(f"there is no {path}")


def _checked(path: str, cell: int | None, *, suggests: bool) -> Report:
    try:
        content = Path(path).read_bytes()
        return check(content, path, cell, suggests=suggests, files=_beside(Path(path), run_by(content)))
    except OSError as error:
        return Report(path=path, error=f"cannot be read: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001  # one odd notebook must not end the check of all others: it is told
        return Report(path=path, error=f"this notebook is beyond us, please send it: {type(error).__name__}: {error}")


def _beside(notebook: Path, names: Sequence[str]) -> dict[str, str]:
    """The text of files that lie where a notebook says; the others may be written by a cell, or elsewhere."""
    found = {}
    for name in names:
        path = notebook.parent / name
        if path.is_file() and path.stat().st_size <= RUN_BYTES_MAX:
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found


def report_text(report: Report) -> str:
    """What was found in one notebook, for a terminal."""
    lines = [_plain(report.path)]
    if report.error is not None:
        return f"{lines[0]}\n  cannot be checked: {report.error}"
    for cell in report.cells:
        lines += _cell_lines(cell)
    if not report.cells:
        lines.append("  no cell looks like training; --cell N shows what code cell N would take along")
    lines += [f"  note: {note.text}" for note in report.notes]
    return "\n".join(lines)


def _cell_lines(cell: CellReport) -> Iterator[str]:
    yield f"  cell [{cell.cell}] {cell.why or 'does not look like training'}"
    if cell.kept:
        cells = list(dict.fromkeys(f"[{line.cell}]" for line in cell.kept))
        where = f"cell {cells[0]}" if len(cells) == 1 else f"cells {', '.join(cells[:12])}{', …' * (len(cells) > 12)}"
        yield f"    takes along  {len(cell.kept)} statement{'s' * (len(cell.kept) > 1)} of {where}"
    if cell.left_out:
        kinds = Counter(LEFT_WORDS.get(one.kind, "not needed") for one in cell.left_out)
        said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        yield f"    leaves out   {len(cell.left_out)}: {said}"
    for one in cell.errors:
        yield f"    to fix       {one.text}"
    for one in cell.warnings:
        yield f"    know         {one.text}"
    if cell.is_fine and cell.type:
        yield f"    type         {cell.type}"
    if cell.suggestion is not None:
        yield from (f"    {line}" for line in suggestion_text(cell.suggestion).split("\n"))


def _sum_text(reports: Sequence[Report]) -> str:
    broken = sum(one.error is not None for one in reports)
    to_fix = sum(one.error is None and not one.is_fine for one in reports)
    said = f"{len(reports)} notebooks: {len(reports) - broken - to_fix} fine"
    said += f", {to_fix} with something to fix" if to_fix else ""
    return said + (f", {broken} that cannot be checked" if broken else "")


def _plain(text: str) -> str:
    """A path as a terminal can show it, whatever bytes its name has."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown.encode(encoding, errors="replace").decode(encoding)
