"""Facts that constants tell before a program runs: branches and loops that surely run, annotations as text. Pure."""

from __future__ import annotations

import ast


def is_always_true(test: ast.expr) -> bool:
    """`if True:` and `if __name__ == "__main__":`, which holds in a notebook and in train.py."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
        case _:
            return False


def is_never_empty(source: ast.expr) -> bool:
    """A loop over `range(3)` or `[1, 2]` surely runs; over anything else perhaps not."""
    match source:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))]):
            return count > 0
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return any(not isinstance(part, ast.Starred) for part in parts)
        case _:
            return False


def names_in_text(text: str) -> set[str]:
    """The names in an annotation that is written as a string."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return set()  # `Literal["two words"]` is no name
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def catches_names(kind: ast.expr | None) -> bool:
    """`except NameError:` around a read asks whether the name is there."""
    return kind is not None and any(isinstance(part, ast.Name) and part.id == "NameError" for part in ast.walk(kind))
