"""Presentation of a suggestion on the card, in a cell's output and in a terminal. Pure."""

from __future__ import annotations

import ast
import html
import textwrap
from collections.abc import Iterator
from typing import Final

from jupyter_dlaas.analysis.cells import clean_cell
from jupyter_dlaas.suggest.edits import Rewritten
from jupyter_dlaas.suggest.rewrite import Suggestion
from jupyter_dlaas.wire.protocol import Note

__all__ = [
    "is_for_page",
    "notes_of",
    "shares_work",
    "suggestion_html",
    "suggestion_text",
    "trains_alone",
    "uses_lightning",
]

_GANG: Final = frozenset(
    {"distributed", "DistributedDataParallel", "RANK", "WORLD_SIZE", "Accelerator", "Trainer", "Fabric"}
)
_LIGHTNING: Final = frozenset({"lightning", "pytorch_lightning"})
_STRATEGIES: Final = ("ddp", "fsdp", "deepspeed", "modelparallel")
"""Parts of the names of strategies with which Lightning trains one model; without one each learner trains its own."""
_NOTE_MAX: Final = 4000
_WHOLE: Final = 10**6
_NEW: Final = "background-color: rgba(46, 160, 67, 0.25); text-decoration: none"
_OLD: Final = "background-color: rgba(248, 81, 73, 0.25); text-decoration: none"


def notes_of(suggestion: Suggestion) -> Iterator[Note]:
    """Yield notes for the card: the new lines, their limits, and each cell's diff to show on demand.

    A `suggest` note holds a whole cell, from which the page builds the new cell; `suggest_part` holds only the changes.
    """
    if not suggestion.cells:
        return
    lines = [textwrap.indent(textwrap.dedent("\n".join(cell.added)), "    ") for cell in suggestion.cells]
    text = "a plain loop: with these lines it can grow, shrink and resume at the step:"
    yield Note(code="elastic_hint", text="\n".join([text, *lines])[:_NOTE_MAX])
    for hint in suggestion.hints:
        yield Note(code="suggest_hint", text=hint[:_NOTE_MAX])
    for cell in suggestion.cells:
        whole, part = cell.diff(_WHOLE), cell.diff(2)
        if len(whole) <= _NOTE_MAX:
            yield Note(code="suggest", text=whole)
        elif len(part) <= _NOTE_MAX:
            yield Note(code="suggest_part", text=part)


def is_for_page(note: Note) -> bool:
    """Return whether a note is too long for a terminal: omitted statements and diffs."""
    return note.code.startswith("left_out_") or note.code in ("suggest", "suggest_part")


def suggestion_text(suggestion: Suggestion) -> str:
    """Format the changes, or the reason why there are none."""
    if not suggestion.cells:
        return f"Nothing to suggest: {suggestion.why}"
    return "\n".join([_head(suggestion), suggestion.diff(), *suggestion.hints])


def suggestion_html(suggestion: Suggestion) -> str:
    """Format the suggestion as HTML with colours; the user's text is escaped."""
    if not suggestion.cells:
        return f"<p>{html.escape(suggestion_text(suggestion))}</p>"
    parts = [f"<p>{html.escape(_head(suggestion))}</p>", *(_cell_html(cell) for cell in suggestion.cells)]
    return "".join([*parts, *(f"<p>{html.escape(hint)}</p>" for hint in suggestion.hints)])


def _head(suggestion: Suggestion) -> str:
    labels = " and ".join(cell.label for cell in suggestion.cells)
    return f"With these lines in {labels}, the job can grow, shrink and resume at the step:"


def _cell_html(cell: Rewritten) -> str:
    rows = []
    for row in cell.diff(2).split("\n"):
        text = html.escape(row)
        if row.startswith("+") and not row.startswith("+++"):
            text = f'<ins style="{_NEW}">{text}</ins>'
        elif row.startswith("-") and not row.startswith("---"):
            text = f'<del style="{_OLD}">{text}</del>'
        rows.append(text)
    return "<pre>" + "\n".join(rows) + "</pre>"


def trains_alone(source: str) -> bool:
    """Return whether a program contains nothing that connects several learners."""
    tree = _tree(source)
    return tree is not None and not shares_work(tree)


def shares_work(tree: ast.AST) -> bool:
    """Return whether several learners of this program would train one model together."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    names |= _modules(tree)
    if names & _LIGHTNING:
        names = names - {"Trainer"} | {"distributed" for name in names if _is_strategy(name)}
    return bool(names & _GANG) or any(_is_run(node) for node in ast.walk(tree))


def uses_lightning(source: str) -> bool:
    """Return whether the program imports Lightning."""
    tree = _tree(source)
    return tree is not None and not _modules(tree).isdisjoint(_LIGHTNING)


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(clean_cell(source).source)
    except (SyntaxError, ValueError):
        return None


def _modules(tree: ast.AST) -> frozenset[str]:
    """Return the parts of the names of all modules that a program imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."))
        elif isinstance(node, ast.Import):
            found.update(part for name in node.names for part in name.name.split("."))
    return frozenset(found)


def _is_strategy(name: str) -> bool:
    said = name.lower()
    return len(said) < 60 and any(one in said for one in _STRATEGIES)


def _is_run(node: ast.AST) -> bool:
    """Return whether a node refers to `dlaas.run`; other functions such as `dlaas.pushed` do not connect learners."""
    match node:
        case ast.Attribute(value=ast.Name(id="dlaas" | "jupyter_dlaas"), attr="run"):
            return True
        case ast.ImportFrom(module=str(module), names=names) if module.startswith("jupyter_dlaas"):
            return any(name.name in {"run", "*"} for name in names)
        case ast.Import(names=names):
            return any(name.name == "jupyter_dlaas" and name.asname not in {None, "dlaas"} for name in names)
        case _:
            return False
