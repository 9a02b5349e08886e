"""Definitions of a program, recreated without running it, for results whose class is defined in a training cell.

That cell ran in the job and not in the kernel, so the kernel lacks its classes; the job keeps the text.
"""

from __future__ import annotations
import __future__

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jupyter_dlaas.objects.code_versions import code_of
from jupyter_dlaas.transfer.object_traversal import trained_in
from jupyter_dlaas.transfer.shared_objects import direct_parts

__all__ = ["assigned_names", "changed_names", "classes", "edited", "find", "place_of", "rebound_names"]

_TYPES = frozenset({"namedtuple", "NamedTuple", "make_dataclass", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})
"""Calls that create a type."""
_COROUTINES = ("_training_cell", "_cell_")
"""First line of a cell with `await` in the program."""


_PARTS_MAX = 200_000
_MARKER = re.compile(r"# --- (cell \[\d+\])")


def changed_names(source: str, names: Collection[str]) -> frozenset[str]:
    """Return the names that a program's training cell does not bind: it can only change their objects."""
    tree = _training_cell(source)
    if tree is None:
        return frozenset()
    imported = {name for node in _outside_functions(tree) if isinstance(node, _IMPORTS) for name in _bound(node)}
    return frozenset(names) - _assigned(source, tree) - imported


def assigned_names(source: str) -> frozenset[str]:
    """Return the names that a program's training cell binds to a value, a class or a function."""
    tree = _training_cell(source)
    return _assigned(source, tree) if tree is not None else frozenset()


def _training_cell(source: str) -> ast.Module | None:
    _, _, text = source.rpartition(", the training cell ---\n")
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _assigned(source: str, tree: ast.Module) -> frozenset[str]:
    added = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    bound = {
        node.id
        for node in _outside_functions(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in added
    }
    bound |= {name for node in _outside_functions(tree) if isinstance(node, _DEFINITIONS) for name in _bound(node)}
    return frozenset(
        bound | set(re.findall(r"\b\w+\b", " ".join(re.findall(r"^\s*global (.*)", source, re.MULTILINE))))
    )


def rebound_names(source: str, values: Mapping[str, object]) -> frozenset[str]:
    """Return the names that a program's training cell binds to something not derived from their old objects.

    `model = Net()` and `trainer.model = Net()`, but neither `model, opt = run.prepare(model, opt)` nor
    `model = model.to(device)` nor `state["best"] = loss.item()`. `values`: the old objects, which hold models.
    """
    tree = _training_cell(source)
    if tree is None:
        return frozenset()
    found: set[str] = set()
    for node in _outside_functions(tree):
        if isinstance(node, ast.Assign):
            bound = {name for target in node.targets for name in _replaced(target, values)}
            read = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            is_made = any(isinstance(part, ast.Call) for part in ast.walk(node.value))
            found |= bound - read if is_made and not bound & read else set()
    return frozenset(values) & found


def _replaced(target: ast.expr, values: Mapping[str, object]) -> Iterator[str]:
    """Yield the names whose objects an assignment to a target replaces, or models in them."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _replaced(part, values)
    elif isinstance(target, ast.Starred):
        yield from _replaced(target.value, values)
    elif isinstance(target, ast.Name):
        yield target.id
    elif any(trained_in(one, _PARTS_MAX) for one in _denoted(target, values)):
        yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name) and part.id in values)


def _denoted(place: ast.expr, values: Mapping[str, object]) -> list[object]:
    """Return the objects that an expression may denote: for a variable key all items, else the whole if unknown."""
    if isinstance(place, ast.Name):
        return [values[place.id]] if place.id in values else []
    if not isinstance(place, ast.Attribute | ast.Subscript):
        return []
    steps: set[str] | None = None
    if isinstance(place, ast.Attribute):
        steps = {f".{place.attr}"}
    elif isinstance(place.slice, ast.Constant):
        steps = {f"[{place.slice.value!r}]", f".{place.slice.value!r}"}  # layers of a torch.nn.Sequential have names
    found: list[object] = []
    for one in _denoted(place.value, values):
        parts = direct_parts(one)
        found += [part for step, part in parts if steps is None or step in steps] if parts else [one]
    return found


_DEFINERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _SCOPES) or str(getattr(node, "name", "")).startswith(_COROUTINES):
            todo += ast.iter_child_nodes(node)


def find(source: str, qualname: str, own: frozenset[str] = frozenset()) -> Any:
    """Find a class or function by its qualified name: first in this process' `__main__`, then in the program.

    `own`: names that are looked up in the program first. Runs only the imports, definitions and constants that the
    result depends on. Raises AttributeError if neither has it.
    """
    root, *parts = qualname.split(".")
    main = sys.modules["__main__"]
    found = _program(source, own).value(root) if root in own or root not in vars(main) else vars(main)[root]
    for part in parts:
        found = getattr(found, part, None)
    if found is None:
        raise AttributeError(f"Can't get attribute {root!r} on {main!r}")  # the message of pickle
    return found


def classes(source: str) -> dict[str, Any]:
    """Return all classes of a program that can be created and are not in this process' `__main__`."""
    program, main = _program(source), vars(sys.modules["__main__"])
    names = [name for name, node in program.nodes.items() if isinstance(node, ast.ClassDef) and name not in main]
    return {name: found for name in names if (found := program.value(name)) is not None}


def place_of(source: str, name: str) -> str:
    """Return the cell of a program that last defines a class, such as "cell [4]"; "" if it is unknown."""
    found = ""
    cell = ""
    for line in source.splitlines():
        if (marker := _MARKER.match(line)) is not None:
            cell = marker[1]
        elif re.match(rf"\s*class {re.escape(name)}\b", line):
            found = cell
    return found


def edited(source: str, names: Collection[str]) -> frozenset[str]:
    """Return the program's classes whose definition, or that of a base, differs in this process' notebook or program.

    Also functions and types created by a call (`Point = namedtuple(…)`) if named directly. The newest cell that defines
    a name counts; if no cell does (`%run`), the code of the class or function. Unknown definitions count as equal.
    """
    program = _program(source)
    other: dict[str, ast.stmt] = {name: node for name, node in program.nodes.items() if isinstance(node, ast.ClassDef)}
    other |= {name: node for name in names if isinstance(node := program.nodes.get(name), _DEFINERS)}
    local: dict[str, ast.stmt | None] = {}

    def is_edited(name: str) -> bool:
        if name not in other or name not in vars(sys.modules["__main__"]):
            return False
        if name not in local:
            local[name] = _current_definition(name)
        local_definition, remote = local[name], other[name]
        if local_definition is not None and ast.dump(local_definition) != ast.dump(remote):
            return True
        if local_definition is None and _differs_by_code(name, source):
            return True
        bases = remote.bases if isinstance(remote, ast.ClassDef) else []
        found = {part.id for base in bases for part in ast.walk(base) if isinstance(part, ast.Name)}
        return any(is_edited(base) for base in sorted(found - {name}))

    return frozenset(name for name in {*names, *(other if names else ())} if is_edited(name))


def _current_definition(name: str) -> ast.stmt | None:
    """Return the newest definition of a name in this process: in an executed cell, or in the program."""
    for text in _current_texts():
        if name not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        found = [node for node in _definers(tree) if name in _bound(node)]
        if found:
            return found[-1]
    return None


def _definers(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield definitions of classes and functions and assignments of a call's result, outside functions and classes."""
    found = [
        node
        for node in _outside_functions(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    ]
    yield from sorted(found, key=lambda one: one.lineno)


def _differs_by_code(name: str, source: str) -> bool:
    """Return whether the code of a class or function, whose text no cell has, differs from the program's."""
    if not isinstance(vars(sys.modules["__main__"]).get("In"), list):
        return False
    local_definition, remote = vars(sys.modules["__main__"])[name], _program(source, frozenset({name})).value(name)
    return remote is not None and code_of(local_definition, has_values=True) != code_of(remote, has_values=True)


def _current_texts() -> Iterator[str]:
    space = vars(sys.modules["__main__"])
    ran, file = space.get("In"), space.get("__file__")
    if isinstance(ran, list):
        yield from (text for text in reversed(ran) if isinstance(text, str))
    elif isinstance(file, str) and Path(file).is_file():
        yield Path(file).read_text(encoding="utf-8", errors="replace")


@lru_cache(maxsize=16)  # all results of a job have the same classes
def _program(source: str, own: frozenset[str] = frozenset()) -> _Program:
    return _Program(source, own)


class _Program:
    def __init__(self, source: str, own: frozenset[str]) -> None:
        self.own = own
        tree = ast.parse(source)
        is_lazy = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
        self.flags = __future__.annotations.compiler_flag if is_lazy else 0
        self.nodes = {name: node for node in _definitions(tree.body) for name in _bound(node)}
        self.space: dict[str, Any] = {"__name__": "__main__"}

    def value(self, name: str) -> Any:
        """Return the value of a name, or None if the program does not define it or its definition raises here."""
        try:
            self._define(name, set())
        except Exception:  # noqa: BLE001 - the user's own lines, which need not work without what ran before them
            return None
        return self.space.get(name)

    def _define(self, name: str, begun: set[str]) -> None:
        """Bind a name and, before it, the names that its definition reads; unknown names stay undefined."""
        main = vars(sys.modules["__main__"])
        if name in self.space or name in begun:
            return
        begun.add(name)
        if name in main and name not in self.own:
            self.space[name] = main[name]
        elif (node := self.nodes.get(name)) is not None:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                    self._define(part.id, begun)
            code = compile(ast.Module([node], []), "train.py", "exec", flags=self.flags, dont_inherit=True)
            exec(code, self.space)  # noqa: S102 - the user's own definition, in the user's own process


def _definitions(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that only define something, in the order of the page."""
    for node in nodes:
        match node:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), body=body):
                yield from _definitions(body)
            case ast.AsyncFunctionDef(name=name, body=body) if name.startswith(_COROUTINES):
                yield from _definitions(body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
                yield node
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if _is_constant(value):
                yield node
            case ast.Assign(value=ast.Call(func=function)) if ast.unparse(function).rpartition(".")[2] in _TYPES:
                yield node
            case _:
                continue


def _is_constant(value: ast.expr) -> bool:
    return not any(isinstance(part, ast.Call | ast.Await | ast.Attribute | ast.Subscript) for part in ast.walk(value))


def _bound(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case _:
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
