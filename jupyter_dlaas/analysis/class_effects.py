"""Effects of the notebook's own classes: of defining them, calling them, and reading their attributes. Pure.

A class statement runs `__set_name__` of its descriptors, `__init_subclass__` of its bases and its metaclass. A call of
a class runs its constructor and its metaclass's `__call__`. Reading an attribute runs a property or a descriptor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from jupyter_dlaas.analysis.call_effects import Behaviour, OwnMethod, named_bases, names_of_bases, own_methods
from jupyter_dlaas.analysis.effects import reach, verb_of_value, walk_now
from jupyter_dlaas.analysis.implicit_calls import Accessors, accessors_of, sites
from jupyter_dlaas.analysis.syntax.constants import DEFINITIONS
from jupyter_dlaas.analysis.syntax.names import root_name, walk

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

__all__ = ["Implicit", "OwnClasses", "patched_classes", "stored_attributes"]


@dataclass(frozen=True, slots=True)
class Implicit:
    """Effects of the properties and special methods that a statement runs."""

    receivers: frozenset[str]
    behaviour: Behaviour
    may_draw: bool


class OwnClasses:
    """Classes of a notebook so far."""

    def __init__(
        self,
        seen: Set[str],
        objects: Mapping[str, frozenset[str]],
        makers: Mapping[str, frozenset[str]],
        late: Mapping[str, frozenset[str]],
    ) -> None:
        """Share the tracer's state, which grows."""
        self.seen, self.objects, self.makers, self.late = seen, objects, makers, late
        self.names: set[str] = set()
        self.patched: set[str] = set()  # classes to which statements outside of them may add methods
        self.subclasses: dict[str, set[str]] = {}  # `Base` or `d2l.Module` -> own classes derived from it
        self.methods: dict[str, Behaviour] = {}
        self.starts: dict[str, Behaviour] = {}  # class -> effects of its constructor
        self.keeping: set[str] = set()  # classes that keep what they construct
        self.callables: set[str] = set()  # classes whose objects change when they are called
        self.stored: frozenset[str] = frozenset()  # attributes that the notebook assigns outside of constructors
        self.reads_subclasses = False
        self._own: dict[str, tuple[ast.ClassDef, Mapping[str, Behaviour]]] = {}
        self._hooks: dict[str, Behaviour] = {}  # class -> effects of defining a subclass of it
        self._calls: dict[str, Behaviour] = {}  # metaclass -> effects of calling one of its classes
        self._accessors: dict[str, Accessors] = {}  # class -> its properties and special methods with effects

    def forget(self, name: str) -> None:
        """Drop what is known of a class whose name is bound again."""
        self.names.discard(name)
        self.patched.discard(name)
        for derived in self.subclasses.values():
            derived.discard(name)
        self.subclasses.pop(name, None)
        for table in (self.starts, self._hooks, self._calls, self._accessors, self._own):
            table.pop(name, None)

    def define(self, node: ast.ClassDef, reads: frozenset[str]) -> None:
        """Record a class of which the definition reads these names."""
        name = node.name
        self.names.add(name)
        for base in named_bases(node):
            self.subclasses.setdefault(base, set()).add(name)
        self._add_accessors(node)
        parts = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        own = {
            method: self.with_properties(behaviour, parts[method]) if method in parts else behaviour
            for method, behaviour in own_methods(node).items()
        }
        self._own[name] = (node, own)
        for method, behaviour in own.items():
            known = self.methods.get(method, behaviour)
            params = behaviour.params if known.params == behaviour.params else ()
            self.methods[method] = replace(known.also(behaviour), params=params)
        start = Behaviour()
        for start_of_base in [self.starts[n] for n in sorted(reads & self.starts.keys())]:
            start = start.also(start_of_base)
        for method in {"__new__", "__init__", "__post_init__"} & own.keys():
            start = start.also(own[method])
        for metaclass in _metaclasses(node) & self._calls.keys():
            called = self._calls[metaclass]
            kept = frozenset({metaclass, name}) if called.touched_params else frozenset[str]()
            start = start.also(Behaviour(touches=called.touches | kept))
        if "__new__" in own and own["__new__"].touched_params:
            start = start.also(Behaviour(touches=frozenset({name})))
        if name in start.touches:
            self.keeping.add(name)
        self.starts[name] = start
        hook = own.get("__init_subclass__", Behaviour())
        for hook_of_base in self._hooks_of(node):
            hook = hook.also(hook_of_base)
        self._hooks[name] = hook
        if "__call__" in own:
            self._calls[name] = own["__call__"]
        is_kept = "__call__" not in own and not self.callables.isdisjoint(names_of_bases(node))
        self.callables |= {name} if is_kept or own.get("__call__", Behaviour()).touched_params else set()

    def method_of(self, kind: str, method: str) -> OwnMethod | None:
        """Return the method of a class's objects; None if the class is not the notebook's, or may get it elsewhere."""
        for owner in self._lineage(kind):
            node, own = self._own[owner]
            found = [one for one in node.body if isinstance(one, _FUNCTIONS) and one.name == method]
            if found and method in own:
                return OwnMethod(kind, found[-1], own[method])
        return None

    def _lineage(self, kind: str) -> Iterator[str]:
        """Yield a class and its bases, as far as they are the notebook's and nothing replaces their methods."""
        seen: set[str] = set()
        while kind in self._own and kind not in seen | self.patched:
            seen.add(kind)
            yield kind
            node, _ = self._own[kind]
            kind = ast.unparse(node.bases[0]) if len(node.bases) == 1 else ""

    def change_when_called(self, name: str) -> bool:
        """Return whether a name is an object of the notebook's classes that changes when it is called, or holds one."""
        return any(not self.callables.isdisjoint(self.makers.get(n, ())) for n in reach([name], self.objects))

    def changed_by_definition(self, node: ast.ClassDef) -> set[str]:
        """Return the objects changed by defining a class."""
        found: set[str] = set()
        bases = names_of_bases(node)
        for name, hook in zip(bases, self._hooks_of(node), strict=True):
            found |= hook.touches | ({name} if hook.touched_params else set())
        for part in node.body:
            made = verb_of_value(part.value) if isinstance(part, ast.Assign) else ""
            if made in self._accessors:
                named = self._accessors[made].behaviours.get("__set_name__", Behaviour())
                found |= named.touches | ({made} if named.touched_params else set())
        return found | (set(bases) & self.names if self.reads_subclasses else set())

    def changed_by_making(self, bases: Iterable[str]) -> frozenset[str]:
        """Return the objects changed by `type("Net", (Base,), {})`."""
        hooks = {name: self._hooks[name] for name in sorted(bases) if name in self._hooks}
        own = {name for name, hook in hooks.items() if hook.touched_params or self.reads_subclasses}
        return frozenset(own).union(*(hook.touches for hook in hooks.values()))

    def _hooks_of(self, node: ast.ClassDef) -> Sequence[Behaviour]:
        """Return, per base, the effects of defining this class: its `__init_subclass__`, or the metaclass's own."""
        metaclasses = _metaclasses(node)
        found = []
        for name in names_of_bases(node):
            if name in metaclasses:
                start = self.starts.get(name, Behaviour())
                kept = frozenset({name}) if start.touched_params else frozenset[str]()
                found.append(replace(start, touches=start.touches | kept, touched_params=frozenset()))
            else:
                found.append(self._hooks.get(name, Behaviour()))
        return found

    # properties and special methods
    def _add_accessors(self, node: ast.ClassDef) -> None:
        found = accessors_of(node, self._accessors, self.stored)
        for base in names_of_bases(node):
            found = found.also(self._accessors.get(base, Accessors()))
        if found.behaviours or found.draws:
            self._accessors[node.name] = found

    def with_properties(self, found: Behaviour, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Behaviour:
        """Add the changes by properties that a function reads: `def advance(counter): return counter.next`."""
        changing = {name for one in self._accessors.values() for name in one.behaviours}
        params = {arg.arg for arg in walk(function.args) if isinstance(arg, ast.arg)}
        for part in walk(function) if changing else ():
            if isinstance(part, ast.Attribute) and part.attr in changing and (root := root_name(part)) is not None:
                if root in params:
                    found = replace(found, touched_params=found.touched_params | {root})
                elif root in self.seen:
                    found = replace(found, touches=found.touches | {root})
        return found

    def implicit(self, node: ast.stmt) -> Implicit:
        """Return the effects of the properties and special methods that a statement runs."""
        receivers: set[str] = set()
        behaviour, may_draw = Behaviour(), False
        for site in sites(node) if self._accessors and not isinstance(node, DEFINITIONS) else ():
            kinds = self._classes_of(site.name, is_deep=site.is_deep)
            for kind in kinds:
                known = self._accessors[kind]
                may_draw = may_draw or not known.draws.isdisjoint(site.methods)
                for method in site.methods:
                    one = known.behaviours.get(method)
                    if one is None or (kind == site.name and not _is_of_class(method, one, kind)):
                        continue
                    behaviour = behaviour.also(Behaviour(touches=one.touches))
                    receivers |= {site.name} if one.touched_params else set()
        return Implicit(frozenset(receivers), behaviour, may_draw)

    def _classes_of(self, name: str, *, is_deep: bool) -> list[str]:
        """Return the classes with accessors of which the object of a name, or one that it holds, may be."""
        below = reach([name], self.objects) if is_deep else {name}
        makers = frozenset().union(*(self.makers.get(one, frozenset()) for one in below))
        own = {name} & self._accessors.keys()  # the class itself has descriptors, too
        return sorted(own | reach(makers, self.late) & self._accessors.keys()) if makers or own else []


def stored_attributes(nodes: Iterable[ast.stmt | None]) -> frozenset[str]:
    """Return the attributes that statements assign outside of the constructors of classes."""
    found: set[str] = set()
    for node in nodes:
        for part in walk_now([node]) if node is not None and not isinstance(node, DEFINITIONS) else ():
            if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
                found.add(part.attr)
    return frozenset(found)


def _is_of_class(method: str, found: Behaviour, kind: str) -> bool:
    """Return whether a class itself has the accessor, not only its objects: a descriptor, `Box[int]`."""
    return method == "__class_getitem__" or kind in found.touches


def _metaclasses(node: ast.ClassDef) -> set[str]:
    return {root_name(option.value) or "" for option in node.keywords if option.arg == "metaclass"}


def patched_classes(node: ast.stmt | None) -> frozenset[str]:
    """Return the classes to which the decorators of a function may add it, and their modules.

    They receive the class, as in `@d2l.add_to_class(Trainer)`, or find it in the annotation of `self`, as fastcore's
    `@patch` does.
    """
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.decorator_list:
        return frozenset()
    given = [one for made in node.decorator_list if isinstance(made, ast.Call) for one in made.args]
    given += [option.value for made in node.decorator_list if isinstance(made, ast.Call) for option in made.keywords]
    first = next(iter((*node.args.posonlyargs, *node.args.args)), None)
    if first is not None and first.arg in {"self", "cls"} and first.annotation is not None:
        given.append(_annotated(first.annotation))
    return frozenset(name for one in given for name in _classes_in(one))


def _annotated(annotation: ast.expr) -> ast.expr:
    """Return the expression of an annotation, also of one that is written as a string."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        with suppress(SyntaxError, ValueError):
            return ast.parse(annotation.value.strip(), mode="eval").body
    return annotation


def _classes_in(expression: ast.expr) -> Iterable[str]:
    match expression:
        case ast.Name(id=last) | ast.Attribute(attr=last) if last[:1].isupper():
            name = root_name(expression)
            return () if name is None else (name, ast.unparse(expression))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [name for part in parts for name in _classes_in(part)]
        case ast.BinOp(left=left, right=right):
            return [*_classes_in(left), *_classes_in(right)]
        case _:
            return ()
