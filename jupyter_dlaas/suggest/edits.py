"""Edits of one cell: replaced parts of lines and new lines; everything else stays unchanged. Pure."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field

from jupyter_dlaas.analysis.call_graph import Sheet
from jupyter_dlaas.analysis.cells import lines_of
from jupyter_dlaas.suggest.training_loop import NoLoop

__all__ = ["Edits", "Rewritten", "end_of", "start_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """One cell before and after, as the page shows it: with the line of `%%train` if known."""

    label: str
    count: int
    first_line: int
    before: str
    after: str

    def diff(self, context: int) -> str:
        """Return a unified diff with the line numbers of the page."""
        found = list(
            difflib.unified_diff(
                lines_of(self.before),
                lines_of(self.after),
                self.label,
                f"{self.label}, elastic",
                lineterm="",
                n=context,
            )
        )
        return "\n".join(_shifted(line, self.first_line - 1) for line in found)

    @property
    def added(self) -> tuple[str, ...]:
        """Return the new or changed lines with their indentation."""
        rows = difflib.ndiff(lines_of(self.before), lines_of(self.after))
        return tuple(row[2:] for row in rows if row.startswith("+ "))


@dataclass(slots=True)
class Edits:
    """Edits of one cell: parts of lines by their position in the cleaned text, and new lines before a line."""

    sheet: Sheet
    pieces: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)

    def replace(self, node: ast.AST, text: str) -> None:
        """Replace the source of `node` by `text`."""
        start, end = start_of(self.sheet, node), end_of(self.sheet, node)
        self.pieces.append((*start, *end, text))

    def put(self, line: int, column: int, text: str) -> None:
        self.pieces.append((line, column, line, column, text))

    def insert(self, before: int, text: str) -> None:
        self.lines.append((before, text))

    def rewritten(self) -> Rewritten:
        """Apply the edits. Raises NoLoop if a changed line is not the page's own, such as behind a magic."""
        sheet = self.sheet
        raw, clean = lines_of(sheet.raw), lines_of(sheet.clean.source)
        for line, _, end, _, _ in self.pieces:
            for one in range(line, end + 1):
                if raw[sheet.clean.lines[one - 1] - 1] != clean[one - 1]:
                    raise NoLoop(f"{sheet.label}: the loop is part of a magic. Remove the magic, then retry.")
        page = {n: sheet.clean.lines[n - 1] - 1 for n in range(1, len(clean) + 1)}
        for line, column, end, end_column, text in sorted(self.pieces, reverse=True):
            first, last = page[line], page[end]
            whole = raw[first][:column] + text + raw[last][end_column:]
            raw[first : last + 1] = [whole] + [""] * (last - first)
            for blank in range(last, first, -1):  # an expression of several lines became one line
                del raw[blank]
                page = {n: at - 1 if at >= blank else at for n, at in page.items()}
        added: dict[int, list[str]] = {}
        for before, text in self.lines:
            added.setdefault(page.get(before, len(raw)), []).append(text)
        for at in sorted(added, reverse=True):
            raw[at:at] = added[at]
        after = "\n".join(raw) + ("\n" if sheet.raw.endswith("\n") else "")
        return Rewritten(
            label=sheet.label,
            count=sheet.count,
            first_line=1 if sheet.above else sheet.first_line,
            before=sheet.above + sheet.raw,
            after=sheet.above + after,
        )


def start_of(sheet: Sheet, node: ast.AST) -> tuple[int, int]:
    line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
    return line, _characters(sheet, line, column)


def end_of(sheet: Sheet, node: ast.AST) -> tuple[int, int]:
    line, column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
    return line, _characters(sheet, line, column)


def _characters(sheet: Sheet, line: int, column: int) -> int:
    """Convert a column of `ast`, which counts bytes, to characters."""
    text = lines_of(sheet.clean.source)[line - 1]
    return len(text.encode()[:column].decode())


def _shifted(row: str, by: int) -> str:
    """Shift a hunk's head to the line numbers of the page if there is a line of %%train above."""
    head = re.match(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@", row)
    if head is None or not by:
        return row
    return f"@@ -{int(head[1]) + by}{head[2] or ''} +{int(head[3]) + by}{head[4] or ''} @@"
