"""Figures and the lines of the printed table. Nothing here measures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Figure", "Line", "brief", "figure", "not_measured", "ratio", "render"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Median and range of several runs."""

    median: float
    least: float
    most: float
    runs: int
    unit: str

    def __str__(self) -> str:
        if self.runs == 1:
            return f"{short(self.median)} {self.unit}"
        return f"{short(self.median)} {self.unit} [{short(self.least)}–{short(self.most)}, {self.runs}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table. `missing` says why there is no figure."""

    what: str
    bar: str
    measured: Figure | None = None
    beside: str = ""
    """Who did the same in the same run."""
    beside_figure: Figure | None = None
    times: str = ""
    missing: str = ""


def figure(values: Sequence[float], unit: str) -> Figure:
    """Return the figure of some runs."""
    return Figure(statistics.median(values), min(values), max(values), len(values), unit)


def not_measured(what: str, bar: str, why: str) -> Line:
    """Return a line that says why it has no figure."""
    return Line(what=what, bar=bar, missing=" ".join(why.split())[:300] or "no reason was given")


def ratio(ours: Figure, theirs: Figure) -> str:
    """Ours as a multiple of theirs, or as a part of it where it is smaller."""
    if ours.median <= 0 or theirs.median <= 0:
        return ""
    times = ours.median / theirs.median
    return f"{times:.2f} ×" if times >= 0.1 else f"1/{1 / times:.0f}"


def short(value: float) -> str:
    """Three digits are what a noisy machine can tell."""
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def render(lines: Sequence[Line]) -> str:
    """Format the table as text, columns aligned; a missing figure has its reason below the line's name."""
    head = ("what", "measured", "bar", "beside it", "ratio")
    rows = [head, *(_cells(line) for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    out: list[str] = []
    for i, row in enumerate(rows):
        out.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if i == 0:
            out.append("  ".join("-" * width for width in widths))
        elif missing := lines[i - 1].missing:
            out.append(f"    not measured: {missing}")
    return "\n".join(out)


def brief(line: Line) -> str:
    """Format the line by itself."""
    return "; ".join(cell for cell in (*_cells(line), line.missing) if cell)


def _cells(line: Line) -> tuple[str, str, str, str, str]:
    beside = f"{line.beside} {line.beside_figure or ''}".strip()
    return line.what, str(line.measured or "–"), line.bar, beside, line.times
