"""Failures that the code makes outside of the failure table, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dlaas_server
import jupyter_dlaas
from jupyter_dlaas.wire.protocol import Cause

__all__ = ["Made", "platform_failures"]


@dataclass(frozen=True, slots=True)
class Made:
    """A failure as its call states it. Parts of a sentence that are known only at run time read `…`."""

    code: str
    cause: Cause
    what: str
    advice: str


def platform_failures() -> list[Made]:
    """Return each failure once, in the order of the files."""
    found: dict[str, Made] = {}
    for package in (jupyter_dlaas, dlaas_server):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "Failure(" in text or "Row(" in text:
                for made in calls(ast.parse(text)):
                    found.setdefault(made.code, made)
    return list(found.values())


def calls(tree: ast.Module) -> Iterator[Made]:
    """Yield the failures that a module makes with a code and a cause of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Failure", "Row"):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            code, cause = text_of(given.get("code")), given.get("cause")
            if code and "…" not in code and isinstance(cause, ast.Attribute):
                known = Cause.__members__.get(cause.attr, Cause.UNKNOWN)  # otherwise taken from another failure
                yield Made(code, known, text_of(given.get("what")), text_of(given.get("advice")))


def text_of(node: ast.expr | None) -> str:
    """Return a string as far as the source states it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return "" if node is None else "…"
