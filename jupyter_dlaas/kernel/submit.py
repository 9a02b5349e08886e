"""Submission of a training cell: capture, files and notes for one call of `dlaas.submit`, and the text of --dry-run."""

from __future__ import annotations

import hashlib
import json
import socket
import symtable
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.analysis.model import (
    Capture,
    EarlierJob,
    ExecutedCell,
    ResultRef,
    TrainingCell,
    line_map,
    size_text,
)
from jupyter_dlaas.api import option_parsing, sources
from jupyter_dlaas.api.package_data import package_data
from jupyter_dlaas.api.submission import Prepared
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.capture.resolve import joined
from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.kernel.options import NotSubmitted, TrainLine
from jupyter_dlaas.kernel.recorder import facts_of
from jupyter_dlaas.objects.random_generators import generator_of
from jupyter_dlaas.suggest import advice_text, logging_hint, single_learner
from jupyter_dlaas.suggest.rewrite import Suggestion, suggest
from jupyter_dlaas.transfer.pushed_objects import Pushed, write_pushed
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import File, Note, Origin

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Cell", "Ready", "capture_cell", "dry_run_text", "notes_of", "prepared", "suggestion_of", "where_of"]

_NOTES_MAX: Final = 60
_NOTE_MAX: Final = 1000
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """Training cell as the front end sent it: the text below its `%%train` line, and its position."""

    source: str
    count: int
    first_line: int = 2
    """Line of the page's cell at which `source` begins."""
    above: str = ""
    """Lines of the page's cell above `source`, with %%train as the last one."""
    cell_id: str | None = None


def where_of(cell: Cell) -> str:
    """Return the position of the `%%train` line for messages."""
    return f"cell [{cell.count}], line {cell.first_line - 1}"


def capture_cell(
    shell: InteractiveShell,
    cells: Sequence[ExecutedCell],
    cell: Cell,
    line: TrainLine,
    results: Mapping[str, ResultRef],
    needs: Collection[str] = (),
    jobs: tuple[EarlierJob, ...] = (),
) -> Capture:
    """Capture the training cell with what it needs from the executed cells as one program, or the errors.

    `needs`: names that loading the pushed objects requires from the notebook, beyond those found by inspection.
    `jobs`: jobs that were submitted before from this kernel.
    """
    training = _training(cell, line)
    facts = replace(facts_of(shell, cells, results=results, sent=line.push), jobs=jobs)
    if needs:
        first = line.push[0]
        names = dict(facts.names)
        names[first] = replace(names[first], main_names=tuple(sorted({*names[first].main_names, *needs})))
        facts = replace(facts, names=names)
    return capture(cells, training, facts)


def suggestion_of(cells: Sequence[ExecutedCell], cell: Cell, line: TrainLine) -> Suggestion:
    """Return the changes that would make the training cell elastic."""
    return suggest(cells, _training(cell, line))


def _training(cell: Cell, line: TrainLine) -> TrainingCell:
    return TrainingCell(
        count=cell.count,
        source=cell.source,
        first_line=cell.first_line,
        above=cell.above,
        outputs=line.outputs,
        push=line.push,
        with_cells=line.with_cells,
        learners_max=line.learners_max,
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """Captured cell with the arguments of `dlaas.submit`."""

    made: Capture
    options: dict[str, Any]


@contextmanager
def prepared(
    shell: InteractiveShell,
    cells: Sequence[ExecutedCell],
    cell: Cell,
    line: TrainLine,
    results: Mapping[str, ResultRef],
    suggestion: Suggestion,
    jobs: tuple[EarlierJob, ...] = (),
) -> Iterator[Ready]:
    """Capture a cell and write the values that it pushes; the files exist inside the `with`. Raises NotSubmitted."""
    made = _ready(capture_cell(shell, cells, cell, line, results, jobs=jobs))
    with TemporaryDirectory(prefix="dlaas-push-") as folder:
        try:
            pushed = None
            if made.pushed:
                objects = {name: shell.user_ns[name] for name in made.pushed}
                path = Path(folder) / "pushed.bin"
                pushed = write_pushed(path, objects, has_gradients=not made.clears_gradients_first)
                if not _binds(made.text) >= set(pushed.main_names):  # names that only pickling revealed
                    made = _ready(capture_cell(shell, cells, cell, line, results, pushed.main_names, jobs))
            generators = _generators(shell.user_ns, made) if line.outputs else ()
            outputs = tuple(dict.fromkeys((*line.outputs, *generators)))
            yield Ready(made, {**_options(cell, line, made, pushed, suggestion), "outputs": outputs})
        except DlaasError as error:
            if isinstance(error, NotSubmitted):
                raise
            raise NotSubmitted([f"{where_of(cell)}: {error}"]) from None


def _ready(made: Capture) -> Capture:
    if made.errors:
        raise NotSubmitted([problem.message for problem in joined(made.errors)])
    return made


def _binds(text: str) -> set[str]:
    """Return the names that a program binds at its top level."""
    symbols = symtable.symtable(text, "train.py", "exec").get_symbols()
    return {
        symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }


def _generators(space: Mapping[str, object], made: Capture) -> tuple[str, ...]:
    """Return the notebook's random generators from which the training cell may draw.

    They are returned with the results, so that a second run continues to draw, as it does from the global streams.
    """
    names = _binds(made.text) & set(made.reached) & space.keys()
    return tuple(sorted(name for name in names if generator_of(space[name]) is not None))


def _options(
    cell: Cell, line: TrainLine, made: Capture, pushed: Pushed | None, suggestion: Suggestion
) -> dict[str, Any]:
    own = {**sources.own_modules(made.text, Path.cwd()), **_modules(made)}
    data = package_data(made.text, own)
    packed = sources.pack({**data.files, **own})
    files, uploads = [*packed.files, *data.inputs()], dict(packed.uploads or {})
    if made.random_state:
        files.append(File(path="inputs/chance.json", text=json.dumps(made.random_state)))
    notes = (*data.notes, *notes_of(made, suggestion, line))[:_NOTES_MAX]
    starts_alone = _starts_alone(made, line)
    if pushed is not None:
        with pushed.path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        files.append(File(path="inputs/pushed.bin", sha256=sha256))
        uploads[sha256] = pushed.path
        text = f"sent by value: {', '.join(pushed.names)} ({size_text(pushed.size_bytes)})"
        warned = len(data.notes) + len(made.warnings) + starts_alone
        notes = (*notes[:warned], Note(code="pushed", text=_cut(text)), *notes[warned:])[:_NOTES_MAX]
    notebook = discovery.notebook_path()
    return {
        "name": option_parsing.job_name(notebook) if notebook else "train",
        **(single_learner.options(line.options, line.learners_max) if starts_alone else line.options),
        "files": files,
        "uploads": uploads,
        "origin": Origin(
            notebook=notebook, cell_id=cell.cell_id, execution_count=cell.count, host=socket.gethostname()
        ),
        "notes": notes,
        "cells": line_map(made.lines),
        # Functions are sent as the code of this Python.
        "python": None if pushed is None else f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def _starts_alone(made: Capture, line: TrainLine) -> bool:
    """Return whether several devices but no learners were requested and each learner would train the same."""
    if line.learners_max <= 1 or "gpus" not in line.options or line.options.get("schedule"):
        return False
    own = {**sources.own_modules(made.text, Path.cwd()), **_modules(made)}
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in own.values() if path.suffix == ".py"]
    return single_learner.trains_alone([made.text, *texts])


def _modules(made: Capture) -> dict[str, Path]:
    """Return the user's modules by the name under which the job imports them."""
    found = {}
    for module in made.modules:
        path = Path.cwd() / module.path
        tail = "/__init__.py" if path.name == "__init__.py" else ".py"
        found[module.name.replace(".", "/") + tail] = path
    return found


def notes_of(made: Capture, suggestion: Suggestion, line: TrainLine) -> tuple[Note, ...]:
    """Return the notes for the card: fewer learners, warnings, suggested changes, omitted statements with reasons."""
    notes = [Note(code=warning.code[:60], text=_cut(warning.message)) for warning in made.warnings]
    if _starts_alone(made, line):
        notes.insert(0, single_learner.note(line.learners_max))
    elif line.learners_max > 1 and advice_text.trains_alone(made.text):
        text = (
            f"the job uses neither dlaas.run() nor torch.distributed: each of up to {line.learners_max} learners "
            "trains independently on all of the data. Use --gpus 1 for one learner."
        )
        if advice_text.uses_lightning(made.text):
            text += ' Or let Lightning train one model on all: Trainer(strategy="ddp").'
        notes.append(Note(code="trains_alone", text=text))
    notes += advice_text.notes_of(suggestion)
    notes += [Note(code=logging_hint.CODE, text=_cut(text)) for text in (logging_hint.how_to_log(made.text),) if text]
    notes += [
        Note(code=f"left_out_{kind}"[:60], text=_cut(f"omitted: {places}: {reason}."))
        for kind, reason, places in _omitted(made)
    ]
    return tuple(notes[:_NOTES_MAX])


def _is_shown_in_dry_run(note: Note) -> bool:
    """Return whether a dry run shows the note; the others are only for the card."""
    return not advice_text.is_for_page(note) and note.code != logging_hint.CODE


def _omitted(made: Capture) -> list[tuple[str, str, str]]:
    """Return kind, reason and places of the omitted statements, one entry per reason."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for one in made.left_out:
        lines = found.setdefault((one.kind, one.reason.rstrip(".")), {}).setdefault(one.cell, [])
        if one.line not in lines:
            lines.append(one.line)
    return [
        (kind, reason, "; ".join(f"{cell}, {_lines(lines)}" for cell, lines in cells.items()))
        for (kind, reason), cells in found.items()
    ]


def _lines(numbers: list[int]) -> str:
    return f"{'line' if len(numbers) == 1 else 'lines'} {', '.join(map(str, numbers))}"


def _cut(text: str) -> str:
    return text if len(text) <= _NOTE_MAX else text[: _NOTE_MAX - 1] + "…"


# ---------------------------------------------------------------------------------------------------------- dry run


def dry_run_text(made: Capture, prepared: Prepared, client: Client) -> str:
    """Format what would be sent, the omitted statements with reasons, and the pool's answer; starts nothing."""
    spec = prepared.submit.spec
    size = (
        f"{spec.learners_min}"
        if spec.learners_min == spec.learners_max
        else f"{spec.learners_min} to {spec.learners_max}"
    )
    each = f"{spec.gpus_per_learner} GPU (or CPU slot) each" if spec.gpus_per_learner else "no GPU"
    placed = f"placement {spec.placement}" if spec.placement else "the pool's placement"
    turn = f"{'spot, ' if spec.spot else ''}priority {spec.priority}"
    problems, estimate = _preflight(prepared, client)
    parts = [
        _ruled("train.py", made.text.rstrip("\n")),
        _listed("Omitted", [_omitted_text(statement) for statement in made.left_out]),
        _listed("Notes", [f"  {note.text}" for note in prepared.submit.spec.notes if _is_shown_in_dry_run(note)]),
        _listed("Sent with it", [f"  {text}" for text in _sent(made, prepared)]),
        "\n".join(
            (
                "Runs",
                f"  {spec.name}: {size} learner{'' if size == '1' else 's'}, {each}; {placed}",
                f"  {turn}, queue {spec.queue}, framework {spec.framework or 'unknown'}",
                f"  {spec.interpreter}",
                f"  in {spec.directory}",
                *([f"  returns {', '.join(spec.outputs)}"] if spec.outputs else []),
            )
        ),
        _listed("Pool", [f"  {text}" for text in (*problems, estimate) if text]),
        "Nothing was submitted (--dry-run).",
    ]
    return "\n\n".join(part for part in parts if part)


def _omitted_text(statement: Any) -> str:
    head = statement.source.strip().splitlines()[0] if statement.source.strip() else ""
    option = f" To include it: {statement.option}." if statement.option else ""
    return f"  {statement.cell}, line {statement.line}: {head[:_SHOWN]}\n      {statement.reason}.{option}"


def _sent(made: Capture, prepared: Prepared) -> Iterator[str]:
    sizes = {sha256: path.stat().st_size for sha256, path in prepared.uploads.items()}
    for file in prepared.submit.files:
        size = len(file.text.encode()) if file.text is not None else sizes.get(file.sha256 or "", 0)
        what = f"{', '.join(made.pushed)} by value" if file.path == "inputs/pushed.bin" else file.path.partition("/")[2]
        yield f"{what} ({size_text(size)})"
    for ref in made.results:
        yield f"{ref.name}, a result of {ref.job}"


def _preflight(prepared: Prepared, client: Client) -> tuple[list[str], str]:
    """Return the pool's problems with the submission and its start estimate, without sending the files."""
    try:
        found: dict[str, Any] = client.preflight(replace(prepared.submit, files=()))
    except DlaasError as error:
        return [f"the pool did not answer: {error}"], ""
    return [f"error: {problem['text']}" for problem in found["problems"]], str(found["estimate"])


def _ruled(title: str, text: str) -> str:
    return f"{title}\n" + "\n".join(f"  {row}".rstrip() for row in text.splitlines())


def _listed(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *lines]) if lines else ""
