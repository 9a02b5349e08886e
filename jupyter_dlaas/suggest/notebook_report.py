"""Analysis for `jupyter dlaas check`: what each training cell of a notebook requires. Executes nothing. Pure.

Takes a notebook's bytes and returns a `Report`, as if all cells had run once from the top of the page. Never raises
for the contents of a file: what cannot be read is reported in `error` or with the cell.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from jupyter_dlaas.analysis.cells import (
    JOB_MAGIC,
    clean_cell,
    files_run,
    files_written,
    is_magic_word,
    statements_of,
    training_statements,
)
from jupyter_dlaas.analysis.dataflow import Tracer, trace
from jupyter_dlaas.analysis.model import MODULE_BYTES_MAX, ExecutedCell, ModuleState, Problem, TrainingCell
from jupyter_dlaas.analysis.own_modules import states_of
from jupyter_dlaas.analysis.steps import Step, Trace
from jupyter_dlaas.analysis.syntax.syntax_depth import deep_trees
from jupyter_dlaas.api.option_parsing import job_name
from jupyter_dlaas.capture.capture import WARNINGS
from jupyter_dlaas.capture.keras_output_check import check_keras_outputs
from jupyter_dlaas.capture.loss_check import check_losses
from jupyter_dlaas.capture.preflight import check_commands, check_prompts, check_source, check_trainings, check_writes
from jupyter_dlaas.capture.resolve import solve
from jupyter_dlaas.capture.training_detection import Watcher, looks_like_training
from jupyter_dlaas.suggest.advice_text import shares_work
from jupyter_dlaas.suggest.rewrite import Suggestion, suggest

__all__ = ["MODULE_BYTES_MAX", "CellReport", "Finding", "Line", "Omitted", "Report", "check", "imports_of", "run_by"]

LEARNERS_MAX: Final = 4
LARGEST_BYTES: Final = 512 * 2**20
_OF_A_NAME: Final = frozenset({"undefined_name", "output_unbound", "perhaps_bound"})
_OPTIONAL: Final = frozenset({"unneeded", "shown", "saved", "trained"})
_OUTPUTS: Final = re.compile(r"(?:^|\s)(?:-o|--outputs)[\s=]+(\S+)")


@dataclass(frozen=True, slots=True)
class Line:
    """Statement that is included."""

    cell: int
    line: int
    source: str


@dataclass(frozen=True, slots=True)
class Omitted:
    """Statement or notebook command that is omitted."""

    cell: int
    line: int
    source: str
    kind: str
    reason: str
    option: str  # option that includes it; "" if none does


@dataclass(frozen=True, slots=True)
class Finding:
    """Error or warning: the thing, its place and the fix."""

    code: str
    cell: int
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellReport:
    """Cell that looks like training, or that was requested. Code cells are counted from 1."""

    cell: int
    is_training: bool
    why: str
    kept: tuple[Line, ...] = ()
    left_out: tuple[Omitted, ...] = ()
    unbound: tuple[str, ...] = ()
    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    type: str = ""  # line to add at the top of the cell
    suggestion: Suggestion | None = None  # changes that would make it elastic, if requested

    @property
    def is_fine(self) -> bool:
        """Return whether nothing prevents the cell from becoming a job."""
        return not self.unbound and not self.errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Findings of `check` about one notebook."""

    path: str
    cells: tuple[CellReport, ...] = ()
    notes: tuple[Finding, ...] = ()  # cells that Python cannot parse, and the like
    error: str | None = None  # why the notebook cannot be read

    @property
    def is_fine(self) -> bool:
        """Return whether the notebook could be read and each of its training cells can become a job."""
        return self.error is None and all(cell.is_fine for cell in self.cells)


def run_by(content: bytes) -> tuple[str, ...]:
    """Return the files that a notebook's cells `%run`, as written there; `check` needs their text."""
    if b"%run" not in content:
        return ()
    return files_run(ExecutedCell(count=n, source=source) for n, source in enumerate(_sources(content)[0], 1))


def imports_of(content: bytes) -> str:
    """Return the lines of a notebook that begin with an import, as one program; `check` needs the modules' text."""
    lines = (line.strip() for source in _sources(content)[0] for line in source.splitlines())
    return "\n".join(line for line in lines if line.startswith(("import ", "from ")) and _is_statement(line))


def _is_statement(line: str) -> bool:
    try:
        ast.parse(line)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def check(
    content: bytes,
    path: str,
    cell: int | None = None,
    *,
    suggests: bool = False,
    files: Mapping[str, str] = MappingProxyType({}),
    modules: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Analyse the bytes of a notebook file. `cell`: only this code cell, whether it looks like training or not.

    `suggests`: include the changes that would make each found cell elastic. `files`: the text of files of `%run`.
    `modules`: the text of the user's modules that it imports, by path from its folder.
    """
    sources, error, notes = _sources(content)
    if error:
        return Report(path=path, error=error)
    if cell is not None and not 1 <= cell <= len(sources):
        return Report(path=path, error=f"no code cell {cell}: the notebook has {len(sources)}, counted from 1")
    try:
        with deep_trees():
            found = _Checker(sources, path, cell, notes, files, states_of(modules)).report()
    except RecursionError:
        return Report(
            path=path, error="a cell is nested too deeply to be parsed; split its expression into several statements"
        )
    if not suggests:
        return found
    return replace(found, cells=tuple(replace(one, suggestion=_suggestion(sources, one.cell)) for one in found.cells))


def _suggestion(sources: Sequence[str], number: int) -> Suggestion:
    before, source = _executed(sources[: number - 1]), sources[number - 1]
    if clean_cell(source).kind == "job":
        body, first_line = _below_magic(source)
        above = source.removesuffix(body)
        return suggest(before, TrainingCell(count=number, source=body, first_line=first_line, above=above))
    return suggest(before, TrainingCell(count=number, source=source, first_line=1))


def _executed(sources: Sequence[str]) -> list[ExecutedCell]:
    """Return the cells as if each had run once, from the top of the page."""
    return [ExecutedCell(count=n, source=source) for n, source in enumerate(sources, 1)]


def _below_magic(source: str) -> tuple[str, int]:
    """Return the text below the line of %%train, and its first line number."""
    blank = len(source) - len(source.lstrip())
    return source[blank:].partition("\n")[2], source[:blank].count("\n") + 2


def _sources(content: bytes) -> tuple[list[str], str, tuple[Finding, ...]]:
    """Return the text of each code cell, or the reason why there is none."""
    if len(content) > LARGEST_BYTES:
        return [], f"larger than {LARGEST_BYTES // 2**20} MB; clear the outputs first", ()
    text = content.decode("utf-8-sig", errors="replace")
    if not text.strip():
        return [], "the file is empty", ()
    try:
        document = json.loads(text)
    except RecursionError:
        return [], "not a notebook: nested too deeply", ()
    except ValueError as error:
        at = getattr(error, "lineno", None)
        return [], f"not a notebook: invalid JSON{f' at line {at}' if at else ''}; the file may be incomplete", ()
    if not isinstance(document, dict):
        return [], "not a notebook: valid JSON, but without cells", ()
    if language := _language(document.get("metadata")):
        return [], f"the kernel's language is {language}; only Python notebooks are supported", ()
    notes: tuple[Finding, ...] = ()
    cells = document.get("cells")
    sheets = document.get("worksheets")
    if not isinstance(cells, list) and isinstance(sheets, list):
        cells = [c for sheet in sheets if isinstance(sheet, dict) for c in _list(sheet.get("cells"))]
        notes = (Finding("old_format", 0, 0, "old notebook format (nbformat 3): open and save it in JupyterLab first"),)
    if not isinstance(cells, list):
        return [], "not a notebook: valid JSON, but without cells", ()
    found = [_text(c) for c in cells if isinstance(c, dict) and c.get("cell_type") == "code"]
    return (found, "", notes) if found else ([], "the notebook has no code cells", ())


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(cell: Mapping[str, Any]) -> str:
    source = cell.get("source", cell.get("input", ""))
    text = source if isinstance(source, str) else "".join(part for part in _list(source) if isinstance(part, str))
    # a lone surrogate is not valid text for Python; it may only occur in a string or a comment
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _language(metadata: object) -> str:
    """Return the kernel's language if it is known and not Python."""
    if not isinstance(metadata, dict):
        return ""
    finding = []
    for part, key in (("language_info", "name"), ("kernelspec", "language")):
        value = metadata.get(part)
        name = value.get(key) if isinstance(value, dict) else None
        if isinstance(name, str) and name.strip():
            finding.append(_shown(name.strip()))
    return "" if not finding or any(re.match(r"i?python|sage", name, re.IGNORECASE) for name in finding) else finding[0]


def _shown(text: str, width: int = 40) -> str:
    """Format text from a file for one line of a terminal."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= width else f"{plain[: width - 1]}…"


class _Checker:
    def __init__(
        self,
        sources: Sequence[str],
        path: str,
        selected: int | None,
        notes: tuple[Finding, ...],
        files: Mapping[str, str],
        modules: Mapping[str, ModuleState],
    ) -> None:
        self.modules = modules
        self.sources, self.path, self.selected = sources, path, selected
        cells = _executed(sources)
        has_runs = any("%run" in source for source in sources)
        self.files = files_written(cells, files) if has_runs else [files] * len(cells)
        self.notes = list(notes)
        self.tracer = Tracer(modules=modules)
        self.watcher = Watcher(self.tracer)
        self.steps: list[Step] = []
        self.results: set[str] = set()  # returned by a %%train cell with -o
        self.lines: dict[int, Line] = {}
        self.omitted: dict[tuple[int, str], Omitted] = {}
        self.may_bind = ""  # a cell or file that may bind names but could not be parsed

    def report(self) -> Report:
        found = []
        for number, source in enumerate(self.sources, 1):
            one = self._cell(number, source)
            if one is not None and self.selected in (None, number):
                found.append(one)
            if number == self.selected:
                break
        return Report(path=self.path, cells=tuple(found), notes=tuple(self.notes))

    def _cell(self, number: int, source: str) -> CellReport | None:
        label = f"cell [{number}]"
        clean = clean_cell(source)
        if clean.kind == "job":
            return self._job_cell(number, label, source)
        if clean.kind == "broken" and not is_magic_word(source):
            return self._broken(number, label, source)
        start = len(self.steps)
        executed = ExecutedCell(count=number, source=source, cell_id=str(number))
        new = [self.tracer.step(statement) for statement in statements_of(executed, label, self.files[number - 1])]
        self.steps += new
        self._note_files(new, label)
        why = self.watcher.why(new)
        if not why and number != self.selected:
            return None
        training = TrainingCell(count=number, source=source, first_line=1, learners_max=LEARNERS_MAX)
        if clean.kind != "python" or all(step.statement.node is None for step in new):
            return self._refused(number, label, training, why)
        found = self._taken(number, why, training, self.tracer.trace(self.steps), start)
        refused = check_commands(training_statements(training, label)[1], label)
        return replace(found, errors=(*found.errors, *(_finding(problem, number) for problem in refused)))

    def _job_cell(self, number: int, label: str, source: str) -> CellReport:
        """Check a cell that is already a job; later cells only see the variables that -o returns."""
        body, first_line = _below_magic(source)
        head = source.lstrip().partition("\n")[0]
        outputs = tuple(name for names in _OUTPUTS.findall(head) for name in names.split(",") if name.isidentifier())
        training = TrainingCell(
            count=number, source=body, first_line=first_line, learners_max=LEARNERS_MAX, outputs=outputs
        )
        statements, clean = training_statements(training, label)
        why = f"%%{JOB_MAGIC}"
        if clean.kind != "python" or not statements:
            made = self._refused(number, label, training, why)
        else:
            traced = trace([*(step.statement for step in self.steps), *statements], modules=self.modules)
            made = self._taken(number, why, training, traced, len(self.steps))
        executed = ExecutedCell(count=number, source=source, cell_id=str(number))
        self.steps += [
            self.tracer.step(statement) for statement in statements_of(executed, label, self.files[number - 1])
        ]
        self.results |= {*outputs}
        return replace(made, type=_shown(head, 200))

    def _broken(self, number: int, label: str, source: str) -> CellReport | None:
        training = TrainingCell(count=number, source=source, first_line=1)
        looks = looks_like_training(source)
        made = self._refused(number, label, training, "looks like training" if looks else "")
        if looks or number == self.selected:
            return made
        self.notes += [replace(finding, code="unreadable_cell") for finding in made.errors]
        return None

    def _refused(self, number: int, label: str, training: TrainingCell, why: str) -> CellReport:
        _, clean = training_statements(training, label)
        errors = tuple(_finding(p, number) for p in check_source(clean, training, label))
        if not errors:
            errors = (Finding("empty_cell", number, training.first_line, f"{label} is empty."),)
        return CellReport(cell=number, is_training=bool(why), why=why, errors=errors)

    def _note_files(self, steps: Sequence[Step], label: str) -> None:
        for step in steps:
            text = step.statement.source.strip()
            if step.statement.node is None and text.startswith(("%run", "%load ", "%%run", "%store -r")):
                self.may_bind = f"{label}, line {step.statement.line} ({_shown(text, 60)})"

    def _taken(self, number: int, why: str, training: TrainingCell, traced: Trace, goal: int) -> CellReport:
        solved = solve(traced, goal, training, None)
        program = [step.statement.node for index, step in enumerate(traced.steps) if index in solved.slice.kept]
        shares = shares_work(ast.Module([node for node in program if node is not None], []))
        problems = [
            *solved.errors,
            *check_prompts(traced, goal),
            *solved.warnings,
            *check_trainings(traced, solved.slice, goal, None),
            *check_writes(traced, goal, training.learners_max if shares else 1),
            *check_losses(_executed(self.sources[: number - 1]), training, training.learners_max if shares else 1),
            *check_keras_outputs(traced, training),
        ]
        errors: list[Finding] = []
        warnings: list[Finding] = []
        unbound: list[str] = []
        pushes: list[str] = []
        for problem in problems:
            finding = _finding(problem, number)
            name = problem.names[0] if problem.names else ""
            is_job_result = problem.code in _OF_A_NAME and name in self.results
            may_be_bound = problem.code == "output_unbound" and bool(self.may_bind)
            if problem.code == "not_reproducible":  # only a kernel knows whether its value is small and plain
                pushes += [name]
                warnings.append(finding)
            elif is_job_result or may_be_bound:
                continue
            elif problem.code == "undefined_name" and self.may_bind:
                place = f"cell [{finding.cell}], line {finding.line}"
                text = f"{place}, reads `{name}`, which only {self.may_bind} can define."
                warnings.append(replace(finding, code="perhaps_bound", text=text))
            elif problem.code == "undefined_name":
                unbound.append(name)
                errors.append(finding)
            else:
                (warnings if problem.code in WARNINGS else errors).append(finding)
        kept = [self._line(index, traced) for index in sorted(solved.slice.kept) if index < goal]
        left = [self._omitted(index, traced, *solved.slice.left[index]) for index in sorted(solved.slice.left)]
        options = f" --gpus 1:{LEARNERS_MAX}" if shares else ""  # otherwise each learner would train the same
        options += f" --push {','.join(dict.fromkeys(pushes))}" if pushes else ""
        return CellReport(
            cell=number,
            is_training=bool(why),
            why=why,
            kept=tuple(kept),
            left_out=tuple(left),
            unbound=tuple(dict.fromkeys(unbound)),
            errors=tuple(errors),
            warnings=tuple(warnings),
            type=f"%%{JOB_MAGIC} {job_name(self.path)}{options}",
        )

    def _line(self, index: int, traced: Trace) -> Line:
        """Return the record of a kept statement, shared by several training cells."""
        if index not in self.lines:
            statement = traced.steps[index].statement
            self.lines[index] = Line(statement.cell, statement.line, statement.source)
        return self.lines[index]

    def _omitted(self, index: int, traced: Trace, kind: str, reason: str) -> Omitted:
        known = self.omitted.get((index, reason))
        if known is None:
            statement = traced.steps[index].statement
            option = f"--with-cell {statement.cell}" if kind in _OPTIONAL else ""
            known = Omitted(statement.cell, statement.line, statement.head, kind, reason, option)
            self.omitted[index, reason] = known
        return known


def _finding(problem: Problem, number: int) -> Finding:
    place = re.match(r"cell \[(\d+)\]", problem.cell)
    text = problem.message.replace("no executed cell defines", "no cell above defines")  # nothing was executed
    text = re.sub(r"Run the cell that defines (`[^`]*`), or define it here\.", r"Define \1 in a cell above.", text)
    text = re.sub(r"Fix the line and run the cell again\.", "Fix the line.", text)
    return Finding(problem.code, int(place[1]) if place else number, problem.line, _shown(text, 2000))
