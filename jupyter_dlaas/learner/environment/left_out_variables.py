"""Environment variables that a program reads and that were not sent to its machine, found in its source."""

from __future__ import annotations

import ast
from collections.abc import MutableMapping

from jupyter_dlaas.wire.left_out import LEFT_OUT

__all__ = ["left_out_note", "variables_read"]


def left_out_note(program: str, environment: MutableMapping[str, str]) -> str | None:
    """Return what to tell about variables that the program reads but does not have; forget which were left out."""
    left_out = environment.pop(LEFT_OUT, "").split(",")
    names = sorted(variables_read(program) & set(left_out) - environment.keys())
    if not names:
        return None
    which = "is" if len(names) == 1 else "are"
    options = " ".join(f"-e {name}=VALUE" for name in names)
    return (
        f"{', '.join(names)} {which} set where the job was submitted, but not sent to this machine. "
        f"To send it, submit with {options}, or with --secret NAME."
    )


def variables_read(program: str) -> frozenset[str]:
    """Return the names that a program looks up in `os.environ` or with `os.getenv`, where they stand in its text."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()  # running it says what is wrong
    return frozenset(
        key.value for key in map(_key, ast.walk(tree)) if isinstance(key, ast.Constant) and isinstance(key.value, str)
    )


def _key(node: ast.AST) -> ast.expr | None:
    """Return the expression that an expression looks up in the environment."""
    match node:
        case ast.Subscript(value=place, slice=key) if _is_named(place, "environ"):
            return key
        case ast.Call(func=ast.Attribute(value=place, attr="get"), args=[key, *_]) if _is_named(place, "environ"):
            return key
        case ast.Call(func=function, args=[key, *_]) if _is_named(function, "getenv"):
            return key
        case ast.Compare(left=key, comparators=[place]) if _is_named(place, "environ"):
            return key
    return None


def _is_named(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
