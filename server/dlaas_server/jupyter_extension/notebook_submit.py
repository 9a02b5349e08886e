"""*Train this notebook*: a submit built from a notebook's cells, without a kernel.

It contains all code cells except those tagged `notrain`, or only those tagged `train` if there are any. The cells from
the first training cell on form the program's main part; the earlier ones precede it unchanged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Any, Final

from dlaas_server.rest.routes import Cell, NotebookSubmit
from jupyter_dlaas.analysis.cells import clean_cell
from jupyter_dlaas.analysis.model import Capture, ExecutedCell, LineRef, TrainingCell, line_map
from jupyter_dlaas.api import option_parsing, sources
from jupyter_dlaas.api.sources import PackedFiles
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.capture.training_detection import training_cells
from jupyter_dlaas.suggest import advice_text
from jupyter_dlaas.suggest.rewrite import Suggestion, suggest
from jupyter_dlaas.wire.protocol import JobSpec, Note, Origin, Refused, Submit

__all__ = ["Notebook", "folder_of", "interpreter_of", "make"]

_PYTHONS: Final = ("python", "python3")
_OLDEST: Final = (3, 11)
_ASK_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Notebook:
    """Context of a notebook on the server: its folder, its kernel's Python interpreter, the environment."""

    folder: Path
    interpreter: str
    environment: Mapping[str, str]


def make(asked: NotebookSubmit, notebook: Notebook) -> tuple[Submit, PackedFiles]:
    """Return the submit, and the files to upload before it. Raises Refused, which names cell, line and fix."""
    chosen = _chosen(asked.cells)
    start = _first_training(chosen)
    parts = _parts(chosen[start:])
    made = _captured(chosen, start, parts, asked.spec)
    if made.errors:
        said = [one.message for one in made.errors]
        raise Refused(said[0] if len(said) == 1 else f"{len(said)} things to fix first:\n" + "\n".join(said))
    packed = sources.pack(sources.own_modules(made.text, notebook.folder))
    spec = replace(
        asked.spec,
        name=option_parsing.job_name(asked.path) if asked.spec.name == JobSpec().name else asked.spec.name,
        framework=asked.spec.framework or option_parsing.framework_of(made.text),
        interpreter=notebook.interpreter,
        directory=str(notebook.folder),
        origin=Origin(notebook=asked.path, cell_id=chosen[start][1].id),
        notes=_notes(made, _suggestion(chosen, start)),
        cells=line_map(_split_lines(made.lines, parts)),
    )
    submit = Submit(
        key=asked.key,
        spec=spec,
        source=made.text,
        files=packed.files,
        environment=option_parsing.without_jupyter(notebook.environment),
        learners=asked.learners,
    )
    return submit, packed


def _chosen(cells: Sequence[Cell]) -> list[tuple[int, Cell]]:
    """Return the selected cells, each with its place in the notebook. Raises Refused if there are none."""
    numbered = [(n, cell) for n, cell in enumerate(cells, 1) if cell.source.strip()]
    tagged = [one for one in numbered if "train" in one[1].tags]
    chosen = tagged or [one for one in numbered if "notrain" not in one[1].tags]
    if not chosen:
        raise Refused("no code cell to run: the notebook has none, or all of them are tagged notrain")
    return chosen


def _first_training(chosen: Sequence[tuple[int, Cell]]) -> int:
    """Return the index in `chosen` of the first training cell; of the last cell if none is detected."""
    cells = [ExecutedCell(count=n, source=cell.source, cell_id=cell.id) for n, cell in chosen]
    return next((at for at, why in enumerate(training_cells(cells)) if why), len(chosen) - 1)


@dataclass(frozen=True, slots=True)
class _Part:
    """Cell of the main part: its text there, and for each of its lines the line of the cell."""

    number: int
    text: str
    lines: Sequence[int]


def _parts(main: Sequence[tuple[int, Cell]]) -> list[_Part]:
    """Return the cells of the main part.

    The first keeps its magics, which capture reads; the others are cleaned one by one, since a joined text could have
    only one `%%` line.
    """
    parts = []
    for at, (number, cell) in enumerate(main):
        clean = clean_cell(cell.source)
        if at == 0 or clean.kind == "broken":
            parts.append(_Part(number, cell.source, range(1, cell.source.count("\n") + 2)))
        elif clean.kind == "python" and clean.source.strip():
            parts.append(_Part(number, clean.source.rstrip("\n"), clean.lines))
    return parts


def _captured(chosen: Sequence[tuple[int, Cell]], start: int, parts: Sequence[_Part], spec: JobSpec) -> Capture:
    before = [ExecutedCell(count=n, source=cell.source, cell_id=cell.id) for n, cell in chosen[:start]]
    training = TrainingCell(
        count=chosen[start][0],
        source="\n".join(part.text for part in parts),
        first_line=1,
        outputs=spec.outputs,
        with_cells=tuple(n for n, _ in chosen[:start]),
        learners_max=spec.learners_max,
    )
    return capture(before, training)


def _split_lines(lines: Sequence[LineRef], parts: Sequence[_Part]) -> list[LineRef]:
    """Map the lines of the joined main part back to their cells."""
    own = [(f"cell [{part.number}]", part.lines[min(n, len(part.lines) - 1)]) for part in parts for n in _heights(part)]
    label = f"cell [{parts[0].number}]"
    return [
        LineRef(ref.line, *own[ref.cell_line - 1]) if ref.cell == label and ref.cell_line <= len(own) else ref
        for ref in lines
    ]


def _heights(part: _Part) -> range:
    return range(part.text.count("\n") + 1)


def _suggestion(chosen: Sequence[tuple[int, Cell]], start: int) -> Suggestion:
    """Return the suggested rewrite that makes the first training cell elastic."""
    before = [ExecutedCell(count=n, source=cell.source, cell_id=cell.id) for n, cell in chosen[:start]]
    return suggest(before, TrainingCell(count=chosen[start][0], source=chosen[start][1].source, first_line=1))


def _notes(made: Capture, suggestion: Suggestion) -> tuple[Note, ...]:
    """Return notes on omitted lines, warnings, and a suggested rewrite."""
    left = [
        Note(code=one.kind, text=f"{one.cell}, line {one.line} was left out: {one.source} ({one.reason})"[:4000])
        for one in made.left_out
    ]
    warned = [Note(code=one.code[:60], text=one.message[:4000]) for one in made.warnings]
    return tuple([*advice_text.notes_of(suggestion), *left, *warned][:500])


def folder_of(root: str | None, path: str) -> Path:
    """Return a notebook's folder below the server's root. Raises Refused, including for paths that leave the root."""
    if not root:
        raise Refused("this server does not store notebooks in a folder; use %%train in a cell")
    parts = path.strip("/").split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path:
        raise Refused(f"{path!r} is not a notebook path of this server")
    base = Path(root).resolve()
    folder = base.joinpath(*parts[:-1]).resolve()
    if not folder.is_relative_to(base) or not folder.is_dir():
        raise Refused(f"the folder of {path!r} does not exist on this server")
    return folder


async def interpreter_of(name: str, spec: Any, own: str) -> str:
    """Return the interpreter that a kernelspec starts. Raises Refused unless it is a local Python 3.11 or newer.

    `own`: meaning of a bare "python": Jupyter's own interpreter.
    """
    command = [str(part) for part in spec.argv]
    if str(getattr(spec, "language", "python")).lower() != "python" or not command:
        raise Refused(f"the kernel {name} is not Python; jobs train with Python 3.11 or newer")
    path = own if command[0] in _PYTHONS else which(command[0])
    if path is None or not Path(path).name.startswith("python") or not Path(path).is_absolute():
        raise Refused(
            f"the kernel {name} starts through {command[0]!r}, which is not a Python interpreter on this machine; "
            "choose a kernel that starts python directly, or use %%train in a cell"
        )
    found = await _version(path)
    if found < _OLDEST:
        raise Refused(f"the kernel {name} runs Python {found[0]}.{found[1]}; jobs train with Python 3.11 or newer")
    return path


_versions: dict[tuple[str, float], tuple[int, int]] = {}


async def _version(path: str) -> tuple[int, int]:
    """Return major and minor version of an interpreter; cached until its file changes."""
    key = (path, os.stat(path).st_mtime)  # noqa: PTH116  # one look at a file that was just found
    if key in _versions:
        return _versions[key]
    asking = await asyncio.create_subprocess_exec(
        *(path, "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )
    try:
        async with asyncio.timeout(_ASK_S):
            said, _ = await asking.communicate()
        major, minor = (int(part) for part in said.split())
    except (TimeoutError, ValueError):
        if asking.returncode is None:
            asking.kill()
            await asking.wait()
        raise Refused(f"{path} does not run: choose another kernel") from None
    _versions[key] = (major, minor)
    return major, minor
