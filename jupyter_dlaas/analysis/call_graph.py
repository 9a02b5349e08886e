"""Call graph of a notebook: functions, calls with their arguments, and the expressions behind names. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.analysis.cells import Cleaned, clean_cell, labels, parse
from jupyter_dlaas.analysis.model import ExecutedCell, TrainingCell

__all__ = [
    "Call",
    "Frame",
    "Notebook",
    "Scope",
    "Sheet",
    "argument",
    "last_name",
    "modules_used",
    "names_used",
    "root_of",
]

FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
INNER: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
DEEPEST: Final = 12
CALLS_MAX: Final = 400
"""Maximum number of relevant calls; a training cell has only a few."""


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """One cell as the page shows it, and as Python parses it."""

    label: str  # "cell [7]"
    count: int
    raw: str  # text below the line of %%train
    first_line: int  # line of the page's cell at which `raw` begins
    clean: Cleaned
    tree: ast.Module
    above: str = ""  # lines of the page above `raw`, if known


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """Scope: a cell's own statements, or a function's body."""

    sheet: Sheet
    node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
    owner: str = ""  # the class, for a method

    @property
    def is_module(self) -> bool:
        """Return whether this is the top level of a cell."""
        return isinstance(self.node, ast.Module)

    @property
    def parameters(self) -> list[str]:
        """Return the names of the positional parameters, including `self`."""
        if isinstance(self.node, ast.Module):
            return []
        return [posonlyarg.arg for posonlyarg in (*self.node.args.posonlyargs, *self.node.args.args)]

    @property
    def all_parameters(self) -> set[str]:
        """Return all parameters, including keyword-only ones."""
        named = [] if isinstance(self.node, ast.Module) else [kwonlyarg.arg for kwonlyarg in self.node.args.kwonlyargs]
        return {*self.parameters, *named}

    def nodes(self) -> Iterator[ast.AST]:
        """Yield all nodes that run with this scope, in the order of the page, without bodies of inner functions."""
        waiting: list[ast.AST] = list(reversed(self.node.body))
        while waiting:
            node = waiting.pop()
            yield node
            if not isinstance(node, INNER):
                waiting += reversed(list(ast.iter_child_nodes(node)))

    def bound(self) -> set[str]:
        """Return the names that this scope binds itself."""
        found = {n.id for n in self.nodes() if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return found | {n.name for n in self.nodes() if isinstance(n, FUNCTIONS | ast.ClassDef)}

    def values(self, text: str) -> list[ast.expr]:
        """Return the expressions assigned here to a name or attribute, in the order of the page."""
        return [value for target, value in self.assigned() if target == text]

    def assigned(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield targets as text with the assigned expression; `f()[1]` for `y` of `x, y = f()`."""
        for node in self.nodes():
            if isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                pairs = [(node.target, node.value)]
            elif isinstance(node, ast.With | ast.AsyncWith):
                pairs = [
                    (item.optional_vars, item.context_expr) for item in node.items if item.optional_vars is not None
                ]
            else:
                continue
            for target, value in pairs:
                if isinstance(target, ast.Tuple | ast.List):
                    is_pair = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
                    if isinstance(value, ast.Tuple | ast.List) and is_pair:
                        yield from zip(map(ast.unparse, target.elts), value.elts, strict=True)
                    elif isinstance(value, ast.Call):
                        for number, one in enumerate(target.elts):
                            yield ast.unparse(one), ast.copy_location(ast.Subscript(value, ast.Constant(number)), value)
                else:
                    yield ast.unparse(target), value


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Position on the path from the training cell to a call: the scope, the enclosing blocks, the call."""

    scope: Scope
    around: tuple[ast.stmt, ...]  # outermost first
    call: ast.Call


Call = tuple[Frame, ...]
"""Path to a relevant call; the last frame holds the call itself."""


@dataclass(slots=True)
class Notebook:
    """Executed cells and the training cell."""

    training: Sheet
    sheets: list[Sheet] = field(default_factory=list)
    """Cells in order of execution; the training cell is the last."""
    functions: dict[str, Scope] = field(default_factory=dict)
    classes: dict[str, dict[str, Scope]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Sequence[ExecutedCell], training: TrainingCell) -> Notebook | None:
        """Parse a notebook. Return None if the training cell is not valid Python."""
        own = _sheet(f"cell [{training.count}]", training.count, training.source, training.first_line, training.above)
        if own is None:
            return None
        found = cls(own)
        names = labels(cells)
        for cell in cells:
            sheet = _sheet(names[cell.count], cell.count, cell.source, 1)
            if sheet is not None:
                found._add(sheet)
        found._add(own)
        return found

    def _add(self, sheet: Sheet) -> None:
        self.sheets.append(sheet)
        methods: set[ast.AST] = set()
        for node in ast.walk(sheet.tree):
            if isinstance(node, ast.ClassDef):
                own = [statement for statement in node.body if isinstance(statement, FUNCTIONS)]
                methods.update(own)
                self.classes[node.name] = {one.name: Scope(sheet, one, node.name) for one in own}
                self.bases[node.name] = [last_name(base) for base in node.bases]
        for node in ast.walk(sheet.tree):
            if isinstance(node, FUNCTIONS) and node not in methods:
                self.functions[node.name] = Scope(sheet, node)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def calls(self, wanted: frozenset[str]) -> list[Call]:
        """Return the paths from the training cell to all calls of such methods, through the user's own functions."""
        found: list[Call] = []
        self._follow(Scope(self.training, self.training.tree), (), wanted, found)
        return found

    def _follow(self, scope: Scope, way: Call, wanted: frozenset[str], found: list[Call]) -> None:
        for around, call in _calls_in(scope.node.body, ()):
            if len(found) >= CALLS_MAX:
                return
            here = (*way, Frame(scope, around, call))
            if isinstance(call.func, ast.Attribute) and call.func.attr in wanted:
                found.append(here)
            for target in self._targets(call, scope):
                if len(here) < DEEPEST and all(target.node is not frame.scope.node for frame in here):
                    self._follow(target, here, wanted, found)

    def _targets(self, call: ast.Call, scope: Scope) -> Iterator[Scope]:
        if isinstance(call.func, ast.Name) and call.func.id in self.functions:
            yield self.functions[call.func.id]
        if isinstance(call.func, ast.Attribute):
            method = self.method(call.func.value, call.func.attr, scope)
            if method is not None:
                yield method
            if call.func.attr == "step":  # optimizer.step(closure)
                yield from (
                    self.functions[a.id] for a in call.args if isinstance(a, ast.Name) and a.id in self.functions
                )

    def method(self, receiver: ast.expr, name: str, scope: Scope) -> Scope | None:
        """Return the notebook's own method that a call invokes, by the class of the receiver."""
        kind = scope.owner if isinstance(receiver, ast.Name) and receiver.id == "self" else ""
        if not kind:
            made = receiver if isinstance(receiver, ast.Call) else self.value_of(ast.unparse(receiver), scope, ())
            kind = last_name(made.func) if isinstance(made, ast.Call) else ""
        seen: set[str] = set()
        while kind in self.classes and kind not in seen:
            if name in self.classes[kind]:
                return self.classes[kind][name]
            seen.add(kind)
            kind = next((base for base in self.bases[kind] if base in self.classes), "")
        return None

    # -- bindings -----------------------------------------------------------------------------------------------------

    def value_of(self, text: str, scope: Scope, way: Sequence[Frame]) -> ast.expr | None:
        """Return the expression to which a name or attribute was last bound, or None if unknown.

        `way`: the frames above the scope, outermost first.
        """
        found = self.home(text, scope, way)
        return found[1] if found is not None else None

    def home(self, text: str, scope: Scope, way: Sequence[Frame]) -> tuple[Scope, ast.expr] | None:
        """Return the same expression with the scope in which it was bound."""
        for _ in range(DEEPEST):
            own = scope.values(text)
            if own:
                value = own[-1]
                is_alias = isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) != text
                deeper = self.home(ast.unparse(value), scope, way) if is_alias and len(own) == 1 else None
                return deeper or (scope, value)
            if text.startswith("self.") and scope.owner:
                for method in self.classes.get(scope.owner, {}).values():
                    if method.node is not scope.node and (values := method.values(text)):
                        return self._of_init(values[-1], method, way) or (method, values[-1])
            if way and root_of(text) in scope.all_parameters:
                given = argument(way[-1].call, scope, text)
                scope, way = way[-1].scope, way[:-1]
                if given is None:
                    return None
                if isinstance(given, ast.Call):
                    return scope, given
                text = ast.unparse(given)
                continue
            break
        if root_of(text) in scope.all_parameters:
            return None
        for sheet in reversed(self.sheets):
            module = Scope(sheet, sheet.tree)
            if values := module.values(text):
                value = values[-1]
                if isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) != text and module is not scope:
                    return self.home(ast.unparse(value), module, ()) or (module, value)
                return module, value
        if "." in text:  # `trainer.model`: an attribute that the object's class binds
            holder, _, attribute = text.rpartition(".")
            made = self.value_of(holder, scope, way)
            kind = last_name(made.func) if isinstance(made, ast.Call) else ""
            for method in self.classes.get(kind, {}).values():
                if values := method.values(f"self.{attribute}"):
                    return method, values[-1]
        return None

    def _of_init(self, value: ast.expr, method: Scope, way: Sequence[Frame]) -> tuple[Scope, ast.expr] | None:
        """Return the constructor's argument behind `self.model = model` in `__init__`."""
        if not isinstance(value, ast.Name) or value.id not in method.all_parameters:
            return None
        for sheet in reversed(self.sheets):
            for node in ast.walk(sheet.tree):
                if isinstance(node, ast.Call) and last_name(node.func) == method.owner:
                    given = argument(node, method, value.id)
                    module = Scope(sheet, sheet.tree)
                    if isinstance(given, ast.Name | ast.Attribute):
                        return self.home(ast.unparse(given), module, ())
                    return (module, given) if given is not None else None
        return None


def argument(call: ast.Call, scope: Scope, text: str) -> ast.expr | None:
    """Return a call's argument for a parameter, or for an attribute of one, in the caller's scope."""
    name = root_of(text)
    rest = text[len(name) :]
    names = scope.parameters
    given: ast.expr | None = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if given is None and name in names:
        place = names.index(name)
        if scope.owner and isinstance(call.func, ast.Attribute) and names[:1] in (["self"], ["cls"]):
            if place == 0:
                given = call.func.value
            place -= 1
        elif scope.owner:
            place -= 1  # Net(…) calls __init__ without `self`
        if given is None and 0 <= place < len(call.args):
            before = call.args[: place + 1]
            given = None if any(isinstance(one, ast.Starred) for one in before) else call.args[place]
    if given is None or not rest:
        return given
    if not isinstance(given, ast.Name | ast.Attribute | ast.Subscript):
        return None
    return ast.parse(ast.unparse(given) + rest, mode="eval").body


def _sheet(label: str, count: int, raw: str, first_line: int, above: str = "") -> Sheet | None:
    clean = clean_cell(raw)
    if clean.kind != "python":
        return None
    return Sheet(label, count, raw, first_line, clean, parse(clean.source), above)


def _calls_in(body: Sequence[ast.AST], around: tuple[ast.stmt, ...]) -> Iterator[tuple[tuple[ast.stmt, ...], ast.Call]]:
    """Yield all calls that run with these nodes, with the enclosing blocks; a call comes after its arguments."""
    for node in body:
        if isinstance(node, INNER):
            continue
        inner = around
        if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try):
            inner = (*around, node)
        yield from _calls_in(list(ast.iter_child_nodes(node)), inner)
        if isinstance(node, ast.Call):
            yield inner, node


def last_name(function: ast.expr) -> str:
    """Return the last name of a function expression: "Adam" for `torch.optim.Adam`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def root_of(text: str) -> str:
    """Return the root of an expression: "self" for `self.model`, "models" for `models["a"]`."""
    return text.partition(".")[0].partition("[")[0]


def names_used(sheets: Sequence[Sheet]) -> set[str]:
    """Return all names and parameters in the cells."""
    found: set[str] = set()
    for sheet in sheets:
        for node in ast.walk(sheet.tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, FUNCTIONS | ast.ClassDef):
                found.add(node.name)
    return found


def modules_used(sheets: Sequence[Sheet]) -> frozenset[str]:
    """Return the parts of the names of all modules that the cells import."""
    found: set[str] = set()
    for sheet in sheets:
        for node in ast.walk(sheet.tree):
            if isinstance(node, ast.ImportFrom):
                found.update((node.module or "").split("."))
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.update(part for alias in node.names for part in alias.name.split("."))
    return frozenset(found)
