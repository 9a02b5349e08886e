"""Methods that Python calls without a call in the text: properties, items, lengths, iteration, operators. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.analysis.call_effects import Behaviour, behaviour_of, changes_class, shared_fields
from jupyter_dlaas.analysis.effects import COLLECTS, walk_now, words
from jupyter_dlaas.analysis.syntax.names import Function, root_name, walk

__all__ = ["Accessors", "Site", "accessors_of", "sites"]

_BY_FUNCTION: Final[Mapping[str, tuple[str, ...]]] = {
    "len": ("__len__",),
    "bool": ("__bool__", "__len__"),
    **dict.fromkeys(("str", "print", "display", "format"), ("__str__", "__repr__", "__format__")),
    "repr": ("__repr__",),
    "hash": ("__hash__",),
    "abs": ("__abs__",),
    **dict.fromkeys(("int", "float", "round"), ("__int__", "__float__", "__index__")),
    "getattr": ("__getattr__", "__getattribute__"),
    "hasattr": ("__getattr__", "__getattribute__"),
    "setattr": ("__setattr__",),
}
_ITERATES: Final = ("__iter__", "__next__", "__getitem__", "__len__")
_ITERATING: Final = words("list tuple set frozenset dict sorted sum max min any all enumerate zip map filter iter next")
_OPERATORS: Final[Mapping[type[ast.AST], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.USub: "neg",
    ast.UAdd: "pos",
    ast.Invert: "invert",
}
_IMPLICIT: Final = (
    frozenset(name for names in _BY_FUNCTION.values() for name in names)
    | frozenset(_ITERATES)
    | frozenset(f"__{side}{name}__" for name in _OPERATORS.values() for side in ("", "r", "i"))
    | words(
        """__call__ __missing__ __contains__ __setitem__ __delitem__ __delattr__ __set__ __get__ __delete__
    __set_name__ __class_getitem__"""
    )
)
_DESCRIPTOR: Final[Mapping[str, str]] = {"__get__": "", "__set__": ".setter", "__delete__": ".deleter"}
_PROPERTIES: Final = words("property cached_property lazy_property classproperty")


@dataclass(frozen=True, slots=True)
class Accessors:
    """Methods of one class that Python calls implicitly, with the effects of those that have any."""

    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)  # "n", "n.setter", "__len__"
    draws: frozenset[str] = frozenset()  # those that call functions, which may draw random numbers

    def also(self, other: Accessors) -> Accessors:
        return Accessors({**other.behaviours, **self.behaviours}, self.draws | other.draws)


@dataclass(frozen=True, slots=True)
class Site:
    """Place where Python may call one of some methods of an object that a name holds."""

    name: str
    methods: tuple[str, ...]
    is_deep: bool = False  # also of the objects that it holds: `for c in counters: c.next`


def accessors_of(node: ast.ClassDef, known: Mapping[str, Accessors], stored: Set[str]) -> Accessors:
    """Return the class's own properties, descriptors and special methods that change something or call something.

    `known`: those of earlier classes, which may be descriptors. `stored`: attributes that the notebook assigns; a
    value that is computed once from one of them depends on when that is.
    """
    behaviours: dict[str, Behaviour] = {}
    draws: set[str] = set()
    shared: frozenset[str] | None = None
    for part in node.body:
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call):
            behaviours |= dict(_of_descriptor(part, node.name, known.get(_last(part.value.func), Accessors())))
        if not isinstance(part, ast.FunctionDef) or (name := _accessor(part)) is None:
            continue
        found = behaviour_of(part)
        is_once = _is_memo(part) or any(_last(one) == "cached_property" for one in part.decorator_list)
        touched = frozenset() if is_once and not _reads_stored(part, stored) else found.touched_params
        if _last_decorator(part) == "cached_property" and _reads_stored(part, stored):
            touched = frozenset({"self"})
        if part.name == "forward":
            name, touched = "__call__", touched if _accumulates(part) else frozenset()
        if shared is None:
            shared = shared_fields(node)
        touches = found.touches | ({node.name} if changes_class(part, shared) else frozenset())
        if touched or touches:
            behaviours[name] = Behaviour(touches=touches, touched_params=touched)
        if found.calls - {"len", "range", "isinstance", "print", "str", "int", "float"}:
            draws.add(name)
    return Accessors(behaviours, frozenset(draws))


def _of_descriptor(part: ast.Assign, owner: str, known: Accessors) -> Iterator[tuple[str, Behaviour]]:
    """Yield the accessors of an attribute that a descriptor provides; its state belongs to the class."""
    for target in part.targets:
        for method, suffix in _DESCRIPTOR.items() if isinstance(target, ast.Name) else ():
            one = known.behaviours.get(method)
            if one is not None and isinstance(target, ast.Name):
                touches = one.touches | {owner}
                yield f"{target.id}{suffix}", Behaviour(touches=touches, touched_params=one.touched_params)


def _reads_stored(method: Function, stored: Set[str]) -> bool:
    first = method.args.args[0].arg if method.args.args else "self"
    return any(
        isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Load)
        and part.attr in stored
        and root_name(part) == first
        for part in walk(method)
    )


def _last_decorator(method: ast.FunctionDef) -> str:
    return _last(method.decorator_list[-1]) if method.decorator_list else ""


def _accessor(method: ast.FunctionDef) -> str | None:
    for one in method.decorator_list:
        if isinstance(one, ast.Attribute) and one.attr in {"setter", "deleter"}:
            return f"{method.name}.{one.attr}"
        if _last(one) in _PROPERTIES:
            return method.name
    if method.name == "forward":  # of a module of torch: calling the object runs it
        return method.name
    return method.name if method.name in _IMPLICIT or method.name.startswith(("__getattr", "__setattr")) else None


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_memo(method: Function) -> bool:
    """Return whether a method changes its object only if a value is missing: a second call changes nothing."""
    first = method.args.args[0].arg if method.args.args else "self"
    changes = 0
    guarded = 0
    for part in walk(method):
        if isinstance(part, ast.Assign | ast.AugAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            changes += any(not isinstance(one, ast.Name) and root_name(one) == first for one in targets)
        elif isinstance(part, ast.If) and _tests_absence(part.test):
            for inner in ast.walk(ast.Module(body=part.body, type_ignores=[])):
                targets = inner.targets if isinstance(inner, ast.Assign) else []
                guarded += any(not isinstance(one, ast.Name) and root_name(one) == first for one in targets)
    return 0 < changes <= guarded and not any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in {"append", "add"}
        for part in walk(method)
    )


def _accumulates(method: Function) -> bool:
    """Return whether a method adds to its object's fields: the next call does not replace what this one stored."""
    first = method.args.args[0].arg if method.args.args else "self"
    for part in walk(method):
        if (
            isinstance(part, ast.AugAssign)
            and not isinstance(part.target, ast.Name)
            and root_name(part.target) == first
        ):
            return True
        function = part.func if isinstance(part, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in COLLECTS and root_name(function) == first:
            return True
    return False


def _tests_absence(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ops=[ast.NotIn() | ast.Is()]):
            return True
        case ast.UnaryOp(op=ast.Not()):
            return True
        case _:
            return False


def sites(node: ast.AST) -> Iterator[Site]:
    """Yield the places of a statement where Python may call special methods and properties immediately."""
    for part in walk_now([node]):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            yield Site(part.func.id, ("__call__",))
        match part:
            case ast.Attribute(value=owner, attr=attr, ctx=ctx):
                match ctx:
                    case ast.Load():
                        methods: tuple[str, ...] = (attr, "__getattr__", "__getattribute__")
                    case ast.Store():
                        methods = (f"{attr}.setter", "__setattr__")
                    case _:
                        methods = (f"{attr}.deleter", "__delattr__")
                yield from _at(owner, methods, is_deep=True)
            case ast.Subscript(value=owner, ctx=ctx):
                kind = {ast.Load: "get", ast.Store: "set"}.get(type(ctx), "del")
                yield from _at(
                    owner, (f"__{kind}item__", *(("__missing__", "__class_getitem__") if kind == "get" else ()))
                )
            case ast.Call(func=ast.Name(id=function), args=args) if args:
                if function in _BY_FUNCTION:
                    for arg in args:
                        yield from _at(arg, _BY_FUNCTION[function])
                elif function in _ITERATING:
                    for arg in args:
                        yield from _at(arg, _ITERATES, is_deep=True)
            case (
                ast.For(iter=source)
                | ast.AsyncFor(iter=source)
                | ast.comprehension(iter=source)
                | ast.Starred(value=source)
            ):
                yield from _at(source, _ITERATES, is_deep=True)
            case ast.Compare(left=left, ops=operators, comparators=others):
                for operator, other in zip(operators, others, strict=True):
                    if isinstance(operator, ast.In | ast.NotIn):
                        yield from _at(other, ("__contains__", "__iter__"))
                    elif type(operator) in _OPERATORS:
                        for one in (left, other):
                            yield from _at(one, (f"__{_OPERATORS[type(operator)]}__",))
            case ast.BinOp(left=left, op=operation, right=right):
                verb = _OPERATORS[type(operation)]
                yield from _at(left, (f"__{verb}__",))
                yield from _at(right, (f"__r{verb}__",))
            case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
                yield from _at(operand, (f"__{_OPERATORS[type(sign)]}__",))
            case ast.AugAssign(target=target, op=operation):
                verb = _OPERATORS[type(operation)]
                yield from _at(target, (f"__i{verb}__", f"__{verb}__"))
            case ast.FormattedValue(value=value):
                yield from _at(value, ("__str__", "__format__", "__repr__"))
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.UnaryOp(operand=test):
                yield from _at(test, ("__bool__", "__len__"))
            case ast.Expr(value=value):
                yield from _at(value, ("__repr__", "_repr_html_"))
            case _:
                continue


def _at(owner: ast.expr, methods: tuple[str, ...], *, is_deep: bool = False) -> Iterator[Site]:
    if isinstance(owner, ast.Name | ast.Attribute | ast.Subscript | ast.Starred | ast.Call):
        name = root_name(owner)
        if name is not None:
            yield Site(name, methods, is_deep)
        if isinstance(owner, ast.Call) and is_deep:
            for arg in owner.args:
                yield from _at(arg, methods, is_deep=True)
