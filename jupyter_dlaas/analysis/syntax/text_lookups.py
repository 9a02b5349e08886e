"""Names that a program looks up as text: `"model" in globals()`, `locals().get("step", 0)`. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable

__all__ = ["binds_as_text", "looked_up", "looked_up_in", "may_bind_any_name"]

SPACES = frozenset({"globals", "locals", "vars", "dir"})
GETTERS = frozenset({"get", "pop", "setdefault"})
READERS = frozenset({"get", "pop", "keys", "values", "items", "copy"})
QUIET_FUNCTIONS = frozenset({"print", "len", "sorted", "list", "set", "tuple", "dict", "iter", "type", "id", "sum"})
SHELL_ATTRIBUTES = frozenset({"run_cell", "run_cell_magic", "run_line_magic", "user_ns", "user_global_ns"})


def looked_up(node: ast.AST) -> frozenset[str]:
    """Return the variable that this expression looks up by its name as text."""
    name = _looked_up(node)
    return frozenset((name,)) if name is not None else frozenset()


def _looked_up(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Attribute(value=space, attr=verb), args=[ast.Constant(value=str(name)), *_]):
            return name if verb in GETTERS and _is_space(space) else None
        case ast.Subscript(value=space, slice=ast.Constant(value=str(name))):
            return name if _is_space(space) else None
        case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()], comparators=[space]):
            return name if _is_space(space) else None
        case _:
            return None


def looked_up_in(test: ast.expr) -> frozenset[str]:
    """Return the variables whose existence a condition tests."""
    return frozenset().union(*(looked_up(node) for node in ast.walk(test) if isinstance(node, ast.Compare)))


def binds_as_text(nodes: Iterable[ast.AST]) -> bool:
    """Return whether nodes may bind names not in their text: `exec(text)`, `globals().update(found)`."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="exec"), args=[_]):
                return True
            case ast.Call(func=ast.Attribute(value=space, attr="update")) if _is_space(space):
                return True
            case ast.Subscript(value=space, ctx=ast.Store()) if _is_space(space):
                return True
            case _:
                continue
    return False


def may_bind_any_name(node: ast.AST) -> bool:
    """Return whether running this may bind module-level names that its text does not contain.

    Unlike `binds_as_text`, the answer is generous: also `exec(code, space)`, `import __main__`, `fill(globals())`,
    `setattr(sys.modules[__name__], "x", 1)`, and function bodies.
    """
    harmless: set[int] = set()
    for part in ast.walk(node):  # from the outside in: a use comes before the call of globals() in it
        match part:
            case ast.ImportFrom(names=[ast.alias(name="*")]) | ast.Import(names=[ast.alias(name="__main__"), *_]):
                return True
            case ast.Call(func=ast.Name(id="exec")) | ast.Name(id="__main__"):
                return True
            case ast.Attribute(attr="modules", value=ast.Name(id="sys")):
                return True
            case ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr="push" | "ex" | "magic"):
                return True
            case ast.Attribute(attr=name) if name in SHELL_ATTRIBUTES:
                return True
            case ast.Call(func=ast.Attribute(value=space, attr=verb)) if verb in READERS:
                harmless.add(id(space))
            case ast.Call(func=ast.Name(id=function), args=args) if function in QUIET_FUNCTIONS:
                harmless |= {id(arg) for arg in args}
            case ast.Subscript(value=space, ctx=ast.Load()):
                harmless.add(id(space))
            case ast.Compare(comparators=spaces):
                harmless |= {id(space) for space in spaces}
            case ast.For(iter=space) | ast.comprehension(iter=space):
                harmless.add(id(space))
            case ast.Call(func=ast.Name(id="globals" | "locals" | "vars"), args=[]) if id(part) not in harmless:
                return True
            case _:
                continue
    return False


def _is_space(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[]) if name in SPACES:
            return True
        case ast.Call(func=ast.Attribute(value=inner, attr="keys"), args=[]):
            return _is_space(inner)
        case _:
            return False
