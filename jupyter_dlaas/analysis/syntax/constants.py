"""Facts known from the form of code: definitions, constants, branches and loops that certainly run. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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


def is_true_at_start(test: ast.expr) -> bool:
    """Return whether a test holds for a counter at 0: `step % 10 == 0`, `not step % 10`; not `step > 0`."""
    match test:
        case ast.Compare(
            left=ast.Name() | ast.BinOp(op=ast.Mod()), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]
        ):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=ast.BinOp(op=ast.Mod())):
            return True
        case _:
            return False


def swallows_errors(context: ast.expr) -> bool:
    """Return whether a context manager ends its block at an error: `suppress(ValueError)`, `pytest.raises(…)`."""
    function = context.func if isinstance(context, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"suppress", "raises", "assertRaises"}


def is_definition(node: ast.stmt) -> bool:
    """Return whether a statement binds a function, a class, a module or a plain constant."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is not None and is_constant(node.value)
    return isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom)


def only_defines(node: ast.stmt) -> bool:
    """Return whether a statement binds code and runs none of it."""
    return isinstance(node, DEFINITIONS) or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda))


def values_by_name(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that an assignment binds, each to a whole value: `x = zip(a, b)`, not `x, y = zip(*pairs)`."""
    pairs = [(target, node.value) for target in node.targets] if isinstance(node, ast.Assign) else []
    for target, value in pairs:
        match target, value:
            case ast.Name(id=name), _:
                yield name, value
            case ast.Tuple(elts=names), ast.Tuple(elts=parts) if len(names) == len(parts):
                yield from ((one.id, part) for one, part in zip(names, parts, strict=True) if isinstance(one, ast.Name))


def binds_plain(node: ast.stmt) -> bool:
    """Return whether a statement binds something that no call changes."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return isinstance(node.value, ast.Constant | ast.Lambda)
    return isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom)


def is_constant(node: ast.expr) -> bool:
    """Return whether an expression reads no name and calls nothing."""
    return not any(isinstance(part, ast.Call | ast.Name | ast.Await) for part in ast.walk(node))
