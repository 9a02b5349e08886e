"""The readable train.py and its line map. Pure."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jupyter_dlaas.analysis.cells import Cleaned, Line, lines_of
from jupyter_dlaas.analysis.dataflow import Step
from jupyter_dlaas.analysis.effects import walk_now
from jupyter_dlaas.analysis.model import LineRef
from jupyter_dlaas.capture.slicer import Given

HEADER = """\
# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.
"""
ENTRY = 'if __name__ == "__main__":'
INDENT = "    "
MULTILINE = {"STRING"}
OPENS, CLOSES = {"FSTRING_START", "TSTRING_START"}, {"FSTRING_END", "TSTRING_END"}  # since Python 3.12, 3.14


@dataclass(slots=True)
class Page:
    """A program under construction: text, and where each line comes from."""

    text: list[str] = field(default_factory=list)
    refs: list[LineRef] = field(default_factory=list)

    def add(self, text: str, cell: str = "", cell_line: int = 0) -> None:
        self.text.append(text)
        if cell:
            self.refs.append(LineRef(len(self.text), cell, cell_line))

    def blank(self) -> None:
        if self.text and self.text[-1]:
            self.text.append("")


def render(
    kept: Sequence[Step],
    given: Sequence[tuple[int, Given]],
    goal: Cleaned,
    goal_steps: Sequence[Step],
    label: str,
    *,
    needs_dlaas: bool,
) -> tuple[str, tuple[LineRef, ...]]:
    """train.py and its line map.

    `kept` are the prelude's steps in order; `given` are lines with the number of kept steps that stand before each.
    """
    page = Page()
    for text in lines_of(HEADER):
        page.add(text)
    futures = [step for step in kept if step.is_future] + [step for step in goal_steps if step.is_future]
    for text in dict.fromkeys(step.statement.head for step in futures):
        first = next(step for step in futures if step.statement.head == text)
        page.add(text, first.statement.label, first.statement.line)
    if needs_dlaas:
        page.blank()
        page.add("import jupyter_dlaas as dlaas")
    marker, after_block = "", False
    for position in range(len(kept) + 1):
        for _, line in (pair for pair in given if pair[0] == position):
            page.blank()
            page.add(line.source, line.cell, line.line)
            marker = ""
        if position == len(kept) or (step := kept[position]).is_future:
            continue
        if step.statement.label != marker:
            marker, after_block = step.statement.label, False
            page.blank()
            page.add(f"# --- {marker} ---")
        is_definition = isinstance(step.statement.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if (is_definition or after_block) and not page.text[-1].startswith("# ---"):
            page.add("")
            page.add("")
        after_block = is_definition
        _statement(page, step)
    page.blank()
    page.add(f"# --- {label}, the training cell ---")
    page.add(ENTRY)
    _goal(page, goal, goal_steps, label)
    while page.text and not page.text[-1].strip():
        page.text.pop()
    return "\n".join(page.text) + "\n", tuple(page.refs)


def indented(text: str, prefix: str = INDENT) -> list[str]:
    """The lines of a program one level deeper; lines inside strings stay as they are, so that their text does."""
    lines = lines_of(text)
    if "\\\n" not in text and '"""' not in text and "'''" not in text:  # no string goes over several lines
        return [prefix + line if line.strip() else line for line in lines]
    inside: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
        kind = tokenize.tok_name[token.type]
        if kind in MULTILINE:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind in OPENS:
            opened.append(token.start[0])
        elif kind in CLOSES:
            inside.update(range(opened.pop() + 1, token.end[0] + 1))
    return [line if n in inside or not line.strip() else prefix + line for n, line in enumerate(lines, 1)]


def waits(nodes: Iterable[ast.AST]) -> bool:
    """Top-level `await`, which a notebook allows and a program does not."""
    return any(isinstance(n, ast.Await | ast.AsyncFor | ast.AsyncWith) for n in walk_now(nodes))


def _statement(page: Page, step: Step) -> None:
    statement = step.statement
    if statement.node is None or not waits([statement.node]):
        for line in statement.lines:
            page.add(line.text, statement.label, line.line)
        return
    name = f"_cell_{statement.cell}_line_{statement.line}"
    _as_coroutine(page, name, statement.label, statement.lines, [step], "")


def _as_coroutine(page: Page, name: str, label: str, lines: Sequence[Line], steps: Sequence[Step], prefix: str) -> None:
    page.add(f"{prefix}import asyncio")
    page.add(f"{prefix}async def {name}():  # the notebook's top-level await")
    bound = sorted({n for step in steps for n in step.flow.binds | step.flow.deletes})
    if bound:
        page.add(f"{prefix}{INDENT}global {', '.join(bound)}")
    texts = indented("\n".join(line.text for line in lines), prefix + INDENT)
    for text, line in zip(texts, lines, strict=True):
        page.add(text, label, line.line)
    page.add(f"{prefix}asyncio.run({name}())")


def _goal(page: Page, goal: Cleaned, steps: Sequence[Step], label: str) -> None:
    futures = {line.line for step in steps if step.is_future for line in step.statement.lines}
    texts = lines_of(goal.source)
    lines = [Line("" if n in futures else text, n) for text, n in zip(texts, goal.lines, strict=False)]
    while lines and not lines[0].text.strip():
        lines = lines[1:]
    while lines and not lines[-1].text.strip():
        lines = lines[:-1]
    others = [step for step in steps if not step.is_future]
    if waits([step.statement.node for step in others if step.statement.node is not None]):
        _as_coroutine(page, "_training_cell", label, lines, others, INDENT)
        return
    for text, line in zip(indented("\n".join(line.text for line in lines)), lines, strict=True):
        page.add(text, label, line.line)
    if not others:
        page.add(f"{INDENT}pass")
