"""Working directories of cells: `%cd` and `os.chdir` in a program that starts in the kernel's last directory. Pure.

A job starts in the kernel's directory at submission. If earlier cells ran elsewhere, the program first changes to their
directory and then repeats each change, so that every relative path means the same as in its cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jupyter_dlaas.analysis.cells import Line, Statement, parse
from jupyter_dlaas.analysis.effects import changes_directory
from jupyter_dlaas.analysis.model import ExecutedCell, KernelFacts
from jupyter_dlaas.analysis.syntax.ipython_magics import directory_named

__all__ = ["with_directories"]

MAGIC = re.compile(r"^\s*%(?P<verb>cd|pushd|popd)\b(?P<args>.*)$")


def with_directories(
    cells: Sequence[ExecutedCell], statements: Sequence[list[Statement]], facts: KernelFacts | None, label: str
) -> list[Statement]:
    """Return the statements of all cells in order, with changes of directory where needed.

    `label`: the training cell's.
    """
    starts = _starts(cells, statements, facts)
    now = facts.directory if facts is not None else None  # the job's directory
    found: list[Statement] = []
    for position, (cell, own) in enumerate(zip(cells, statements, strict=True)):
        start, after = starts[position : position + 2]
        if start is not None and now is not None and start != now:
            found += _changes_to(start, cell.count, f"cell [{cell.count}]", is_first=not found)
        magics = [n for n, s in enumerate(own) if s.node is None and MAGIC.match(s.source)]
        for n, statement in enumerate(own):
            if n not in magics:
                found.append(statement)
                continue
            where = _argument(statement.source)
            if n == magics[-1] and after is not None:
                where = repr(after) if start != after or len(magics) > 1 else None
            found.append(_as_call(statement, where) if where else statement)
        now = after if after is not None else now
    if facts is not None and facts.directory is not None and now != facts.directory:
        found += _changes_to(facts.directory, cells[-1].count if cells else 0, label, is_first=False)
    return found


def _starts(
    cells: Sequence[ExecutedCell], statements: Sequence[list[Statement]], facts: KernelFacts | None
) -> list[str | None]:
    """Return the directory in which each cell began, and the last one ended; None if unknown."""
    if facts is None or facts.directory is None:
        return [None] * (len(cells) + 1)
    found: list[str | None] = [cell.directory for cell in cells]
    found.append(facts.directory)
    known = next(directory for directory in found if directory is not None)
    early = found.index(known)
    if early and any(_may_change_directory(one) for own in statements[:early] for one in own):
        found[0] = facts.started_in
    else:
        found[:early] = [known] * early
    return found


def _may_change_directory(statement: Statement) -> bool:
    """Return whether a statement may change the directory."""
    if statement.node is None:
        return MAGIC.match(statement.source) is not None
    return "chdir" in statement.source and changes_directory(statement.node)


def _argument(text: str) -> str | None:
    """Return the directory that a magic names, as Python; None if only the kernel knows: `%cd -`, `%popd`."""
    match = MAGIC.match(text)
    return directory_named(match["verb"], match["args"]) if match is not None else None


def _as_call(statement: Statement, where: str) -> Statement:
    text = f'__import__("os").chdir({where})  # {statement.source.strip()}'
    node = parse(text).body[0]
    return replace(statement, lines=(Line(text, statement.line),), node=node, kind="python")


def _changes_to(directory: str, count: int, label: str, *, is_first: bool) -> list[Statement]:
    texts = [f'__import__("os").chdir({directory!r})  # directory of the kernel']
    if is_first:  # modules were imported from there
        texts.append(f'__import__("sys").path.append({directory!r})')
    return [
        Statement(cell=count, label=label, lines=(Line(text, 1),), node=parse(text).body[0], kind="moved")
        for text in texts
    ]
