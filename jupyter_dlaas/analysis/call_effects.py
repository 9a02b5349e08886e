"""Effects of calling the notebook's own functions and methods, as far as their text shows. Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jupyter_dlaas.analysis.effects import (
    COLLECTS,
    FITS,
    KEEPS_ARGUMENTS,
    NESTED,
    SEEDS,
    Call,
    effects_of,
    is_seed,
    is_step,
    objects_in,
    reach,
    verb_of,
    walk_now,
)
from jupyter_dlaas.analysis.gradients import NO_GRADIENTS, Gradients, gradients_of
from jupyter_dlaas.analysis.optimisers import optimised_names
from jupyter_dlaas.analysis.syntax.names import Function, root_name, walk

__all__ = [
    "Behaviour",
    "OwnMethod",
    "behaviour_of",
    "changed_by_given_code",
    "changed_by_hooks",
    "changes_class",
    "named_bases",
    "names_of_bases",
    "own_methods",
    "shared_fields",
]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Effects of a call of one of the notebook's own functions."""

    touches: frozenset[str] = frozenset()  # module-level objects
    params: tuple[str, ...] = ()
    touched_params: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()  # module-level objects that are certainly different afterwards
    altered_params: frozenset[str] = frozenset()
    data_params: frozenset[str] = frozenset()  # it iterates over them, and neither changes nor trains them
    trains: bool = False
    trained: frozenset[str] = frozenset()  # module-level objects that it trains
    trained_params: frozenset[str] = frozenset()
    prompts: bool = False  # input()
    seeds: bool = False
    keeps: bool = False  # keeps state between calls, in a closure or a default argument
    yields: bool = False  # its value is consumed by iteration
    calls: frozenset[str] = frozenset()  # functions and, with a dot, methods that it calls
    mentions: frozenset[str] = frozenset()  # outer names that it may pass on
    made: Behaviour | None = None  # effects of its inner functions, one of which it may return
    inner_params: frozenset[str] = frozenset()  # its parameters that these change: `def patch(cls): def inner(f): …`
    line: int = 0
    gradients: Gradients = NO_GRADIENTS  # effects of its own text on gradients
    indexed: frozenset[str] = frozenset()  # outer names of which it reads items

    @property
    def trains_only_arguments(self) -> bool:
        """Return whether a method trains objects that it is given, and not its own object."""
        return bool(self.trained_params) and "self" not in self.trained_params | self.touched_params

    def touched_args(self, call: Call) -> frozenset[str]:
        """Return the variables among a call's arguments that are different afterwards."""
        found: set[str] = set()
        for param, names in self._bound_arguments(call):
            if param is None or param in self.touched_params or param not in self.params:
                found |= names if self.touched_params else set()
        return frozenset(found)

    def given_for(self, call: Call, params: frozenset[str]) -> frozenset[str]:
        """Return the variables that a call passes for these parameters."""
        known = [(param, names) for param, names in self._bound_arguments(call) if params - {"self"}]
        return frozenset().union(*(names for param, names in known if param in params or not self.params))

    def certain_args(self, call: Call, helpers: Iterable[Behaviour]) -> frozenset[str]:
        """Return the variables that a call certainly changes; a helper of the function may have got any of them."""
        return call.args if any(one.altered_params for one in helpers) else self.given_for(call, self.altered_params)

    def _bound_arguments(self, call: Call) -> Iterator[tuple[str | None, frozenset[str]]]:
        named = self.params[1:] if call.receiver and self.params[:1] == ("self",) else self.params
        for key, names in call.arguments:
            yield key if isinstance(key, str) else named[key] if 0 <= key < len(named) else None, names

    def also(self, other: Behaviour) -> Behaviour:
        return replace(
            self,
            touches=self.touches | other.touches,
            touched_params=self.touched_params | other.touched_params,
            trains=self.trains or other.trains,
            altered=self.altered | other.altered,
            altered_params=self.altered_params | other.altered_params,
            trained=self.trained | other.trained,
            trained_params=self.trained_params | other.trained_params,
            prompts=self.prompts or other.prompts,
            seeds=self.seeds or other.seeds,
            calls=self.calls | other.calls,
            keeps=self.keeps or other.keeps,
            gradients=self.gradients.also(other.gradients),
            indexed=self.indexed | other.indexed,
        )


@dataclass(frozen=True, slots=True)
class OwnMethod:
    """Method of a class of the notebook."""

    owner: str  # the class of the object on which it is called
    node: ast.FunctionDef | ast.AsyncFunctionDef
    behaviour: Behaviour


def _is_of_own(function: ast.expr, own: Collection[str]) -> bool:
    """Return whether a method is called on a new object or on one that a local variable holds."""
    if not isinstance(function, ast.Attribute):
        return False
    return isinstance(function.value, ast.Call) or root_name(function.value) in own


def behaviour_of(function: Function) -> Behaviour:
    """Return the effects of a call of this function, from its own text; its callees are looked up elsewhere."""
    body = function.body if isinstance(function.body, list) else [ast.Expr(function.body)]
    effects = effects_of(body)
    held: dict[str, frozenset[str]] = {}
    for hold in effects.holds:
        for target in hold.targets:
            held[target] = held.get(target, frozenset()) | hold.objects
    touched: set[str] = set(effects.touches)
    for call in effects.calls:
        # flags and gradients that each user sets again; only the optimiser's step counts as a change
        mode_only = call.verb in {"eval", "train", "zero_grad", "backward"}
        touched |= call.written
        if call.only_shows or mode_only or not (call.is_dropped or call.is_in_place):
            continue
        touched |= {call.receiver} if call.receiver else set()
        if call.is_dropped and call.verb not in KEEPS_ARGUMENTS:
            touched |= call.args
    inside = list(walk_now(body))
    nested = [(getattr(n, "name", ""), behaviour_of(n)) for n in inside if isinstance(n, NESTED)]
    run = [(one, calls) for name, one in nested if (calls := _runs_of(name, effects.calls))]
    for one, calls in run:
        touched = touched.union(one.touches, *(one.touched_args(call) for call in calls))
    reached = reach(touched, held)
    args = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    args += [a for a in (function.args.vararg, function.args.kwarg) if a is not None]
    params = {a.arg for a in args}
    declared = {name for n in inside if isinstance(n, ast.Global) for name in n.names}
    outer = {name for n in inside if isinstance(n, ast.Nonlocal) for name in n.names}
    stored = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - declared - outer
    own = params | stored
    # `torch.Generator().manual_seed(0)` seeds only an object of this call.
    own_streams = {(n.lineno, verb_of(n.func)) for n in inside if isinstance(n, ast.Call) and _is_of_own(n.func, own)}
    made: Behaviour | None = None
    inner_params: frozenset[str] = frozenset()
    for _, one in nested:
        inner_params |= one.touches & params
        keeps = one.keeps or not own.isdisjoint(one.touches)  # it keeps state in a variable of this call
        one = replace(one, touches=one.touches - own, keeps=keeps)
        made = one if made is None else made.also(one)
    trained = reach(optimised_names(body) | _stepped(effects.calls), held)
    altered = effects.altered
    found = Behaviour(
        touches=(reached - own) | _default_objects(function, reached & params),
        params=tuple(a.arg for a in [*function.args.posonlyargs, *function.args.args]),
        touched_params=reached & params,
        trains=any(is_step(call) or (call.verb in FITS - {"train"} and not call.function) for call in effects.calls),
        altered=altered - own,
        altered_params=altered & params - {"self", "cls"},
        data_params=(effects.passed & params) - altered - trained,
        trained=(trained - own) | _default_objects(function, trained & params),
        trained_params=trained & params,
        prompts=any(call.function == "input" for call in effects.calls) and "input" not in own,
        seeds=any(
            call.verb in SEEDS or (call.is_dropped and is_seed(call.verb))
            for call in effects.calls
            if (call.line, call.verb) not in own_streams
        ),
        keeps=bool(outer) or not reached.isdisjoint(_remembering(function)),
        yields=any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inside),
        calls=frozenset(c.function or f".{c.verb}" for c in effects.calls) - own,
        mentions=effects.values - own,
        made=made,
        inner_params=inner_params,
        line=getattr(function, "lineno", 0),
        gradients=gradients_of(ast.Module([*body], [])),
        indexed=effects.indexed - own,
    )
    for one, _ in run:
        found = found.also(
            Behaviour(
                trains=one.trains,
                trained=one.trained - own,
                prompts=one.prompts,
                seeds=one.seeds,
                calls=one.calls - own,
            )
        )
    return found


def changed_by_given_code(node: ast.AST) -> frozenset[str]:
    """Return the objects changed by lambdas and methods that a statement gives to its calls: `map(found.add, xs)`."""
    found: set[str] = set()
    for call in walk_now([node]):
        if not isinstance(call, ast.Call):
            continue
        given = [*call.args, *(option.value for option in call.keywords)]
        found |= {root_name(one) or "" for one in given if isinstance(one, ast.Attribute) and one.attr in COLLECTS}
        for function in (one for one in given if isinstance(one, ast.Lambda)):
            arguments = {part.arg for part in walk(function.args) if isinstance(part, ast.arg)}
            changed = _changed_by_lambda(function)
            found |= changed - arguments
            if changed & arguments:  # the call passes it these objects, or what they hold
                others = [one for one in given if one is not function]
                others += [call.func.value] if isinstance(call.func, ast.Attribute) else []
                found = found.union(*(objects_in(one) for one in others))
    return frozenset(found)


def changed_by_hooks(node: ast.stmt, own: Mapping[str, Behaviour]) -> dict[str, frozenset[str]]:
    """Map objects to those that the functions change that a statement gives them: lambdas, and made by own functions.

    `hooks.end = lambda k: calls.append(k)`, `net.register_forward_hook(keep("fc"))`.
    """
    found: dict[str, frozenset[str]] = {}
    for call in walk_now([node]):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr.startswith("register")
        ):
            changed = frozenset[str]().union(*(_changed_by_hook(arg, own) for arg in call.args))
            if changed and (root := root_name(call.func)) is not None:
                found[root] = found.get(root, frozenset()) | changed
    return found | _changed_by_lambdas(node)


def _changed_by_hook(hook: ast.expr, own: Mapping[str, Behaviour]) -> frozenset[str]:
    if isinstance(hook, ast.Lambda):
        return frozenset(_changed_by_lambda(hook) - {part.arg for part in walk(hook.args) if isinstance(part, ast.arg)})
    maker = own.get(verb_of(hook.func)) if isinstance(hook, ast.Call) else None
    return maker.made.touches if maker is not None and maker.made is not None else frozenset()


def _changed_by_lambdas(node: ast.stmt) -> dict[str, frozenset[str]]:
    """Map the roots of an assignment's targets to the objects that the lambdas in its value certainly change."""
    if not isinstance(node, ast.Assign):
        return {}
    changed: set[str] = set()
    for function in (one for one in walk_now([node.value]) if isinstance(one, ast.Lambda)):
        arguments = {part.arg for part in walk(function.args) if isinstance(part, ast.arg)}
        changed |= _changed_by_lambda(function) - arguments
    return {name: frozenset(changed) for name in map(root_name, node.targets) if name and changed}


def _changed_by_lambda(function: ast.Lambda) -> set[str]:
    """Return the names whose objects a lambda certainly changes. A training or a mapping in it does not count."""
    effects = effects_of([ast.Return(value=function.body)])
    in_place = {c.receiver for c in effects.calls if c.is_in_place and c.verb not in FITS | {"apply", "compile"}}
    return {name for name in in_place if name}.union(effects.touches, *(call.written for call in effects.calls))


def _stepped(calls: Sequence[Call]) -> frozenset[str]:
    """Return the optimisers that take a step, and the receivers of `fit`."""
    fitted = {call.receiver for call in calls if is_step(call) or call.verb in FITS - {"train"}} - {None}
    return frozenset(name for name in fitted if name) - {c.receiver for c in calls if c.verb == "backward"}


def _runs_of(name: str, calls: Sequence[Call]) -> list[Call]:
    """Return the calls that run an inner function, or pass it to code that may run it."""
    return [call for call in calls if name and (call.function == name or name in call.args)]


def _defaults(function: Function) -> list[tuple[str, ast.expr]]:
    """Return the parameters that have a default, with its expression."""
    args = [*function.args.posonlyargs, *function.args.args]
    pairs = list(zip(args[::-1], function.args.defaults[::-1], strict=False))
    pairs += [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d is not None]
    return [(a.arg, d) for a, d in pairs]


def _remembering(function: Function) -> set[str]:
    """Return the parameters whose default is an object that persists between calls: `def note(x, log=[])`."""
    return {name for name, d in _defaults(function) if isinstance(d, ast.List | ast.Dict | ast.Set | ast.Call)}


def _default_objects(function: Function, params: Collection[str]) -> frozenset[str]:
    """Return the notebook's variables that are the defaults of these parameters: `def note(x, log=losses)`."""
    return frozenset().union(*(objects_in(default) for name, default in _defaults(function) if name in params))


def own_methods(node: ast.ClassDef) -> dict[str, Behaviour]:
    """Return the effects of each method of a class; changing `self` counts as changing an argument.

    A method also trains if another method that it calls on its object does.
    """
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    shared = shared_fields(node)
    found = {method.name: behaviour_of(method) for method in methods}
    for method in methods:
        if changes_class(method, shared):
            one = found[method.name]
            found[method.name] = replace(one, touches=one.touches | {node.name}, altered=one.altered | {node.name})
    for method in methods:
        if any(isinstance(call, ast.Call) and _passes_itself(call) for call in walk(method)):
            one = found[method.name]
            found[method.name] = replace(one, trained_params=one.trained_params | {"self"})
    trains = {name for name, behaviour in found.items() if behaviour.trains}
    if trains and len(found) > 1:
        own_calls = {method.name: _own_calls(method) & found.keys() for method in methods}
        called_by: dict[str, frozenset[str]] = {}
        for name, called in own_calls.items():
            for other in called:
                called_by[other] = called_by.get(other, frozenset()) | {name}
        training = reach(trains, called_by)
        for name in training if called_by else ():
            itself = {"self"} if own_calls[name] & training else set()
            found[name] = replace(found[name], trains=True, trained_params=found[name].trained_params | itself)
    return found


def _passes_itself(call: ast.Call) -> bool:
    return any(isinstance(arg, ast.Name) and arg.id == "self" for arg in call.args)


def shared_fields(node: ast.ClassDef) -> frozenset[str]:
    """Return the containers that a class binds in its body and no method binds for one object."""
    made = [part for part in node.body if isinstance(part, ast.Assign)]
    kinds = ast.List | ast.Dict | ast.Set | ast.Call | ast.ListComp | ast.DictComp
    names = {t.id for part in made if isinstance(part.value, kinds) for t in part.targets if isinstance(t, ast.Name)}
    own = {
        part.attr
        for part in (ast.walk(node) if names else ())
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and isinstance(part.value, ast.Name)
    }
    return frozenset(names - own)


def changes_class(method: Function, shared: Collection[str]) -> bool:
    """Return whether a method changes its object's class: `type(self).made += 1`, `self.log.append(x)` of the class."""
    for part in walk(method):
        changed: ast.expr | None = None
        if isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            changed = part
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in COLLECTS:
            changed = part.func
        while isinstance(changed, ast.Attribute | ast.Subscript):
            match changed.value:
                case ast.Call(func=ast.Name(id="type")) | ast.Attribute(value=ast.Name(), attr="__class__"):
                    return True
                case ast.Attribute(value=ast.Name(id="self"), attr=attr) if attr in shared:
                    return True
                case inner:
                    changed = inner
    return False


def _own_calls(method: Function) -> set[str]:
    """Return the methods that a method calls on its own object."""
    calls = [part.func for part in walk(method) if isinstance(part, ast.Call)]
    return {f.attr for f in calls if isinstance(f, ast.Attribute) and root_name(f.value) in {"self", "cls"}}


def names_of_bases(node: ast.ClassDef) -> list[str]:
    """Return the names at the roots of a class's bases and of its metaclass, which run code when it is defined."""
    given = [*node.bases, *(option.value for option in node.keywords if option.arg == "metaclass")]
    return [name for name in map(root_name, given) if name is not None]


def named_bases(node: ast.ClassDef) -> list[str]:
    """Return the names of the bases and of the metaclass without type arguments, such as `Base` and `d2l.Module`."""
    given = [*node.bases, *(option.value for option in node.keywords if option.arg == "metaclass")]
    plain = [one.value if isinstance(one, ast.Subscript) else one for one in given]
    return [ast.unparse(one) for one in plain if isinstance(one, ast.Name | ast.Attribute)]
