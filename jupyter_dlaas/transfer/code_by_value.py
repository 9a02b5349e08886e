"""Functions without an importable name (lambdas, closures) as code, for the same Python: pickle cannot store them."""

from __future__ import annotations

import builtins
import dis
import importlib
import marshal
import pickle
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any, Final

from jupyter_dlaas import stored

__all__ = [
    "fill",
    "fill_cell",
    "is_former_class",
    "is_found",
    "load_code",
    "make",
    "make_cell",
    "reads",
    "reduce",
    "reduce_cell",
    "reduce_code",
    "unbound",
]

_BUILTINS: Final = frozenset(dir(builtins))
_READS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


def is_found(obj: Any) -> bool:
    """Return whether the object's qualified name, looked up in its module, leads to it."""
    found: Any = sys.modules.get(obj.__module__ or "")
    for name in obj.__qualname__.split("."):
        found = vars(found).get(name) if found is not None and hasattr(found, "__dict__") else None
        found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    return found is obj


def is_former_class(kind: type) -> bool:
    """Return whether a class of the program was defined again since, so that its name denotes another class."""
    is_named = kind.__module__ == "__main__" and "<locals>" not in kind.__qualname__
    return is_named and not is_found(kind) and isinstance(vars(sys.modules["__main__"]).get(kind.__name__), type)


def reads(function: types.FunctionType) -> set[str]:
    """Return the notebook's names that a function reads when it is called."""
    if function.__module__ != "__main__":
        return set()
    return {name for name in _globals_in(function.__code__) if name in function.__globals__}


def unbound(function: types.FunctionType, stale: Collection[str] = ()) -> set[str]:
    """Return the names that a function of the program reads when it is called and that nothing binds, or are stale."""
    if function.__module__ != "__main__":
        return set()
    names = {*_globals_in(function.__code__)}
    return {name for name in names if name not in function.__globals__ and name not in _BUILTINS} | names & {*stale}


def _globals_in(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in _READS:
            yield step.argval
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _globals_in(part)


def reduce(function: types.FunctionType) -> tuple[Any, ...]:
    """Return what `__reduce__` would: first the empty function, so that it may refer to itself."""
    start = (
        sys.implementation.cache_tag,
        marshal.dumps(function.__code__),
        function.__module__,
        function.__name__,
        function.__qualname__,
        function.__closure__ or (),
    )
    state = (function.__defaults__, function.__kwdefaults__, function.__dict__, ())
    return stored.function, start, state, None, None, stored.fill_function


def reduce_cell(cell: types.CellType) -> tuple[Any, ...]:
    """Return the reduction of a variable of a closure, which functions share: a counter and the function that shows it.

    The empty variable comes first, since its function may refer to itself.
    """
    try:
        return stored.cell, (), (cell.cell_contents,), None, None, stored.fill_cell
    except ValueError:  # not bound yet
        return stored.cell, ()


def reduce_code(value: Any) -> Any:
    """Return the reduction of a function of the program, of code, of what a class wraps functions in, or of a method.

    None of them existed before the loop. NotImplemented for other objects.
    """
    if isinstance(value, types.FunctionType) and value.__module__ == "__main__":
        return reduce(value)  # its name is not bound before the loop
    if isinstance(value, type) and is_former_class(value):
        raise pickle.PicklingError(
            f"its class {value.__name__} was defined again since: create it below the last definition, or set its "
            f"__class__ = {value.__name__}"
        )
    if isinstance(value, type) and value.__module__ == "__main__":
        raise pickle.PicklingError(f"the class {value.__qualname__} is defined in the loop: define it above the loop")
    if isinstance(value, types.CodeType):
        return stored.code, (sys.implementation.cache_tag, marshal.dumps(value), value.co_qualname)
    if type(value) in (staticmethod, classmethod):
        return type(value), (value.__func__,)
    if type(value) is property:
        return property, (value.fget, value.fset, value.fdel, value.__doc__)
    if isinstance(value, types.MethodType):
        named = getattr(type(value.__self__), value.__func__.__name__, None)
        if named is not value.__func__ and getattr(value.__self__, value.__func__.__name__, None) != value:
            return stored.method, (value.__func__, value.__self__)
    return NotImplemented


def load_code(python: str, code: bytes, qualname: str) -> types.CodeType:
    """Return a stored code object."""
    if python != sys.implementation.cache_tag:
        raise TypeError(f"the function {qualname} was pickled by {python}, but this is {sys.implementation.cache_tag}")
    found: types.CodeType = marshal.loads(code)  # noqa: S302 - the user's own code, in the user's own process
    return found


def make(
    python: str, code: bytes, module: str | None, name: str, qualname: str, cells: tuple[types.CellType, ...] | int
) -> types.FunctionType:
    """Create a function that `fill` completes. `cells`: the variables of its closure, in older files their number."""
    space = vars(importlib.import_module(module or "builtins"))
    closure = cells if isinstance(cells, tuple) else tuple(types.CellType() for _ in range(cells))
    made = types.FunctionType(load_code(python, code, qualname), space, name, None, closure)
    made.__qualname__ = qualname
    made.__module__ = module  # type: ignore[assignment]  # None is possible
    return made


def fill(function: types.FunctionType, state: Any) -> None:
    """Set a function's defaults, attributes and, from older files, the variables of its closure."""
    function.__defaults__, function.__kwdefaults__, fields, cells = state
    function.__dict__.update(fields)
    for cell, (is_bound, content) in zip(function.__closure__ or (), cells, strict=False):
        if is_bound:
            cell.cell_contents = content


def make_cell() -> types.CellType:
    """Create a variable of a closure that `fill_cell` binds."""
    return types.CellType()


def fill_cell(cell: types.CellType, state: tuple[Any]) -> None:
    """Bind a variable of a closure."""
    (cell.cell_contents,) = state
