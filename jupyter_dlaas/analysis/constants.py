"""Facts known from constants: branches and loops that certainly run, annotations as text. Pure."""

from __future__ import annotations

import ast


def is_always_true(test: ast.expr) -> bool:
    """Return whether a test always holds: `if True:`, `if __name__ == "__main__":` (also in train.py)."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
        case _:
            return False


def is_never_empty(source: ast.expr) -> bool:
    """Return whether a loop certainly runs, as over `range(3)` or `[1, 2]`."""
    match source:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))]):
            return count > 0
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return any(not isinstance(part, ast.Starred) for part in parts)
        case _:
            return False


def names_in_text(text: str) -> set[str]:
    """Return the names in an annotation that is written as a string."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return set()  # `Literal["two words"]` is not an expression
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def catches_names(kind: ast.expr | None) -> bool:
    """Return whether an `except` clause catches NameError, as in a test for a name."""
    return kind is not None and any(isinstance(part, ast.Name) and part.id == "NameError" for part in ast.walk(kind))
