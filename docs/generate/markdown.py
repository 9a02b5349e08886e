"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["code", "sentence", "table"]


def code(text: str) -> str:
    """Return text as inline code that is safe in a table's cell."""
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def sentence(text: str) -> str:
    """Return one paragraph with a capital at the start and a full stop at the end. Code at the start stays as it is."""
    text = " ".join(text.split())
    if not text:
        return ""
    end = "" if text[-1] in ".?!…:" else "."
    is_code = "(" in text.split()[0]
    return (text[0] if is_code else text[0].upper()) + text[1:] + end


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Vertical bars in cells are escaped."""
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
