"""Verb `check`: finds notebooks, analyses them and prints the findings. Executes and imports nothing of theirs."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.api.sources import own_modules
from jupyter_dlaas.suggest.advice_text import suggestion_text
from jupyter_dlaas.suggest.notebook_report import MODULE_BYTES_MAX, CellReport, Report, check, imports_of, run_by
from jupyter_dlaas.wire.codec import Invalid

__all__ = ["report_text", "run"]

RUN_BYTES_MAX = 2**20
SKIPPED = frozenset({".ipynb_checkpoints", "node_modules", "__pycache__"})
OMITTED_LABELS = {
    "shown": "output only",
    "saved": "writes a file",
    "magic": "notebook command",
    "trained": "earlier training",
    "job": "ran as a job",
    "raised": "raised an error",
}


def run(paths: Sequence[str], cell: int | None, *, as_json: bool, suggests: bool = False) -> int:
    """Check notebooks and folders; return exit code 0 if all are fine, else 1. Raises Invalid for wrong usage."""
    if cell is not None and cell < 1:
        raise Invalid("--cell must be at least 1: code cells are counted from 1")
    files = list(dict.fromkeys(_files(paths)))
    if cell is not None and len(files) != 1:
        raise Invalid(f"--cell requires exactly one notebook, not {len(files)}")
    reports = []
    for path in files:
        with _rare_garbage_collection():
            report = _checked(path, cell, suggests=suggests)
        reports.append(report)
        if not as_json:
            print(report_text(report), flush=True)
    if as_json:
        print(json.dumps({"notebooks": [dataclasses.asdict(report) for report in reports]}))
    elif len(reports) != 1:
        print(_summary_text(reports))
    return 0 if all(report.is_fine for report in reports) else 1


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Run the cycle collector less often: parsed code has no cycles, and it took a fifth of a large check."""
    before = gc.get_threshold()
    gc.set_threshold(500_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _files(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        found = option_parsing.path(path, option="check")
        if found.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith(".git"))
                yield from (str(Path(folder, name)) for name in sorted(names) if name.endswith(".ipynb"))
        elif found.exists():
            yield path
        else:
            raise Invalid(f"no such file or folder: {path}")


def _checked(path: str, cell: int | None, *, suggests: bool) -> Report:
    try:
        content = Path(path).read_bytes()
        files, modules = _texts_beside(Path(path), run_by(content)), _modules_beside(Path(path), imports_of(content))
        return check(content, path, cell, suggests=suggests, files=files, modules=modules)
    except OSError as error:
        return Report(path=path, error=f"cannot be read: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001  # an unexpected notebook must not end the check of the others
        return Report(path=path, error=f"internal error, please report it: {type(error).__name__}: {error}")


def _texts_beside(notebook: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the text of those files that exist beside the notebook. A cell may write the others later."""
    texts = {}
    for name in names:
        path = notebook.parent / name
        if path.is_file() and path.stat().st_size <= RUN_BYTES_MAX:
            texts[name] = path.read_text(encoding="utf-8", errors="replace")
    return texts


def _modules_beside(notebook: Path, imports: str) -> dict[str, str]:
    """Return the text of the user's modules beside the notebook, by path, up to a total size."""
    found = own_modules(imports, notebook.absolute().parent, bytes_max=MODULE_BYTES_MAX) if imports else {}
    return {name: path.read_text(encoding="utf-8", errors="replace") for name, path in found.items()}


def report_text(report: Report) -> str:
    """Format the findings about one notebook for a terminal."""
    lines = [_plain(report.path)]
    if report.error is not None:
        return f"{lines[0]}\n  cannot be checked: {report.error}"
    for cell in report.cells:
        lines += _cell_lines(cell)
    if not report.cells:
        lines.append("  no training cell found; use --cell N to check code cell N")
    lines += [f"  note: {note.text}" for note in report.notes]
    return "\n".join(lines)


def _cell_lines(cell: CellReport) -> Iterator[str]:
    yield f"  cell [{cell.cell}] {cell.why or 'does not look like training'}"
    if cell.kept:
        cells = list(dict.fromkeys(f"[{line.cell}]" for line in cell.kept))
        where = f"cell {cells[0]}" if len(cells) == 1 else f"cells {', '.join(cells[:12])}{', …' * (len(cells) > 12)}"
        yield f"    requires     {len(cell.kept)} statement{'s' * (len(cell.kept) > 1)} of {where}"
    if cell.left_out:
        kinds = Counter(OMITTED_LABELS.get(statement.kind, "not needed") for statement in cell.left_out)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        yield f"    omits        {len(cell.left_out)}: {counts}"
    for problem in cell.errors:
        yield f"    error        {problem.text}"
    for problem in cell.warnings:
        yield f"    warning      {problem.text}"
    if cell.is_fine and cell.type:
        yield f"    type         {cell.type}"
    if cell.suggestion is not None:
        yield from (f"    {line}" for line in suggestion_text(cell.suggestion).split("\n"))


def _summary_text(reports: Sequence[Report]) -> str:
    broken = sum(report.error is not None for report in reports)
    to_fix = sum(report.error is None and not report.is_fine for report in reports)
    text = f"{len(reports)} notebooks: {len(reports) - broken - to_fix} without errors"
    text += f", {to_fix} with errors" if to_fix else ""
    return text + (f", {broken} that could not be checked" if broken else "")


def _plain(text: str) -> str:
    """Replace the characters of a path that are not printable."""
    return "".join(char if char.isprintable() else "?" for char in text)
