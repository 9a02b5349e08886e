"""Files that cells have read, and modules that they have imported: the job reads their current contents.

Paths are known from the text: a string, a variable that holds one, `os.path.join` or `Path(…) / "x"` of these.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.analysis.cells import UNREADABLE, clean_cell, parse
from jupyter_dlaas.analysis.effects import verb_of, walk_now, words
from jupyter_dlaas.analysis.model import ExecutedCell, KernelFacts, NameFact, OwnModule, Problem, TrainingCell
from jupyter_dlaas.analysis.steps import Trace
from jupyter_dlaas.capture.slicer import Slice

__all__ = ["ReadFiles", "check_files", "check_former_classes", "check_modules", "check_reloaded", "read_files"]

_READERS: Final = words(
    """read_csv read_table read_json read_excel read_parquet read_pickle read_feather read_hdf read_fwf read_text
    read_bytes read_image load loadtxt genfromtxt imread loadmat load_npz load_image memmap fromfile open
    load_svmlight_file listdir scandir walk glob iglob rglob iterdir ImageFolder DatasetFolder
    image_dataset_from_directory flow_from_directory"""
)
_HINT: Final = re.compile(r"read|load|open|glob|listdir|scandir|walk|iterdir|memmap|fromfile|Folder|directory")
_PATH_OPTIONS: Final = frozenset({"filepath_or_buffer", "file", "path", "root", "fname", "io", "directory", "pathname"})
_OF_PATHS: Final = frozenset({"read_text", "read_bytes", "open", "iterdir", "glob", "rglob"})
_PATHS: Final = frozenset({"join", "Path", "PosixPath", "str"})
_FOLDERS_MAX: Final = 200


def check_files(
    trace: Trace, found: Slice, cells: Sequence[ExecutedCell], goal: int, facts: KernelFacts | None
) -> tuple[Problem, ...]:
    """Warn of files that kept cells have read and that have changed or disappeared since."""
    if facts is None or not (facts.modified or facts.missing):
        return ()
    ended = {cell.count: cell.ended_s for cell in cells}
    functions = {
        step.statement.node.name: step.statement.node
        for step in trace.steps[:goal]
        if isinstance(step.statement.node, ast.FunctionDef)
    }
    steady = _bound_once(trace, facts.names)
    problems = []
    for index in sorted(found.kept):
        step = trace.steps[index]
        since = ended.get(step.statement.cell)
        if index >= goal or step.is_definition or step.statement.node is None or since is None:
            continue
        nodes = [step.statement.node, *(functions[name] for name in sorted(step.uses & functions.keys()))]
        paths = dict.fromkeys(path for node in nodes for path in _paths_in(node, facts.names))
        changed = [path for path in paths if facts.modified.get(path, 0.0) > since]
        names = [name for name in sorted(step.flow.binds | step.changes) if _may_go(facts.names.get(name))]
        missing_paths = [
            path for path in _paths_in(step.statement.node, steady, is_certain=True) if path in facts.missing
        ]
        missing_paths = [path for path in missing_paths if not _may_be_written(path, trace, found, index)]
        if not changed and not missing_paths:
            continue
        statement = step.statement
        line = next((x.line for x in statement.lines if not x.text.lstrip().startswith("#")), statement.line)
        text = f"{statement.label}, line {line} read `{(changed or missing_paths)[0]}`, which "
        text += (
            "has changed since; the job reads the current file."
            if changed
            else "no longer exists; the job fails there."
        )
        text += f" To send the notebook's value: --push {','.join(names)}." if names else ""
        code = "file_changed" if changed else "file_gone"
        problems.append(Problem(code, text, statement.label, line, tuple(names)))
    return tuple(problems)


def _bound_once(trace: Trace, names: Mapping[str, NameFact]) -> dict[str, NameFact]:
    """Return the variables that still have the value which every cell has read."""
    count = Counter(name for step in trace.steps for name in step.flow.binds | step.globals_bound)
    return {name: fact for name, fact in names.items() if count[name] == 1}


def _may_be_written(path: str, trace: Trace, found: Slice, before: int) -> bool:
    """Return whether an earlier statement of the job passes the path to a call that may create the file again."""
    nodes = [trace.steps[index].statement.node for index in found.kept if index < before]
    calls = [one for node in nodes if node is not None for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(
        isinstance(arg, ast.Constant) and arg.value == path
        for call in calls
        if verb_of(call.func) not in _READERS | _PATHS
        for arg in call.args
    )


def _may_go(fact: NameFact | None) -> bool:
    return fact is not None and not fact.is_callable and fact.cannot_travel is None and fact.type_name != "module"


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Files and folders that cells have read, by their paths as written in the cells."""

    modified: Mapping[str, float]
    """Modification times."""
    missing: frozenset[str]
    """Paths that no longer exist."""


def read_files(cells: Sequence[ExecutedCell], names: Mapping[str, NameFact], directory: Path) -> ReadFiles:
    """Collect the files and folders that cells have read."""
    found: dict[str, float] = {}
    missing: set[str] = set()
    for cell in cells:
        if cell.ended_s is None or not _HINT.search(cell.source):
            continue
        try:
            tree = parse(clean_cell(cell.source).source)
        except UNREADABLE:
            continue
        base = Path(cell.directory) if cell.directory is not None else directory
        for path in _paths_in(tree, names):
            at_s = _modified_s(base / path)
            if at_s is not None:
                found[path] = max(at_s, found.get(path, 0.0))
            else:
                missing.add(path)
    return ReadFiles(found, frozenset(missing - found.keys()))


def _modified_s(path: Path) -> float | None:
    """Return the modification time of a file, or for a folder or pattern the time when files were added or removed."""
    while set("*?[") & set(path.name):
        path = path.parent
    try:
        times = [path.stat().st_mtime]
        if path.is_dir():
            with os.scandir(path) as entries:
                folders = [one for one, _ in zip(entries, range(_FOLDERS_MAX), strict=False) if one.is_dir()]
            times += [folder.stat().st_mtime for folder in folders]
    except (OSError, ValueError):
        return None
    return max(times)


def _paths_in(tree: ast.AST, names: Mapping[str, NameFact], *, is_certain: bool = False) -> Iterator[str]:
    """Yield the paths that calls read; `is_certain`: only for calls that run exactly once."""
    for node in walk_now([tree]) if is_certain else ast.walk(tree):
        if is_certain and isinstance(node, ast.If | ast.Try | ast.For | ast.While | ast.IfExp | ast.BoolOp):
            return
        if not isinstance(node, ast.Call) or verb_of(node.func) not in _READERS or _writes(node):
            continue
        options = [keyword.value for keyword in node.keywords if keyword.arg in _PATH_OPTIONS]
        given = [*node.args[:1], *options]
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_PATHS:
            given.append(node.func.value)
        for one in given:
            path = _path(one, names)
            if path and "\n" not in path and "://" not in path and len(path) < 1000:
                yield path


def _writes(call: ast.Call) -> bool:
    """Return whether a call writes a file: `open(path, "w")`."""
    modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return verb_of(call.func) == "open" and any(
        isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wax")
        for mode in modes
    )


def _path(node: ast.expr, names: Mapping[str, NameFact]) -> str:
    """Return the path that an expression denotes, or "" if unknown."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            fact = names.get(name)
            return _text(fact.literal) if fact is not None and fact.literal is not None else ""
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            parts = [_path(left, names), _path(right, names)]
        case ast.Call(func=function, args=args) if args and verb_of(function) in _PATHS:
            parts = [_path(arg, names) for arg in args]
        case _:
            return ""
    return str(Path(*parts)) if all(parts) else ""


def _text(literal: str) -> str:
    """Return the text of a string or path literal: `PosixPath('data')`."""
    try:
        node = ast.parse(literal, mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(node, ast.Call) and verb_of(node.func).endswith("Path") and node.args:
        node = node.args[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def check_modules(modules: Iterable[OwnModule]) -> tuple[Problem, ...]:
    """Warn of modules of the user whose file is newer than the imported version."""
    return tuple(
        Problem(
            "module_edited",
            f"{module.path} was edited after the kernel imported it; the job uses the current file. "
            f"To use it here, too: import importlib, {module.name}; importlib.reload({module.name}).",
            names=(module.name,),
        )
        for module in modules
        if module.is_edited
    )


def check_former_classes(
    trace: Trace, found: Slice, goal: int, training: TrainingCell, facts: KernelFacts | None
) -> tuple[Problem, ...]:
    """Warn of results that cannot be stored, since the job defines their class again after it creates them."""
    problems = []
    for name in training.outputs if facts is not None else ():
        kind = facts.names[name].former_class if facts is not None and name in facts.names else ""
        made = max((i for i in found.kept if i < goal and name in trace.steps[i].flow.binds), default=goal)
        again = max((i for i in found.kept if i < goal and kind in trace.steps[i].flow.binds), default=-1)
        if kind and made < again:
            first, last = trace.steps[made].statement, trace.steps[again].statement
            text = (
                f"-o {name}: `{name}` is a `{kind}` from before {last.label}, line {last.line} defined `{kind}` again, "
                f"and cannot be returned. Run {first.label} again, or add {name}.__class__ = {kind} at the beginning "
                "of the training cell."
            )
            problems.append(Problem("class_defined_again", text, last.label, last.line, (name,)))
    return tuple(problems)


def check_reloaded(trace: Trace, found: Slice, goal: int, facts: KernelFacts | None) -> tuple[Problem, ...]:
    """Warn of functions, and objects of classes, from before a reload of their module; the job uses the new version."""
    stale = {n: fact.of_before_reload for n, fact in facts.names.items() if fact.of_before_reload} if facts else {}
    made = {name: trace.steps[i] for i in sorted(found.kept) if i < goal for name in trace.steps[i].flow.binds}
    problems = []
    for name in sorted(stale.keys() & made.keys()):
        statement = made[name].statement
        module = stale[name].rpartition(".")[0]
        text = (
            f"`{name}` dates from before `{module}` was reloaded (`{stale[name]}`); the job uses the current "
            f"module. To use it here, too, run {statement.label} again."
        )
        problems.append(Problem("module_reloaded", text, statement.label, statement.line, (name,)))
    return tuple(problems)
