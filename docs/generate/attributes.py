"""Descriptions of the attributes of a class, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap

__all__ = ["descriptions", "first_line"]


def descriptions(kind: type) -> dict[str, str]:
    """Return attribute -> the string below its definition, or else the comment at the end of its line."""
    source = textwrap.dedent(inspect.getsource(kind))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    lines = source.splitlines()
    found: dict[str, str] = {}
    for node, after in zip(definition.body, [*definition.body[1:], None], strict=True):
        target = target_of(node)
        if target is None:
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[target] = " ".join(after.value.value.split())
        elif "  # " in lines[(node.end_lineno or node.lineno) - 1]:
            found[target] = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2].strip()
    return found


def target_of(node: ast.stmt) -> str | None:
    """Return the name that a statement assigns to, if it is one name."""
    target = node.target if isinstance(node, ast.AnnAssign) else None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return node.targets[0].id if isinstance(node.targets[0], ast.Name) else None
    return target.id if isinstance(target, ast.Name) else None


def first_line(kind: object) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
