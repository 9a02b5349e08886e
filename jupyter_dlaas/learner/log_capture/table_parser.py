"""A parser for tables printed row by row: a header of names, then rows of numbers. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.learner.log_capture.vocabulary import COUNTERS, EPOCHS, NEVER, is_metric, name_of, words_of

__all__ = ["Columns", "Row", "header_of"]

_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?%?|[-+]?(?:nan|inf)", re.IGNORECASE)
_OTHER: Final = re.compile(r"[-+]?[\d.:]+\s?(?:s|ms|m|h)?|-+|None|\+|\*|✓", re.IGNORECASE)
_RULE: Final = re.compile(r"[\s|+=─━┼│:-]+")


@dataclass(frozen=True, slots=True)
class Row:
    values: dict[str, float]
    epoch: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class Columns:
    """The header of a table: its names and its separator."""

    names: tuple[str, ...]
    parted_by: str

    def row(self, text: str) -> Row | None:
        """Return the numbers of a row; None if this is not a row of the table."""
        if _RULE.fullmatch(text):
            return None
        cells = _cells(text, self.parted_by)
        if len(cells) != len(self.names):
            return None
        values: dict[str, float] = {}
        epoch = step = None
        for name, cell in zip(self.names, cells, strict=True):
            is_number = _NUMBER.fullmatch(cell) is not None
            if not is_number and not _OTHER.fullmatch(cell):
                return None
            words = words_of(name)
            if words and words[-1] in EPOCHS | COUNTERS:
                if not cell.isdigit():
                    return None
                epoch, step = (int(cell), step) if words[-1] in EPOCHS else (epoch, int(cell))
            elif is_number and not any(word in NEVER for word in words):
                scale = 100 if cell.endswith("%") else 1
                values[name_of(words)] = float(cell.removesuffix("%")) / scale
        return Row(values, epoch, step)


def header_of(text: str) -> Columns | None:
    """Return the columns of a line that is the header of a table with metrics; otherwise None."""
    for parted_by in ("|", "\t", ",", "  "):
        names = _cells(text, parted_by)
        if len(names) >= 2 and all(_is_name(name) for name in names):
            words = [words_of(name) for name in names]
            counts = any(one and one[-1] in EPOCHS | COUNTERS for one in words)
            if counts and any(is_metric(one) for one in words):
                return Columns(tuple(names), parted_by)
    return None


def _cells(text: str, parted_by: str) -> list[str]:
    if parted_by == "  ":
        return re.split(r"\s{2,}|\t", text.strip())
    if parted_by == "|" and "│" in text:
        text = text.replace("│", "|")
    return [cell.strip() for cell in text.strip().strip(parted_by if parted_by != "," else " ").split(parted_by)]


def _is_name(text: str) -> bool:
    return 0 < len(text) <= 40 and ":" not in text and "=" not in text and text[0].isalpha() and bool(words_of(text))
