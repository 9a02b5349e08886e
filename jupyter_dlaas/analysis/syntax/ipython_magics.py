"""Translation of `!` lines and magics in IPython's Python form: run in the job, omitted or refused. Pure.

A job runs shell commands through `dlaas.shell` and `dlaas.shell_lines`: those of the training cell, and those of
functions that it may call. Other commands of earlier cells have run already; their results come from the kernel.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from string import Formatter
from typing import Final

__all__ = ["Translated", "directory_named", "is_magic_call", "names_expanded", "translated"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELL: Final = "dlaas.shell"
LINES: Final = "dlaas.shell_lines"
METHODS: Final = {"system": SHELL, "system_raw": SHELL, "system_piped": SHELL, "getoutput": LINES}
"""Methods of IPython's shell that run a command, and their counterparts in a job."""
ALIASES: Final = _words("cat cp ldir less lf lk ll ls lx man mkdir more mv rm rmdir")
SHELL_MAGICS: Final = frozenset({"sx", "system"})
WRAPPERS: Final = frozenset({"time", "prun"})
DIRECTORY_VERBS: Final = frozenset({"cd", "pushd", "popd"})
SHOWING: Final = _words(
    """aimport alias alias_magic autoawait autocall autoindent automagic autoreload autosave clear colors config
    connect_info debug dhist dirs doctest_mode hist history load_ext logoff logon logstart logstate logstop lprun
    lsmagic macro magic matplotlib memit mprun notebook page pdb pdef pdoc pfile pinfo pinfo2 pprint precision psearch
    psource pwd pycat qtconsole quickref rehashx reload_ext tb tensorboard timeit unalias unload_ext watermark who
    who_ls whos xmode"""
)
"""Line magics for setup or display, which a job does not need."""
FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_DOLLARS: Final = re.compile(r"\$(\$?[^\W\d][\w.]*)(?=(?:[^']*'[^']*')*[^']*$)")


@dataclass(slots=True)
class Translated:
    """Cell's text with Python instead of its commands, on the same lines."""

    text: str
    left: list[int] = field(default_factory=list)  # lines of omitted commands
    refused: list[int] = field(default_factory=list)  # lines of commands that a job cannot run


BINDS_NAMES: Final = frozenset({"push", "ex", "run_cell"})
"""Methods of IPython's shell that bind variables of the notebook."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """Replacement of a part of the cell; columns count bytes, as in Python."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def translated(text: str, tree: ast.Module, *, is_job: bool) -> Translated:
    """Replace `get_ipython().system(…)` and similar calls by Python. `is_job`: all of this text runs in the job."""
    made = Translated(text)
    edits: list[_Edit] = []
    todo: list[tuple[ast.AST, bool]] = [(tree, is_job)]
    while todo:
        node, runs = todo.pop()
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method)) as call) if is_magic_call(call):
                edits += _statement(call, method, made, runs=runs, is_job=is_job)
                continue
            case ast.Call(func=ast.Attribute(attr=method)) if is_magic_call(node):
                edits += _value(node, method, made, runs=runs, is_job=is_job)
            case _:
                pass
        runs = runs or isinstance(node, FUNCTIONS)
        todo += [(child, runs) for child in ast.iter_child_nodes(node)]
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        _apply(lines, edit)
    made.text = "\n".join(lines)
    made.left.sort()
    made.refused.sort()
    return made


def is_magic_call(node: ast.AST) -> bool:
    """Return whether a node calls a method of IPython's shell: `get_ipython().run_line_magic('time', 'f()')`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")))):
            return True
        case _:
            return False


def _statement(node: ast.Call, method: str, made: Translated, *, runs: bool, is_job: bool) -> Iterator[_Edit]:
    """Yield the edit of a command on its own line."""
    args = _texts(node)
    inner = args[1].removeprefix("--no-raise-error").strip() if len(args) > 1 else ""
    if method == "run_line_magic" and args and args[0] in WRAPPERS and inner and _parses(inner):
        yield _whole(node, inner)
    elif method in METHODS and runs:
        yield _function(node, METHODS[method])
    elif method == "run_line_magic" and runs and len(args) == 2 and (python := _as_python(*args)):
        yield _whole(node, python)
    elif method in BINDS_NAMES and not is_job:
        return  # the data flow finds the names, which come from the kernel
    else:
        if is_job and not (method == "run_line_magic" and args and _only_shows(args)):
            made.refused.append(node.lineno)
        made.left.append(node.lineno)
        yield _whole(node, "pass")


def _value(node: ast.Call, method: str, made: Translated, *, runs: bool, is_job: bool) -> Iterator[_Edit]:
    """Yield the edit of a command whose value is used, as `files = !ls`; for earlier cells the kernel has the value."""
    args = _texts(node)
    if method in METHODS and runs:
        yield _function(node, METHODS[method])
    elif method == "run_line_magic" and runs and len(args) == 2 and args[0] in SHELL_MAGICS:
        yield _whole(node, f"{LINES}({args[1]!r})")
    elif is_job and method in {"run_line_magic", "run_cell_magic", "magic"}:
        made.refused.append(node.lineno)


def _as_python(name: str, args: str) -> str:
    """Translate a line magic that a job can run to Python; "" for others."""
    if name in SHELL_MAGICS:
        return f"{SHELL}({args!r})"
    if name in ALIASES:
        return f"{SHELL}({f'{name} {args}'.strip()!r})"
    if name in DIRECTORY_VERBS:
        where = directory_named(name, args)
        return f'__import__("os").chdir({where})' if where else ""
    if name in {"env", "set_env"} and (found := re.fullmatch(r"(\w+)(?:\s*=\s*|\s+)([^{}$]*)", args.strip())):
        return f'__import__("os").environ[{found[1]!r}] = {found[2]!r}'
    return ""


def _only_shows(args: list[str]) -> bool:
    if args[0] == "env":
        return not re.search(r"[\s=]", " ".join(args[1:]).strip())
    return args[0] in SHOWING


def directory_named(verb: str, args: str) -> str | None:
    """Return the directory that `%cd` names, as Python; None if only the kernel knows: `%cd -`, `%popd`."""
    if verb == "popd":
        return None
    try:
        words = [word for word in shlex.split(args) if word != "-q"]
    except ValueError:
        return None
    if len(words) > 1 or (words and (words[0].startswith("-") or "$" in words[0] or "{" in words[0])):
        return None
    name = words[0] if words else "~"
    return f'__import__("os").path.expanduser({name!r})' if name.startswith("~") else repr(name)


def names_expanded(node: ast.AST) -> frozenset[str]:
    """Return the variables in a command's text: `{path}` and `$path`, which may be shell variables instead."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="dlaas"), attr="shell" | "shell_lines"),
            args=[ast.Constant(value=str(command)), *_],
        ):
            return frozenset(_names_in(command))
        case _:
            return frozenset()


def _names_in(command: str) -> Iterator[str]:
    try:
        parts = list(Formatter().parse(command))
    except ValueError:
        return  # shell braces: IPython leaves such a command unchanged
    for literal, expression, spec, _ in parts:
        for found in _DOLLARS.finditer(literal):
            if not found[1].startswith("$"):
                yield found[1].partition(".")[0]
        if expression:
            try:
                tree = ast.parse(f"{expression}:{spec}" if spec else expression, mode="eval")
            except (SyntaxError, ValueError):
                continue
            yield from (part.id for part in ast.walk(tree) if isinstance(part, ast.Name))


def _texts(call: ast.Call) -> list[str]:
    return [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _whole(node: ast.expr, text: str) -> _Edit:
    return _Edit((node.lineno - 1, node.col_offset), _end(node), text)


def _function(call: ast.Call, text: str) -> _Edit:
    return _Edit((call.lineno - 1, call.col_offset), _end(call.func), text)


def _end(node: ast.expr) -> tuple[int, int]:
    return (node.end_lineno or node.lineno) - 1, node.end_col_offset or 0


def _apply(lines: list[str], edit: _Edit) -> None:
    (first, start), (last, end) = edit.start, edit.end
    tail = lines[last].encode()[end:].decode()
    for at in range(first + 1, last + 1):
        lines[at] = ""
    head = lines[first].encode()[:start].decode()
    text = "" if edit.text == "pass" and not head and not tail.strip() else edit.text
    lines[first] = head + text + tail
