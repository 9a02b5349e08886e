"""Parsing of executed cells into the Python statements that ran. Pure; imports IPython only if a cell requires it.

Magics and `!` lines are separated; `%%time`, `%%capture`, `%time statement` are unwrapped; `%run file` is replaced by
the file's statements.
"""

from __future__ import annotations

import ast
import difflib
import json
import keyword
import re
import shlex
import tokenize
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from jupyter_dlaas.analysis.effects import words
from jupyter_dlaas.analysis.model import ExecutedCell, TrainingCell
from jupyter_dlaas.analysis.syntax.ipython_magics import is_magic_call, translated
from jupyter_dlaas.analysis.syntax.raised_parts import part_that_ran

WRAPPERS = frozenset({"time", "capture", "prun"})  # IPython's magics that run the code in the user's namespace
FOREIGN = words(
    """! HTML R SVG ai bash bigquery cmd configure cpp cu cuda cython cython_inline cython_pyximport dot file fortran
    html java javascript js julia kql latex markdown mermaid node octave perl powershell pybind11 pypy python python2
    python3 ruby rust scala script sh shell skip spark sql svg sx system tikz timeit writefile writetemplate"""
)  # magics over other languages, text, or remote code; other magics are assumed to wrap Python
JOB_MAGIC = "train"
RUN_AGAIN = ", run again since"  # ends the label of a failed execution whose cell has run without an error since
UNREADABLE = (
    SyntaxError,
    ValueError,
    RecursionError,
    MemoryError,
)  # errors of `ast.parse` for unusual or deeply nested text
SIMPLE_MAGIC = re.compile(
    r"^(?P<indent>[ \t]*)(?:%(?P<name>[A-Za-z_]\w*)(?P<args>[ \t][^?{]*)?|!(?P<command>[^!\s][^?]*))(?<!\\)$"
)
PYLAB = re.compile(r"^\s*%pylab\b(?!.*--no-import-all)")
PYLAB_TEXT = """\
import numpy
import matplotlib
from matplotlib import pylab, mlab, pyplot
np = numpy
plt = pyplot
from pylab import *
from numpy import *
"""  # as IPython runs it
RUN = re.compile(r"^\s*%run\s+(?P<args>\S.*)$")
WRITTEN = re.compile(r"^\s*%%(?:writefile|file)[ \t]+(?P<args>\S.*)$")
ARGUMENTS = words(
    """argv argparse parse_args ArgumentParser HfArgumentParser parse_args_into_dataclasses absl click docopt fire hydra
    optparse simple_parsing typer tyro"""
)  # names in scripts that parse their arguments
NESTED_RUNS_MAX = 5


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a statement's text with its line number in the page's cell."""

    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Top-level statement that ran, or a magic line (`node` is None)."""

    cell: int  # execution count
    label: str  # "cell [7]"
    lines: tuple[Line, ...]
    node: ast.stmt | None
    kind: str = "python"  # "python", "magic", "job", "moved" (a change of directory)
    ran: str = "yes"  # "yes", "partly" (it raised an error), "unknown" (its cell did), "no"
    ran_node: ast.stmt | None = None  # the part that ran before the error or raised it; None: unknown
    raised_in: str = ""  # the expression that raised the error, if it is a part of the statement
    foreign: str = ""  # reason why it cannot run again: "a magic's result"
    is_interrupted: bool = False  # its cell was interrupted and continued
    is_last: bool = False  # last of its cell: IPython shows its value, unless that is None

    @property
    def line(self) -> int:
        return self.lines[0].line

    @property
    def source(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @property
    def head(self) -> str:
        """Return the first line of code, for lists."""
        code = [line.text.strip() for line in self.lines if not line.text.lstrip().startswith("#")]
        return code[0] if code else self.lines[0].text.strip()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Cell as plain Python. `lines` maps each line of `source` to the line of the raw cell."""

    source: str
    lines: tuple[int, ...]
    magics: tuple[Line, ...] = ()  # commands that are omitted
    refused: tuple[Line, ...] = ()  # commands that a job cannot run, in a training cell
    kind: str = "python"  # "python", "magic" (no Python of this kernel), "job", "broken"
    binds: tuple[str, ...] = ()  # names bound by `%%capture out`
    error: str = ""
    error_line: int = 1


def files_run(cells: Iterable[ExecutedCell]) -> tuple[str, ...]:
    """Return the files, as written in `%run file` of a cell, whose text `capture` needs."""
    names = []
    for cell in cells:
        for line in lines_of(cell.source):
            if (found := RUN.match(line)) and (name := _run_target(found["args"])):
                names.append(name)
    return tuple(dict.fromkeys(names))


def files_written(cells: Sequence[ExecutedCell], on_disk: Mapping[str, str]) -> list[Mapping[str, str]]:
    """Return, for each cell, the text of files that it may run: as on disk, unless a cell has rewritten them since."""
    writes = [_written_by(cell.source) for cell in cells]
    last = {name: at for at, name in enumerate(writes) if name is not None}
    found: list[Mapping[str, str]] = []
    now, texts = on_disk, dict[str, str]()
    for at, (cell, name) in enumerate(zip(cells, writes, strict=True)):
        if name is not None:
            texts[name] = cell.source.lstrip().partition("\n")[2]
        if texts:
            now = {**on_disk, **{n: text for n, text in texts.items() if n not in on_disk or last[n] > at}}
        found.append(now)
    return found


def _written_by(source: str) -> str | None:
    """Return the file that a `%%writefile` cell creates."""
    if not source.lstrip().startswith("%%") or (found := WRITTEN.match(source.lstrip().partition("\n")[0])) is None:
        return None
    try:
        words = shlex.split(found["args"])
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


def lines_of(text: str) -> list[str]:
    """Split text into lines as Python does: `str.splitlines` also splits at form feeds, even inside strings."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def labels(cells: Sequence[ExecutedCell]) -> dict[int, str]:
    """Return a label for each execution: the number that the page shows now, if the cell is still the same.

    A failed execution keeps its own number if the same cell has run without an error since.
    """
    found: dict[int, str] = {}
    by_id = {cell.cell_id: cell for cell in cells if cell.cell_id is not None}
    by_source = {cell.source: cell for cell in cells}
    for cell in cells:
        newest = by_id.get(cell.cell_id, cell) if cell.cell_id is not None else by_source[cell.source]
        if newest.source == cell.source and cell.raised and not newest.raised:
            found[cell.count] = f"cell [{cell.count}]{RUN_AGAIN}"
        elif newest.source == cell.source:
            found[cell.count] = f"cell [{newest.count}]"
        else:
            found[cell.count] = f"cell [{cell.count}], edited since"
    return found


def statements_of(cell: ExecutedCell, label: str, files: Mapping[str, str]) -> list[Statement]:
    """Return the statements of an executed cell in order, including magics."""
    clean = clean_cell(cell.source)
    if clean.kind == "broken" and not cell.raised:
        clean = replace(clean, kind="magic")  # it ran, so it was IPython syntax: `pip install torch`, `ls`
    if clean.kind in {"magic", "job", "broken"}:
        lines = tuple(Line(text, n) for n, text in enumerate(lines_of(cell.source), 1) if text.strip())
        if not lines or clean.kind == "broken":
            return []  # a syntax error: nothing ran
        return [Statement(cell=cell.count, label=label, lines=lines, node=None, kind=clean.kind)]
    found = _split(clean, cell.count, label)
    found += [Statement(cell=cell.count, label=label, lines=(m,), node=None, kind="magic") for m in clean.magics]
    found.sort(key=lambda s: s.line)
    found = [piece for s in found for piece in _run_files(s, files)]
    if cell.interrupted and not cell.raised:
        found = [replace(s, is_interrupted=True) for s in found]
    if cell.has_value is False:
        found = [replace(s, is_last=False) if s.is_last else s for s in found]
    if cell.raised:
        found = [_in_raised_cell(s, cell.raised_line, cell.raised_in) for s in found]
        if sum(s.ran == "partly" for s in found) > 1:  # on one line: `x = 2; check(x)`
            found = [replace(s, ran="unknown") if s.ran == "partly" else s for s in found]
    if clean.binds:
        lines = (Line(f"%%capture {clean.binds[0]}", 1),)
        node = ast.parse(f"{clean.binds[0]} = None").body[0]
        found.append(
            Statement(cell=cell.count, label=label, lines=lines, node=node, foreign="the output captured by %%capture")
        )
    return found


def training_statements(cell: TrainingCell, label: str) -> tuple[list[Statement], Cleaned]:
    """Return the statements of the training cell; a syntax error is in `error` of the second value."""
    clean = clean_cell(cell.source, is_job=True)
    shift = cell.first_line - 1
    clean = replace(
        clean,
        lines=tuple(n + shift for n in clean.lines),
        magics=tuple(Line(m.text, m.line + shift) for m in clean.magics),
        refused=tuple(Line(m.text, m.line + shift) for m in clean.refused),
        error_line=clean.error_line + shift,
    )
    if clean.kind != "python":
        return [], clean
    return _split(clean, cell.count, label), clean


@lru_cache(maxsize=4096)  # IPython's transformer takes most of a capture's time, and a notebook is captured repeatedly
def clean_cell(raw: str, *, is_job: bool = False) -> Cleaned:
    """Convert a cell to plain Python, with the same line numbers if possible. `is_job`: the job runs its commands."""
    source, start, binds, is_known = raw, 0, [], True
    while (first := source.lstrip()).startswith("%%"):
        start += source[: len(source) - len(first)].count("\n") + 1
        head, _, source = first.partition("\n")
        name, _, args = head[2:].partition(" ")
        if name == JOB_MAGIC:
            return Cleaned("", (), kind="job")
        if name in FOREIGN or not name.isidentifier() or not source.strip():
            return Cleaned("", (), kind="magic")
        is_known = is_known and name in WRAPPERS
        if name == "capture":
            binds += [word for word in args.split() if word.isidentifier() and not keyword.iskeyword(word)]
    lines = tuple(range(start + 1, start + 1 + len(lines_of(source))))
    if _parses(source):
        if "get_ipython" not in source:
            return Cleaned(source, lines, binds=tuple(binds))
        clean = source  # a script exported from a notebook calls magics by name
    else:
        simple = _simple_magics(source)
        clean, lines = (simple, lines) if simple is not None else _transform(source, lines)
    try:
        tree = parse(clean)
    except UNREADABLE as error:
        if not is_known:
            return Cleaned("", (), kind="magic")
        at = getattr(error, "lineno", None) or 1
        line = lines[min(at, len(lines)) - 1] if lines else 1
        return Cleaned("", (), kind="broken", error=str(getattr(error, "msg", error)), error_line=line)
    return replace(_without_magics(clean, tree, lines, lines_of(raw), is_job=is_job), binds=tuple(binds))


@lru_cache(maxsize=2)  # called to test the syntax, and then for the statements
def parse(source: str) -> ast.Module:
    """Parse a program. Raises one of `UNREADABLE`. Warnings are suppressed: the kernel has shown them already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _parses(source: str) -> bool:
    try:
        parse(source)
    except UNREADABLE:
        return False
    return True


def _simple_magics(source: str) -> str | None:
    """Translate `%name args` and `!command` on separate lines as IPython does; None if that requires IPython.

    Importing IPython takes longer than the rest of a capture. Each such line becomes a unique name; only if Python
    then finds each of these names alone in a statement, no line was part of a string or of an expression.
    """
    text = lines_of(source)
    calls: dict[str, tuple[int, str]] = {}
    for at, line in enumerate(text):
        if (found := SIMPLE_MAGIC.match(line)) is None:
            continue
        command = found["command"]
        if command:
            call = f"get_ipython().system({command!r})"
        else:
            call = f"get_ipython().run_line_magic({found['name']!r}, {(found['args'] or '').strip()!r})"
        name = f"_a_magic_of_line_{at}_"
        calls[name] = (at, found["indent"] + call)
        text[at] = found["indent"] + name
    if not calls:
        return None
    try:
        tree = parse("\n".join(text))
    except UNREADABLE:
        return None
    alone = {n.value.id for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Name)}
    if not alone.issuperset(calls):
        return None
    for at, call in calls.values():
        text[at] = call
    return "\n".join(text) + "\n"


def _transform(source: str, lines: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    from IPython.core.inputtransformer2 import TransformerManager

    before = lines_of(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about line ends, which the kernel has shown already
            clean = TransformerManager().transform_cell(source)
    except (*UNREADABLE, IndexError, tokenize.TokenError):
        return source, lines  # unchanged: the caller reports the syntax error
    after = lines_of(clean)
    blank = next((i for i, text in enumerate(before) if text.strip()), 0)
    if len(after) == len(before) - blank:
        return clean, lines[blank:]
    # a magic of several lines became one line: match the unchanged lines
    found: list[int] = []
    last = lines[0] if lines else 1
    same = {}
    for block in difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        same.update({block.b + i: block.a + i for i in range(block.size)})
    for i in range(len(after)):
        last = lines[same[i]] if i in same else min(last + 1 if found else last, lines[-1])
        found.append(last)
    return clean, tuple(found)


def _without_magics(clean: str, tree: ast.Module, lines: tuple[int, ...], raw: list[str], *, is_job: bool) -> Cleaned:
    """Replace commands that a job runs by Python; remove the others and keep their text."""
    made = translated("\n".join(lines_of(clean)), tree, is_job=is_job)
    if not _parses(made.text):  # a magic after a line that ends with a backslash
        return Cleaned("", (), kind="broken", error="a magic cannot follow a line that ends with a backslash")
    left, refused = (
        tuple(Line(raw[lines[at - 1] - 1].strip() if lines[at - 1] <= len(raw) else "", lines[at - 1]) for at in found)
        for found in (made.left, made.refused)
    )
    return Cleaned(made.text, lines, left, refused=refused)


def _split(clean: Cleaned, count: int, label: str) -> list[Statement]:
    """Return one record per top-level statement, with the comments directly above it."""
    text = lines_of(clean.source)
    nodes = parse(clean.source).body
    found = []
    has_magics = "get_ipython" in clean.source
    previous_end = 0
    for position, node in enumerate(nodes):
        start, end = _span(node)
        alone_before = start > previous_end
        next_start = _span(nodes[position + 1])[0] if position + 1 < len(nodes) else len(text) + 1
        if alone_before and next_start > end:
            first = start
            while first - 1 > previous_end and text[first - 2].startswith("#"):
                first -= 1
            lines = tuple(Line(text[n - 1], clean.lines[n - 1]) for n in range(first, end + 1))
        else:  # `a = 1; b = 2`
            segment = ast.get_source_segment(clean.source, node) or ast.unparse(node)
            lines = tuple(Line(part, clean.lines[start - 1 + i]) for i, part in enumerate(lines_of(segment)))
        previous_end = end
        foreign = "a magic's result" if has_magics and _has_magic(node) else ""
        is_last = position == len(nodes) - 1
        found.append(Statement(cell=count, label=label, lines=lines, node=node, foreign=foreign, is_last=is_last))
    return found


def _span(node: ast.stmt) -> tuple[int, int]:
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(d.lineno for d in decorators)])
    return start, node.end_lineno or node.lineno


def _has_magic(node: ast.AST) -> bool:
    return any(is_magic_call(n) for n in ast.walk(node))


def _run_arguments(args: str) -> list[str]:
    try:
        words = shlex.split(args)
    except ValueError:
        return []
    at = next((n for n, word in enumerate(words) if not word.startswith("-")), len(words))
    return [] if {"-m", "-t", "-p", "-d"} & set(words[:at]) else words[at:]


def _run_target(args: str) -> str | None:
    """Return the file of `%run -i train.py --epochs 3`; None for modules, which are not given by a path."""
    words = _run_arguments(args)
    if not words:
        return None
    return words[0] if words[0].endswith((".py", ".ipynb")) else f"{words[0]}.py"


def _run_files(statement: Statement, files: Mapping[str, str]) -> list[Statement]:
    if statement.kind == "magic" and PYLAB.match(statement.source):
        clean = Cleaned(PYLAB_TEXT, (statement.line,) * PYLAB_TEXT.count("\n"))
        return _split(clean, statement.cell, statement.label)
    found = RUN.match(statement.source) if statement.kind == "magic" else None
    name = _run_target(found["args"]) if found else None
    if found is None or name is None or name not in files or statement.label.count(", run by ") >= NESTED_RUNS_MAX:
        return [statement]
    if name.endswith(".ipynb"):
        return _run_notebook(statement, name, files)
    text = files[name]
    if not _parses(text):
        return [statement]
    clean = Cleaned(text, tuple(range(1, len(lines_of(text)) + 1)))
    given = []
    names = _identifiers(parse(text))
    if names & ARGUMENTS:
        given += ["import sys", f"sys.argv = {[name, *_run_arguments(found['args'])[1:]]!r}"]
    if "__file__" in names:
        given.append(f"__file__ = {name!r}")
    head = [replace(statement, lines=(Line(t, statement.line),), node=parse(t).body[0], kind="python") for t in given]
    return head + _split(clean, statement.cell, f"{name}, run by {statement.label}")


def _identifiers(tree: ast.AST) -> frozenset[str]:
    """Return variables, attributes and imported modules."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                source = node.module if isinstance(node, ast.ImportFrom) else None
                found.update((source or "").split("."))
                found.update(part for alias in aliases for part in alias.name.split("."))
            case _:
                continue
    return frozenset(found)


def _run_notebook(statement: Statement, name: str, files: Mapping[str, str]) -> list[Statement]:
    """Return the statements of the code cells of a notebook that was run inside this one."""
    try:
        cells = json.loads(files[name])["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        return [statement]
    found = []
    for number, source in enumerate(sources, 1):
        label = f"{name} [{number}], run by {statement.label}"
        found += statements_of(ExecutedCell(count=statement.cell, source=source), label, files)
    return found


def _in_raised_cell(statement: Statement, raised_line: int | None, raised_in: str) -> Statement:
    if raised_line is None:
        return replace(statement, ran="unknown")
    if statement.lines[-1].line < raised_line:
        return statement
    if statement.line > raised_line:
        return replace(statement, ran="no")
    part = part_that_ran(statement.node, raised_in) if raised_in else None
    return replace(statement, ran="partly", ran_node=part, raised_in=raised_in if part is not None else "")


def is_magic_word(source: str) -> bool:
    """Return whether a line is an IPython command without its sign: `pip install torch`, `ls data`."""
    lines = [line for line in lines_of(source) if line.strip()]
    first = lines[0].split()[0] if len(lines) == 1 else ""
    return first.isidentifier() and not keyword.iskeyword(first) and first not in {"print", "exec"}
