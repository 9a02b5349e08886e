"""Data flow: statements converted to steps, with their effects given all earlier statements. Pure, forward in time.

A step knows the names that its calls may read (function bodies read globals when called, not when defined), the objects
that it changes through other names (`layer = model.fc; layer.weight.zero_()`), whether it trains, and whether it can
be run again.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from jupyter_dlaas.analysis.call_effects import (
    Behaviour,
    behaviour_of,
    changed_by_given_code,
    changed_by_hooks,
)
from jupyter_dlaas.analysis.cells import Statement
from jupyter_dlaas.analysis.class_effects import OwnClasses, patched_classes, stored_attributes
from jupyter_dlaas.analysis.databases import Databases
from jupyter_dlaas.analysis.effects import (
    FITS,
    KEEPS_ARGUMENTS,
    PROVIDED,
    QUIET_MODULES,
    SEEDS,
    SETS,
    Call,
    Effects,
    dotted_names,
    effects_of,
    joined,
    loaded_modules,
    reach,
    verb_of,
    verb_of_value,
    walk_now,
    words,
)
from jupyter_dlaas.analysis.gradients import Gradients, gradients_of, of_call
from jupyter_dlaas.analysis.kernel_types import ImmutableNames
from jupyter_dlaas.analysis.library_state import LibraryState, may_register
from jupyter_dlaas.analysis.model import ModuleState
from jupyter_dlaas.analysis.own_modules import OwnModules
from jupyter_dlaas.analysis.steps import Step, Touch, Trace, nothing
from jupyter_dlaas.analysis.syntax.constants import (
    DEFINITIONS,
    binds_plain,
    is_definition,
    only_defines,
    values_by_name,
)
from jupyter_dlaas.analysis.syntax.consumable_values import is_consumable, is_counting_pipeline
from jupyter_dlaas.analysis.syntax.flow import Flow
from jupyter_dlaas.analysis.syntax.global_bindings import bound_by_calls, without_own_globals
from jupyter_dlaas.analysis.syntax.names import flow_of, root_name, walk
from jupyter_dlaas.analysis.syntax.namespace_access import NamespaceAccess, is_mentioned
from jupyter_dlaas.analysis.syntax.text_lookups import binds_as_text
from jupyter_dlaas.analysis.trained_objects import Trainings

PROMPTING_MODULES = frozenset({"ipywidgets", "google.colab.files", "getpass"})
DRAWS = words("one_batch show_batch")  # fastai's loaders have their own random stream
QUIET_OF_GENERATORS = words("get_state initial_seed getstate close fileno getvalue tell")
DESCRIBES = words("print display repr str type len id isinstance hasattr")  # unless given `*values` or `file=`
MAKES_CLASS = words("new_class make_dataclass")
_CACHES = words("cache lru_cache memoize memoized cached")
SHELL = "get_ipython(), which a job does not have"
OPERATORS = frozenset(f"__{one}__" for one in words("or and xor add sub mul matmul truediv floordiv mod pow"))


def trace(
    statements: Sequence[Statement], immutable: Collection[str] = (), modules: Mapping[str, ModuleState] | None = None
) -> Trace:
    """Process the statements in order of execution.

    `immutable`: names whose last values no call can change. `modules`: states of the user's modules.
    """
    nodes = [statement.node for statement in statements]
    tracer = Tracer(ImmutableNames(immutable, nodes), modules)
    tracer.classes.reads_subclasses = any("__subclasses__" in statement.source for statement in statements)
    if any(word in statement.source for statement in statements for word in ("cache", "property")):
        tracer.classes.stored = stored_attributes(nodes)
        tracer.unstable = _unstable_names(nodes)
    if any(is_mentioned(statement.source) for statement in statements):
        tracer.access.read(nodes)
    steps = [tracer.step(statement) for statement in statements]
    return tracer.trace(steps)


class Tracer:
    """State after the statements so far. Grows step by step."""

    def __init__(
        self, immutable_names: ImmutableNames | None = None, modules: Mapping[str, ModuleState] | None = None
    ) -> None:
        self.immutable_names = immutable_names or ImmutableNames((), ())
        self.own_modules = OwnModules(modules or {})
        self.immutable: frozenset[str] = frozenset()  # while the statement runs
        self.lazy_annotations = False
        self.seen: set[str] = set()
        self.plain: set[str] = set()  # bound by imports, definitions, constants
        self.modules: set[str] = set()
        self.prompting: set[str] = set()  # names of widget libraries
        self.late: dict[str, frozenset[str]] = {}
        self.objects: dict[str, frozenset[str]] = {}
        self.holders: dict[str, set[str]] = {}  # inverse of `objects`, to avoid searches
        self.makers: dict[str, frozenset[str]] = {}
        self.made: dict[str, set[str]] = {}  # inverse of `makers`
        self.behaviours: dict[str, Behaviour] = {}
        self.classes = OwnClasses(self.seen, self.objects, self.makers, self.late)
        self.methods = self.classes.methods
        self.globals_of: dict[str, frozenset[str]] = {}
        self.binding: set[str] = set()  # own functions that bind globals
        self.growing: set[str] = set()  # dictionaries that reading changes: `ids = defaultdict(lambda: len(ids))`
        # object -> own functions passed to it: `Thread(target=work)`
        self.passed_functions: dict[str, frozenset[str]] = {}
        known = (self.behaviours, self.methods, self.passed_functions, self.objects, self.modules)
        self.trainings = Trainings(*known, self.own_modules.trainer, self.classes)
        self.iterators: set[str] = set()  # consumed by iteration
        self.module_roots: dict[str, str] = {}  # `plt` -> "matplotlib"
        self.caching: set[str] = set()  # own functions that keep their values: `@cache`
        self.unstable: frozenset[str] = frozenset()  # names that are bound or changed more than once
        self.access = NamespaceAccess()
        self.library = LibraryState(self.modules, self.module_roots)
        self.configuring: set[str] = set()  # own functions that change modules
        self.databases = Databases()
        self._groups = [self.plain, self.modules, self.prompting, self.iterators, self.growing]
        self._groups += [self.configuring, self.binding, self.caching]

    def trace(self, steps: Sequence[Step]) -> Trace:
        """Return the state as a trace. It shares growing data, so use it before the next step."""
        holds = {name: self.objects.get(name, frozenset()) | self.makers.get(name, frozenset()) for name in self.seen}
        definitions = frozenset(self.behaviours) | frozenset(self.classes.names)
        return Trace(tuple(steps), holds, definitions, self.late, self.behaviours)

    def _gradients(self, node: ast.stmt) -> Gradients:
        return gradients_of(node, self.modules, self._called, self.trainings.optimisers)

    def step(self, statement: Statement) -> Step:
        """Return the step of the next statement."""
        node = statement.node
        if node is None:
            self.immutable_names.advance(())
            return nothing(statement)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            self.lazy_annotations = self.lazy_annotations or any(a.name == "annotations" for a in node.names)
        node = self.own_modules.explicit(node)
        rewritten = self.access.rewritten(node, statement.source, self.seen)
        original, node = statement, rewritten.node
        assert original.node is not None
        statement = replace(statement, node=node)
        flow = flow_of(node, lazy_annotations=self.lazy_annotations)
        if rewritten.node is not original.node:
            flow = rewritten.completed(flow, flow_of(original.node, lazy_annotations=self.lazy_annotations))
        if statement.ran_node is not None:
            node = statement.ran_node
            flow = replace(flow_of(node, lazy_annotations=self.lazy_annotations), binds=flow.binds)
        if flow.globals_bound and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            flow = without_own_globals(node, flow)
        elif self.binding:
            flow = bound_by_calls(node, flow, self._globals_bound_by)
        effects = effects_of([node])
        reads = flow.reads | flow.soft
        self.immutable = self.immutable_names.advance(reads)
        if isinstance(node, DEFINITIONS):  # its reads happen later, except in decorators and the like
            ran = frozenset().union(*(_named(call) for call in effects.calls)) - {node.name}
            if any(root_name(one) in self.behaviours for one in node.decorator_list):  # it may call what it decorates
                ran |= flow.late - {node.name}
        else:
            # a lambda that is only named runs later; others may run now: `sorted(xs, key=lambda x: x + b)`
            ran = reads if only_defines(node) else reads | flow.late
        reads_late = self._late_reads(ran, flow)
        uses = frozenset(n for n in ran | reads_late if n in self.behaviours) if effects.calls else frozenset()
        behaviour = Behaviour()
        for name in sorted(uses):
            behaviour = behaviour.also(self.behaviours[name])
        globals_bound = frozenset().union(*(self.globals_of.get(name, frozenset()) for name in sorted(uses)))
        self._hold(effects, flow)
        self._hold_lambdas(node)
        implicit = self.classes.implicit(node)
        behaviour = behaviour.also(implicit.behaviour)
        touches = self._touches(effects, behaviour, uses, statement, implicit.receivers)
        states = self.own_modules.changed(effects, behaviour)
        touches += tuple(Touch(state, frozenset({state}), frozenset({state})) for state in sorted(states))
        self.trainings.note(node, effects)
        fits, trained, trains = self.trainings.training(effects, uses, flow.binds)
        prompts = self._prompt_of(node, reads, uses)  # before its own bindings: it may rebind a function that it calls
        certain, data = self._certain(effects, uses)
        sets_up = self.library.configures(node, effects.calls)
        self._remember(node, flow, self._carried(node, effects, reads))
        for name in flow.binds if (read := self.own_modules.note(node, flow.binds)) else ():
            self.late[name] |= read
        changes: frozenset[str] = frozenset().union(*(touch.affects for touch in touches))
        if touches:
            later = joined([flow.late, self._late_of(reads)])
            sums: dict[int, tuple[frozenset[str], frozenset[str]]] = {}  # many names share one set
            for name in changes if later else ():
                known = self.late.get(name, frozenset())
                if id(known) not in sums:
                    sums[id(known)] = (known, joined([known, later]))
                self.late[name] = sums[id(known)][1]
        own_setup = behaviour.seeds or not self.configuring.isdisjoint(uses)
        sets_up = sets_up or (own_setup and isinstance(node, ast.Expr) and not trains)
        loads = loaded_modules(node)
        gradients = Gradients() if isinstance(node, DEFINITIONS) else self._gradients(node)
        is_star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        is_star = is_star or (bool(effects.calls) and binds_as_text(walk_now([node])))
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        registers = may_register(node)
        is_special = bool(loads) or sets_up or is_star or is_future or any(gradients) or registers
        return Step(
            statement=original,
            flow=flow,
            reads_late=reads_late,
            touches=touches,
            globals_bound=globals_bound,
            uses=uses,
            loads=loads,
            dotted=self._dotted(node),
            is_definition=is_definition(node) and not touches,
            is_setup=sets_up,
            saves=any(call.saves or self.databases.writes(call, self.objects) for call in effects.calls),
            may_register=registers,
            is_star=is_star,
            is_future=is_future,
            trains=trains,
            trained=trained,
            passive=self.trainings.passive(changes) | (data & changes),
            altered=(effects.altered | behaviour.altered | certain | self._consumed(effects)) - self.modules,
            fits=fits,
            gradients=gradients,
            foreign=statement.foreign or prompts or (SHELL if rewritten.needs_shell else ""),
            calls=effects.calls,
            changes=changes,
            is_plain=not is_special and statement.ran == "yes",
            provides=flow.binds | flow.deletes | globals_bound | changes,
            may_draw=implicit.may_draw,
            runs_text=rewritten.runs_text,
        )

    def _called(self, call: Call) -> Gradients:
        return of_call(call, self.behaviours, self.methods)

    def _dotted(self, node: ast.stmt) -> frozenset[str]:
        pairs = [name.split(".") for name in dotted_names(node)]
        return frozenset(f"{self.module_roots[root]}.{part}" for root, part in pairs if root in self.module_roots)

    # late reads
    def _late_of(self, names: Iterable[str]) -> frozenset[str]:
        return joined([self.late[name] for name in names if name in self.late])

    def _closure(self, names: Iterable[str]) -> frozenset[str]:
        return reach(names, self.late)

    def _globals_bound_by(self, function: str) -> frozenset[str]:
        """Return the globals that a call of an own function binds, also in functions that it calls."""
        called = {function} | self._closure([function]) if function in self.behaviours else set()
        return frozenset().union(*(self.globals_of[name] for name in called & self.binding))

    def _late_reads(self, ran: frozenset[str], flow: Flow) -> frozenset[str]:
        """Return the names that what ran may read by calls, without those that only the statement itself reads."""
        found = self._closure(ran)
        if not flow.soft:
            return found - flow.reads
        late = {id(names): names for other in found if (names := self.late.get(other))}  # many names share one set
        return found - flow.reads - {name for name in flow.soft if not any(name in one for one in late.values())}

    def _carried(self, node: ast.stmt, effects: Effects, reads: frozenset[str]) -> frozenset[str]:
        """Return the read names whose code may persist in the bound value: a number has none, an object may."""
        if isinstance(node, DEFINITIONS):
            return reads
        called = {call.function for call in effects.calls if call.function is not None}
        only_called = (called & self.behaviours.keys()) - effects.values
        return reads - {name for name in only_called if not self._hands_on_code(name)}

    def _hands_on_code(self, function: str) -> bool:
        """Return whether a function's result may contain code of the notebook."""
        for name in {function} | self._closure([function]):
            own = self.behaviours.get(name)
            if name in self.classes.names or (own is not None and own.made is not None):
                return True
            if own is not None and any(n in self.behaviours or n in self.classes.names for n in own.mentions):
                return True
        return False

    def _remember(self, node: ast.stmt, flow: Flow, reads: frozenset[str]) -> None:
        """Record the names that bound objects read when used, and the kinds of the objects."""
        late = joined([flow.late, self._late_of(reads)])
        is_plain = binds_plain(node)
        wrapped = self._wrapped(node)
        values = dict(values_by_name(node))
        for name in flow.binds:
            self.seen.add(name)
            self.late[name] = late if name in flow.kills else joined([self.late.get(name, frozenset()), late])
            self.behaviours.pop(name, None)
            self.globals_of.pop(name, None)
            self.classes.forget(name)
            for group in self._groups:
                group.discard(name)
            if self._is_consumable(values.get(name)):
                root = root_name(values[name])
                if root in self.iterators and root != name:  # passes of the one count for the other
                    _link(self.objects, self.holders, name, self.objects.get(name, frozenset()) | {root})
                self.iterators.add(name)
            if verb_of_value(values.get(name)) == "defaultdict":
                self.growing.add(name)
            if is_plain:
                self.plain.add(name)
                _link(self.objects, self.holders, name, frozenset())
                _link(self.makers, self.made, name, frozenset())
        self.library.note(node)
        self.databases.note(node, self.library.imported)
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.behaviours[name] = self.classes.with_properties(self._decorated(node), node)
                self.globals_of[name] = flow.globals_bound
                self.binding |= {name} if flow.globals_bound else set()
                makers = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
                if _CACHES & {verb_of(one) for one in makers}:
                    self.caching.add(name)
                if self.library.configures_inside(node):
                    self.configuring.add(name)
            case ast.ClassDef(name=name):
                self.globals_of[name] = flow.globals_bound
                self.classes.define(node, flow.reads)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as function):
                self.behaviours[name] = behaviour_of(function)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call()) if wrapped is not None:
                self.behaviours[name], self.globals_of[name] = wrapped
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.Try() | ast.TryStar() | ast.If() | ast.With():  # `try: import wandb` and similar
                for part in walk_now([node]):
                    if isinstance(part, ast.Import | ast.ImportFrom):
                        self._import(part)
            case _:
                return

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        source = (node.module or "") if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:
            bound = alias.asname or (alias.name if source is not None else alias.name.partition(".")[0])
            self.module_roots[bound] = (source or alias.name).partition(".")[0]
            if source is None or bound.islower():
                self.modules.add(bound)
            root = alias.name.partition(".")[0] if source is None else source
            if root in PROMPTING_MODULES or f"{source}.{alias.name}" in PROMPTING_MODULES:
                self.prompting.add(bound)

    def _wrapped(self, node: ast.stmt) -> tuple[Behaviour, frozenset[str]] | None:
        """Return the effects of a wrapped own function: `step = jit(step)`, `f = partial(g, 2)`, `up = counter()`."""
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            maker = self.behaviours.get(node.value.func.id)
            if maker is not None and maker.made is not None:
                return maker.made, frozenset()
        args = node.value.args if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else []
        for arg in args:
            if isinstance(arg, ast.Name) and arg.id in self.behaviours:
                return self.behaviours[arg.id], self.globals_of.get(arg.id, frozenset())
        return None

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Behaviour:
        """Return the effects of a call of a function, including its own decorators."""
        found = behaviour_of(node)
        for decorator in node.decorator_list:
            name = root_name(decorator)
            own = self.behaviours.get(name or "")
            if own is not None and own.made is not None:
                found = found.also(own.made)
        return found

    def _is_consumable(self, value: ast.expr | None) -> bool:
        """Return whether reading a value changes it."""

        def is_generator(function: str) -> bool:
            return function in self.behaviours and self.behaviours[function].yields

        return is_consumable(value, self.iterators, is_generator) or (
            is_counting_pipeline(value, self.iterators) and "tensorflow" in self.module_roots.values()
        )

    # changes
    def _hold(self, effects: Effects, flow: Flow) -> None:
        for hold in effects.holds:
            objects = frozenset(n for n in hold.objects if self._is_object(n))
            given = frozenset(n for n in hold.objects if n in self.behaviours)
            given = given.union(*(self.passed_functions[n] for n in sorted(objects & self.passed_functions.keys())))
            for target in hold.targets - self.modules:
                is_new = hold.is_sure and target in flow.kills and target not in hold.objects
                before, makers = self.objects.get(target, frozenset()), self.makers.get(target, frozenset())
                _link(self.objects, self.holders, target, objects if is_new else before | objects)
                _link(self.makers, self.made, target, hold.makers if is_new else makers | hold.makers)
                for maker in hold.makers & self.classes.keeping:  # `config = Config()` is the class's only object
                    known = self.objects.get(maker, frozenset())
                    _link(self.objects, self.holders, maker, known | {target})
                kept = frozenset() if is_new else self.passed_functions.get(target, frozenset())
                if given | kept:
                    self.passed_functions[target] = given | kept
                else:
                    self.passed_functions.pop(target, None)

    def _hold_lambdas(self, node: ast.stmt) -> None:
        """Record the lambdas and hooks that a statement gives to an object: `hooks.end = lambda k: calls.append(k)`."""
        for target, changed in changed_by_hooks(node, self.behaviours).items():
            name = f"lambdas of {target} at {id(node)}"
            self.behaviours[name] = Behaviour(touches=changed)
            self.passed_functions[target] = self.passed_functions.get(target, frozenset()) | {name}

    def _is_object(self, name: str) -> bool:
        return name not in self.plain and name not in self.immutable

    def _touches(
        self,
        effects: Effects,
        behaviour: Behaviour,
        uses: frozenset[str],
        statement: Statement,
        receivers: frozenset[str],
    ) -> tuple[Touch, ...]:
        touched = set(effects.touches | receivers | patched_classes(statement.node))
        shows_value = statement.is_last and isinstance(statement.node, ast.Expr)
        also = set(behaviour.touches)
        for call in effects.calls:
            touched |= self._touched_by(call, uses, shows_value=shows_value)
            also |= self._touched_elsewhere(call)
        entered = effects.entered & self.seen
        for method in {"__enter__", "__exit__", "__aenter__", "__aexit__"} & self.methods.keys() if entered else ():
            also |= self.methods[method].touches | (entered if self.methods[method].touched_params else set())
        if effects.combined and any(self.methods[one].touched_params for one in OPERATORS & self.methods.keys()):
            also |= effects.combined
        also |= self._changed_by_callbacks(statement.node, effects, behaviour)
        touched |= (effects.indexed | behaviour.indexed) & self.growing
        for name in uses & self.caching:  # a value that is kept may differ from one that is computed later
            touched |= {name} if not self.unstable.isdisjoint(self._closure([name])) else set()
        touched |= self._consumed(effects)
        touched |= {
            n
            for n in also
            if n in self.seen and (self._is_object(n) or n in self.behaviours or n in self.classes.names)
        }
        return tuple(self._touch(name) for name in sorted(touched - (PROVIDED - self.seen)))

    def _consumed(self, effects: Effects) -> frozenset[str]:
        """Return the variables that loops, or calls that take them, read and thereby change."""
        given = ((call.verb, key, names) for call in effects.calls for key, names in call.arguments)
        read = [names for verb, key, names in given if verb not in DESCRIBES or key == -1 or isinstance(key, str)]
        return effects.passed.union(*read) & self.iterators

    def _changed_by_callbacks(self, node: ast.stmt | None, effects: Effects, behaviour: Behaviour) -> set[str]:
        """Return the objects changed by code that the statement gives to its calls, or that its class's bases run."""
        found: set[str] = set()
        if isinstance(node, ast.ClassDef):
            found |= self.classes.changed_by_definition(node)
        elif node is not None and effects.calls:
            found |= changed_by_given_code(node)
            given = behaviour.calls | {call.function or "" for call in effects.calls}
            calls = [call for call in effects.calls if not (call.only_shows or call.verb[:1].isupper())]
            given = given.union(*(call.args for call in calls)) if self.classes.callables else frozenset()
            found |= effects.sources(frozenset(filter(self.classes.change_when_called, given)))
        return found

    def _touched_by(self, call: Call, uses: frozenset[str], *, shows_value: bool) -> set[str]:
        """Return the variables of the statement that a call changes."""
        if self.library.is_style(call):
            return {call.receiver or ""}
        if self.databases.writes(call, self.objects):
            return set()  # its file exists, with these rows
        args = {n for n in call.args if self._is_object(n)}
        receiver = {call.receiver} if call.receiver else set()
        changed = call.written | self.trainings.imported_training(call)
        found = {n for n in changed if self._is_object(n)}
        if self.trainings.imported_trainer(call) is not None:
            return found
        if self.trainings.changes_receiver(call):
            found |= receiver - self.modules
        if call.function is not None and self.objects.get(call.function) and self.trainings.trains(call.function):
            found.add(call.function)  # `step = make_step(model, opt)`
        if call.verb in DRAWS or (receiver <= self.iterators and call.verb not in QUIET_OF_GENERATORS):
            found |= receiver
        if call.verb in {"reload", "setattr", "delattr"}:
            return set(call.args)
        own = self.behaviours.get(call.function or "") if call.function else self.trainings.method(call)
        if call.function is not None and own is not None:
            found |= {call.function} if own.keeps else set()
            if call.is_called and own.inner_params:
                found |= set(replace(own, touched_params=own.inner_params).touched_args(call))
            return found | {n for n in self._changed_args(call, own, uses) if self._is_object(n)}
        changes_itself = own is not None and bool(
            own.touched_params
        )  # the notebook's own `plot` may have other effects
        if (call.only_shows and not changes_itself) or (call.receiver in self.modules and call.verb in SEEDS):
            return found
        if own is not None and not call.is_dropped:
            return found | ((receiver | args) if own.touched_params else set())
        if call.receiver in self.modules:
            return found | self._touched_by_module(call, args, shows_value=shows_value)
        if call.is_dropped:
            if call.function is not None and call.function in self.seen and self._is_object(call.function):
                receiver = {call.function}  # `add = items.append`, then `add(3)`
            elif own is None and call.receiver and call.verb in KEEPS_ARGUMENTS | FITS:
                return found | receiver
            return found | receiver | args
        return found | receiver if call.is_in_place else found

    def _touched_by_module(self, call: Call, args: set[str], *, shows_value: bool) -> set[str]:
        """Return the arguments or the module that a library call changes: `random.shuffle(items)`, `wandb.init()`."""
        module = call.receiver or ""
        sets_up = SETS.match(call.verb) is not None
        if call.is_in_place:
            return args or ({module} if call.is_dropped else set())  # `registry.add(3)`
        if not call.is_dropped or (shows_value and not sets_up) or self.module_roots.get(module) in QUIET_MODULES:
            return args if call.is_dropped and not shows_value else set()
        return args | {module}

    def _touched_elsewhere(self, call: Call) -> frozenset[str]:
        """Return objects that the statement does not name but a method, class or the function's maker changes."""
        holders = {call.receiver or call.function or ""}
        if call.function in self.behaviours or (call.is_dropped and not call.only_shows):
            holders |= call.args  # `run_all(steps)`
        passed = frozenset().union(*(self.passed_functions.get(name, frozenset()) for name in holders))
        found = frozenset().union(*(self.behaviours[n].touches for n in sorted(passed) if n in self.behaviours))
        if call.receiver is not None:
            method = self.trainings.method(call) if call.receiver not in self.modules else None
            return found | (method.touches if method is not None else frozenset())
        if call.function == "type" or call.verb in MAKES_CLASS:
            return found | self.classes.changed_by_making(call.args)
        if call.function in self.classes.starts:
            return self.classes.starts[call.function].touches
        own = self.behaviours.get(call.function or "")
        return own.made.touches if call.is_called and own is not None and own.made is not None else found

    def _changed_args(self, call: Call, own: Behaviour, uses: frozenset[str]) -> frozenset[str]:
        """Return the arguments that a call of an own function changes; its helpers may change any of them."""
        called = reach([call.function or ""], self.late) & uses - {call.function}
        if not own.touched_params and any(self.behaviours[name].touched_params for name in called):
            return call.args
        return own.touched_args(call)

    def _certain(self, effects: Effects, uses: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the variables that own functions certainly change, and those over which they only iterate."""
        called = {call.function for call in effects.calls if call.function and self.classes.callables}
        certain, data = frozenset(filter(self.classes.change_when_called, called)), frozenset[str]()
        for call in effects.calls:
            own = self.behaviours.get(call.function) if call.function else self.trainings.method(call)
            if own is not None:
                helpers = self._closure([call.function or ""]) & uses - {call.function}
                certain |= own.certain_args(call, [self.behaviours[name] for name in sorted(helpers)])
                data |= own.given_for(call, own.data_params)
        return effects.sources(certain | self.trainings.changed(effects.calls)), data - certain - self.iterators

    def _touch(self, name: str) -> Touch:
        below = reach([name], self.objects)
        above = reach(below, self.holders)
        # `Net.forward = better` changes every object of `Net` and of its subclasses
        classes = reach([name], self.classes.subclasses)
        return Touch(name, below, above.union(classes, *(self.made.get(one, ()) for one in classes)))

    # statements that cannot run again
    def _prompt_of(self, node: ast.stmt, reads: frozenset[str], uses: frozenset[str]) -> str:
        if isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom):
            return ""
        tested = "input" in reads or not self.prompting.isdisjoint(reads)
        for part in walk_now([node]) if tested else ():
            if not isinstance(part, ast.Call):
                continue
            names = {n.id for n in walk(part.func) if isinstance(n, ast.Name)}
            if "input" in names and isinstance(part.func, ast.Name) and "input" not in self.seen:
                return "input()"
            if names & self.prompting:
                return "a widget or a prompt"
        prompting = sorted(name for name in uses if self.behaviours[name].prompts)
        return f"input(), called by `{prompting[0]}`" if prompting else ""


def _link(forward: dict[str, frozenset[str]], back: dict[str, set[str]], name: str, others: frozenset[str]) -> None:
    """Record that `name` leads to `others` and nothing else, in both directions."""
    before = forward.get(name, frozenset())
    for other in before - others:
        back[other].discard(name)
    for other in others - before:
        back.setdefault(other, set()).add(name)
    forward[name] = others


def _named(call: Call) -> frozenset[str]:
    """Return the variables that a call runs or passes."""
    return call.args | {name for name in (call.function, call.receiver) if name is not None}


def _unstable_names(nodes: Iterable[ast.stmt | None]) -> frozenset[str]:
    """Return the names that several statements bind or change."""
    once: set[str] = set()
    found: set[str] = set()
    for node in nodes:
        names = flow_of(node).binds | effects_of([node]).altered if node is not None else frozenset[str]()
        found |= once & names
        once |= names
    return frozenset(found)
