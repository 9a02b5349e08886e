"""Parsing of journal bytes into facts, whole lines only."""

from __future__ import annotations

from typing import Final

from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.journal import Fact, LineDamaged, fact_from_line, find_fact

__all__ = ["damage", "facts_in"]

_TEXT_MAX: Final = 200


def facts_in(data: bytes, offset: int) -> tuple[list[Fact], int]:
    """Return the facts in `data` (from byte `offset` of a journal on), and the offset after the last whole line.

    A torn tail (no newline yet) is left for the next time. An unreadable line is replaced by a fact of
    the kind `damaged`: one bad line must not hide all later ones.
    """
    found: list[Fact] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        line = data[at:end]
        try:
            found.append(fact_from_line(line))
        except (ValueError, RecursionError, Invalid) as error:
            if line.strip():
                found.append(damage(f"byte {offset + at}: {error}"))
            if (rest := find_fact(line)) is not None:
                found.append(rest)
        at = end + 1
    return found, offset + at


def damage(why: str) -> LineDamaged:
    """Return the fact that marks lost lines of a journal. It has no number among the facts."""
    return LineDamaged(why=why[:_TEXT_MAX])
