"""State inside the user's own modules: which functions change it, and which statements of the notebook do. Pure.

No name of the notebook holds what `registry.register("net", Net)` or `config.settings["lr"] = 1` changes. The state of
a module gets a name of its own, "config (module)", which names imported from the module, or from modules that import
it, read when they are used.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from jupyter_dlaas.analysis.call_effects import Behaviour, behaviour_of, own_methods
from jupyter_dlaas.analysis.effects import Call, Effects, reach
from jupyter_dlaas.analysis.model import ModuleState
from jupyter_dlaas.analysis.syntax.names import bound_names, walk

__all__ = ["OwnModules", "is_module_state", "state_of", "states_of"]

_SUFFIX: Final = " (module)"
_INITIAL: Final = frozenset({"__init__", "__new__", "__post_init__"})


def is_module_state(name: str) -> bool:
    """Return whether a name stands for the state of a module, and not for a variable."""
    return name.endswith(_SUFFIX)


@lru_cache(maxsize=512)
def state_of(text: str, name: str, *, is_package: bool) -> ModuleState:
    """Return what a module's text shows of its state; nothing if it cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ModuleState()
    own = frozenset(one for node in tree.body for one in _bound_by(node))
    behaviours: dict[str, Behaviour] = {}
    rebinding: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            behaviours[node.name] = behaviour_of(node)
            rebinding |= {node.name} if any(isinstance(part, ast.Global) for part in walk(node)) else set()
        elif isinstance(node, ast.ClassDef):
            methods = own_methods(node)
            behaviours |= {f".{method}": one for method, one in methods.items() if method not in _INITIAL}
            start = Behaviour()
            for method in sorted(_INITIAL & methods.keys()):
                start = start.also(methods[method])
            behaviours[node.name] = start
    changing = rebinding | {one for one, found in behaviours.items() if _alters(found, own)}
    callers: dict[str, frozenset[str]] = {}
    for one, found in behaviours.items():
        for called in found.calls & behaviours.keys():
            callers[called] = callers.get(called, frozenset()) | {one}
    calls = {one: found.calls for one, found in behaviours.items() if found.calls}
    imports = _imports(tree, name, is_package=is_package)
    return ModuleState(reach(changing, callers), imports, calls, behaviours)


def states_of(texts: Mapping[str, str]) -> dict[str, ModuleState]:
    """Return the states of modules that were not imported, from their texts by path: "engine.py", "nets/__init__.py".

    What a module hands on from the others is read from its import statements.
    """
    found: dict[str, ModuleState] = {}
    for path, text in texts.items():
        parts = path.removesuffix(".py").split("/")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = replace(
            state_of(text, name, is_package=parts[-1] == "__init__"), **_handed_on(text, name, parts[-1] == "__init__")
        )
    return found


def _handed_on(text: str, name: str, is_package: bool) -> dict[str, Any]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    origins = {}
    for node in tree.body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            source = _source(node, name, is_package=is_package) if isinstance(node, ast.ImportFrom) else ""
            origins[alias.asname or alias.name] = (source, alias.name)
    bound = (one for node in tree.body for one in _bound_by(node))
    return {"origins": origins, "exports": tuple(dict.fromkeys(one for one in bound if not one.startswith("_")))}


def _source(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    """Return the full name of the module from which a module imports."""
    parts = name.split(".")
    base = parts[: len(parts) - node.level + is_package] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def _bound_by(node: ast.stmt) -> Iterable[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return tuple(alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.Assign(targets=targets):
            return tuple(name for target in targets for name in bound_names(target))
        case ast.AnnAssign(target=target):
            return tuple(bound_names(target))
        case _:
            return ()


def _alters(found: Behaviour, own: frozenset[str]) -> bool:
    inner = found.made.altered if found.made is not None else frozenset[str]()
    return not (found.altered | inner).isdisjoint(own)


def _imports(tree: ast.Module, name: str, *, is_package: bool) -> frozenset[str]:
    """Return the full names that a module imports: modules, and what may be submodules."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = _source(node, name, is_package=is_package)
            found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return frozenset(found)


class OwnModules:
    """Imports of the user's modules in a notebook so far."""

    def __init__(self, states: Mapping[str, ModuleState]) -> None:
        self._states = states
        imports = {name: state.imports & states.keys() for name, state in states.items()}
        self._reached = {name: reach([name], imports) for name in states}
        self._bound: dict[str, frozenset[str]] = {}  # name -> modules that it is, or that it comes from
        self._functions: dict[str, tuple[str, str]] = {}  # imported function -> its module, its name there
        self._changes = _changes(states)
        self._trainers = _trainers(states)

    def explicit(self, node: ast.stmt) -> ast.stmt:
        """Return a statement with the names that its star imports of the user's modules bind."""
        found = {id(part) for part in ast.walk(node) if self._exports_of(part)} if self._states else set()
        return _ExplicitImports(self._exports_of).visit(copy.deepcopy(node)) if found else node

    def _exports_of(self, node: ast.AST) -> tuple[str, ...]:
        if isinstance(node, ast.ImportFrom) and not node.level and node.names[0].name == "*":
            state = self._states.get(node.module or "")
            return state.exports if state is not None else ()
        return ()

    def note(self, node: ast.stmt, bound: Iterable[str]) -> frozenset[str]:
        """Record the imports of a statement, which binds `bound`; return the states that the imported names read."""
        for name in bound if self._states else ():
            self._bound.pop(name, None)
            self._functions.pop(name, None)
        found: frozenset[str] = frozenset()
        for part in ast.walk(node) if self._states else ():
            if isinstance(part, ast.Import | ast.ImportFrom):
                found |= self._imported(part)
        return frozenset(f"{module}{_SUFFIX}" for module in found)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        source = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
        for alias in node.names:
            full = f"{source}.{alias.name}" if source else alias.name
            modules = frozenset({full if full in self._states else source or full}) & self._states.keys()
            name = alias.asname or (alias.name if source else alias.name.partition(".")[0])
            if modules:
                self._bound[name] = self._bound.get(name, frozenset()) | modules
                if source and full not in self._states:
                    self._bound[name] |= self._states[source].shared.get(alias.name, frozenset())
                    self._functions[name] = _origin(self._states, source, alias.name)
            found = found.union(*(self._reached[module] for module in modules))
        return found

    def changed(self, effects: Effects, behaviour: Behaviour) -> frozenset[str]:
        """Return the states that a statement certainly changes, itself or in the notebook's functions that it calls."""
        if not self._bound:
            return frozenset()
        altered = (effects.altered | behaviour.altered) & self._bound.keys()
        found = frozenset[str]().union(*(self._bound[name] for name in altered))
        for call in effects.calls:
            found |= self._changed_by(call.function or f".{call.verb}", call)
        for called in behaviour.calls:
            found |= self._changed_by(called, None)
        return frozenset(f"{module}{_SUFFIX}" for module in found)

    def trainer(self, call: Call, kind: str) -> Behaviour | None:
        """Return the effects of a call of an imported function or method that takes training steps, else None.

        `kind`: the class of the call's receiver, or "".
        """
        if not self._trainers:
            return None
        if call.receiver is None:
            return self._trainers.get(self._functions.get(call.function or "", ("", "")))
        modules = self._bound.get(call.receiver, frozenset()) - self._functions.keys()
        found = [_origin(self._states, module, call.verb) for module in sorted(modules)]
        if kind and not found:
            owners = [self._functions[kind][0]] if kind in self._functions else []
            owners += sorted(name for name in frozenset().union(*self._bound.values()) if name not in owners)
            known = [name for name in owners if kind in self._states[name].behaviours]
            found = [(name, f".{call.verb}") for name in known[:1]]
        return next((self._trainers[one] for one in found if one in self._trainers), None)

    def _changed_by(self, called: str, call: Call | None) -> frozenset[str]:
        """Return the modules whose state a call changes: `up()`, `counter.up()`, `tracker.add(3)`."""
        if not called.startswith("."):
            return self._changes.get(self._functions.get(called, ("", "")), frozenset())
        receiver = call.receiver if call is not None else None
        of_receiver = self._bound.get(receiver or "", frozenset())
        known = frozenset[str]().union(*self._bound.values())
        functions = [_origin(self._states, module, called[1:]) for module in of_receiver]
        return frozenset[str]().union(
            *(self._changes.get(one, frozenset()) for one in [*functions, *((module, called) for module in known)])
        )


class _ExplicitImports(ast.NodeTransformer):
    """Replaces star imports by imports of the names that they bind."""

    def __init__(self, exports: Callable[[ast.AST], tuple[str, ...]]) -> None:
        self._exports = exports

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        names = self._exports(node)
        node.names = [ast.copy_location(ast.alias(name), node) for name in names] or node.names
        return node


def _origin(states: Mapping[str, ModuleState], module: str, name: str) -> tuple[str, str]:
    return states[module].origins.get(name, (module, name))


def _trainers(states: Mapping[str, ModuleState]) -> dict[tuple[str, str], Behaviour]:
    """Return, by module and function, what takes training steps, itself or in functions and methods that it calls."""
    known = {(name, one): own for name, state in states.items() for one, own in state.behaviours.items()}
    callers: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for (module, function), own in known.items():
        for called in own.calls:
            callers.setdefault(_origin(states, module, called), set()).add((module, function))
    waiting = [one for one, own in known.items() if own.trains]
    found = dict.fromkeys(waiting)
    while waiting:
        new = callers.get(waiting.pop(), set()) - found.keys()
        found |= dict.fromkeys(sorted(new))
        waiting += sorted(new)
    return {one: known[one] for one in found}


def _changes(states: Mapping[str, ModuleState]) -> dict[tuple[str, str], frozenset[str]]:
    """Return, by module and function, the modules whose state a call of it changes, also through other modules."""
    found = {(name, one): frozenset({name}) for name, state in states.items() for one in state.changing}
    while True:
        before = dict(found)
        for module, state in states.items():
            others = state.imports & states.keys()
            for function, calls in state.calls.items():
                called = [_origin(states, module, one) for one in calls if not one.startswith(".")]
                methods = [one for one in calls if one.startswith(".")]
                called += [(other, part) for one in methods for other in others for part in (one, one[1:])]
                changed = frozenset[str]().union(*(found.get(one, frozenset()) for one in called))
                if changed:
                    found[module, function] = found.get((module, function), frozenset()) | changed
        if found == before:
            return found
