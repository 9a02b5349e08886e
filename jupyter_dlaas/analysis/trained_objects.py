"""Training statements and trained objects: parameters passed to optimisers, receivers of `fit`. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final

from jupyter_dlaas.analysis.call_effects import Behaviour, OwnMethod
from jupyter_dlaas.analysis.class_effects import OwnClasses, patched_classes
from jupyter_dlaas.analysis.effects import (
    FITS,
    HANDS_ON,
    RUNS,
    Call,
    Effects,
    is_step,
    objects_in,
    reach,
    verb_of,
    words,
)
from jupyter_dlaas.analysis.optimisers import is_optimiser_class, optimised_names
from jupyter_dlaas.analysis.syntax.names import bound_names, root_name, walk
from jupyter_dlaas.analysis.syntax.training_steps import may_train, names_training, own_calls

__all__ = ["Trainings", "only_hands_on"]

_STEPS: Final = re.compile(r"((run|one|do)_)?epoch|train(ing)?_step")
"""Other functions that train if they are given a model or an optimiser."""

DATA: Final = re.compile(
    r"load|data|device|split|read|array|frame|zeros|ones|tensor|range|^list$|^dict$|^tuple$|shape|loss|entropy|criterion"
    r"|metric|callback|^input|transform|token|writer|logger|stopping|checkpoint|seed|generator|tqdm",
    re.IGNORECASE,
)
"""Constructors of objects that a training reads or writes but does not train."""
APPLIES: Final = words("apply_gradients apply_updates minimize")
UPDATES: Final = words("step train_on_batch minimize")
EPOCHS: Final = words(
    "epochs max_epochs n_epochs num_epochs nb_epochs epoch n_epoch num_epoch nb_epoch epoch_length total_timesteps"
)
"""Arguments that set the length of a training."""
INFERENCE: Final = {"SVI": words("run step update"), "MCMC": words("run"), "NUTS": words("run"), "ADVI": words("fit")}
"""Constructors of objects of NumPyro, Pyro and the like, and the methods by which these learn."""
_TRAINERS: Final = re.compile(r"trainer|^train$|runner|solver|experiment", re.IGNORECASE)
_TRAINER_KINDS: Final = re.compile(r"Trainer|trainer$|Runner|Solver|Experiment")
_MODES: Final = re.compile(r"mode|^(is|was)_|training$|flag", re.IGNORECASE)
_PARTS: Final = words(
    "parameters named_parameters modules named_modules children named_children buffers named_buffers state_dict"
)
_LEARNERS: Final = words("learn learner")


class Trainings:
    """Training calls, from the known functions and objects of the notebook. Grows with the tracer's state."""

    def __init__(
        self,
        behaviours: Mapping[str, Behaviour],
        methods: Mapping[str, Behaviour],
        passed_functions: Mapping[str, frozenset[str]],
        objects: Mapping[str, frozenset[str]],
        modules: Set[str],
        imported: Callable[[Call, str], Behaviour | None] = lambda _call, _kind: None,
        classes: OwnClasses | None = None,
    ) -> None:
        self.behaviours, self.methods, self.passed_functions, self.objects = (
            behaviours,
            methods,
            passed_functions,
            objects,
        )
        self.modules = modules
        self.imported = imported  # functions and methods of the user's modules that train
        self._classes = classes or OwnClasses(set(), {}, {}, {})
        self._named: set[str] = set()  # variables that the last statement assigns
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.optimised: set[str] = set()  # optimisers, and the objects passed to them
        self.optimisers: set[str] = set()
        self.optimiser_kinds: set[str] = set()  # optimiser classes of the notebook
        self.data: set[str] = set()  # iterables of loops, and arguments of `fit`
        self.kinds: dict[str, str] = {}  # name -> function that created it, or ""
        self.modes: set[str] = set()  # own classes whose `train()` is that of torch.nn.Module, which sets a mode

    def note(self, node: ast.stmt, effects: Effects) -> None:
        """Record a statement's optimisers, models and data. Call it before `training`."""
        self.data |= effects.passed - _owners_of_parts(node)
        self._named.clear()
        set_on = frozenset[str]().union(*(call.args for call in effects.calls if call.verb in {"setattr", "delattr"}))
        self._classes.patched |= (effects.touches | set_on) & self._classes.names | patched_classes(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._functions[node.name] = node
        for call in effects.calls:
            if call.verb in FITS and call.receiver and not _takes_model(call):
                self.data |= call.args - (self.optimised if call.receiver in self.modules else frozenset())
        if isinstance(node, ast.ClassDef):
            self.modes.discard(node.name)
            if self._has_mode(node):
                self.modes.add(node.name)
            self.optimiser_kinds.discard(node.name)
            if is_optimiser_class(node, self.optimiser_kinds):
                self.optimiser_kinds.add(node.name)
        if isinstance(node, ast.FunctionDef) and node.name == "train" and node.decorator_list:
            self.modes.clear()  # the decorator may add it to a class
        if isinstance(node, ast.Assign):
            self.modes -= {root_name(one) for one in node.targets if isinstance(one, ast.Attribute)}
        names = optimised_names([node], self.optimiser_kinds, self.optimisers)
        names |= _iterated(node, names)
        self.optimised |= names
        if isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            self.optimised.difference_update(targets)
            self.optimisers.difference_update(targets)
            self.optimised.update(targets if names else ())
            self.optimisers.update(targets if names else ())
            self._named.update(targets)
            for target in targets:
                self.data.discard(target)
                match node.value:
                    case ast.Call(func=function):
                        self.kinds[target] = verb_of(function)
                    case ast.Name(id=other):
                        self.kinds[target] = self.kinds.get(other, other)
                    case _:
                        self.kinds[target] = ""

    def training(
        self, effects: Effects, uses: frozenset[str], binds: frozenset[str]
    ) -> tuple[frozenset[str], frozenset[str], bool]:
        """Return the objects that a statement fits, those that it trains, and whether it certainly trains."""
        for name in binds - self._named:
            self.kinds.pop(name, None)
        fits: set[str] = set()
        trained: set[str] = set()
        trains = False
        for call in effects.calls:
            if self.call_trains(call):
                trains = True
                trained |= self._trained_by(call, uses, binds)
            elif call.receiver and (call.maker or call.receiver not in self.modules) and self._may_fit(call):
                if self.only_computes(call):
                    continue
                if call.verb == "train" and not self.is_training(call):
                    continue  # `model.train()` sets a mode
                fits |= self._with_parts({*self._fitted_by(call)})
        return frozenset(fits), frozenset(trained - self.modules), trains

    def _has_mode(self, node: ast.ClassDef) -> bool:
        """Return whether a class inherits `train` from its only base, which is `Module` or has it from there."""
        names = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
        base = verb_of(node.bases[0]) if len(node.bases) == 1 else ""
        return "train" not in names and not node.decorator_list and (base == "Module" or base in self.modes)

    def passive(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names that a training uses but does not train: modules and data."""
        return names & (self.data | self.modules)

    def _first_of(self, call: Call) -> frozenset[str]:
        """Return the model passed to `trainer.fit(model, …)`."""
        first = [names for key, names in call.arguments if key in {0, "model"}] if _takes_model(call) else []
        return frozenset().union(*first)

    def _fitted_by(self, call: Call) -> frozenset[str]:
        """Return the receiver of a `fit` and the model passed to it; of `Trainer(model, args).train()`, the model."""
        held = frozenset(name for name in call.made_with if self._is_trainable(name))
        given = held | self._first_of(call)
        is_made_here = call.maker and (given or call.receiver in self.modules)
        return given if is_made_here or call.receiver is None else given | {call.receiver}

    def _may_fit(self, call: Call) -> bool:
        return call.verb in FITS or self.is_training(call)

    def is_training(self, call: Call) -> bool:
        """Return whether a method trains, by its arguments or by the maker of its object.

        `stepper.train(20)`, `trainer.run(loader, max_epochs=5)`, `svi.run(key, 9, data)`, `nlp.update(docs, sgd=opt)`.
        """
        receiver = call.receiver or ""
        kind = call.maker or self.kinds.get(receiver, "")
        is_trainer = _TRAINERS.search(receiver) is not None or _TRAINER_KINDS.search(kind) is not None
        options = {key for key, _ in call.arguments if isinstance(key, str)}
        match call.verb:
            case "train":  # without such arguments it sets a mode
                is_given = any(not _MODES.search(name) for name in call.args)
                return is_trainer or call.has_number or is_given or bool(options - {"mode"})
            case "run" | "search" | "start":
                is_evaluator = "eval" in f"{receiver} {kind}".lower()
                made_to_train = call.verb == "run" and kind.startswith("create_") and is_trainer
                if not is_evaluator and (made_to_train or not options.isdisjoint(EPOCHS)):
                    return True
            case "update" if "sgd" in options:
                return True
            case _:
                pass
        return call.verb in INFERENCE.get(kind, ()) or (receiver == "svi" and call.verb in INFERENCE["SVI"])

    def _trained_by(self, call: Call, uses: frozenset[str], binds: frozenset[str]) -> frozenset[str]:
        if imported := self.imported_training(call):
            return self._with_parts({*imported})
        if self._is_step(call):
            found = {call.receiver} if call.receiver and call.verb != "backward" else set()
            found |= call.args if call.verb in APPLIES else set()
            return self._with_parts(found - self.modules)
        if call.function is not None:
            own = self.behaviours.get(call.function, Behaviour())
            others = [self.behaviours[name] for name in sorted(uses) if name in self.behaviours]
            found = set(own.given_for(call, own.trained_params)).union(*(other.trained for other in [own, *others]))
            if enclosed := reach({call.function}, self.objects) & self.optimised:  # `step = make_step(model, opt)`
                return self._with_parts(set(enclosed))
            found = found or set(reach(call.args, self.objects) & self.optimised)
            found = found or set(call.args & binds)
            return self._with_parts(found or set(own.touched_args(call)) - self.data or set(call.args) - self.data)
        own = self.methods.get(call.verb, Behaviour())
        receiver = {call.receiver} if call.receiver and not own.trains_only_arguments else set()
        found = receiver.union(self._first_of(call), own.given_for(call, own.trained_params), own.trained)
        return self._with_parts(found)

    def _with_parts(self, names: set[str]) -> frozenset[str]:
        """Return the names and the trainable objects that they hold."""
        return frozenset(names).union(name for name in reach(names, self.objects) if self._is_trainable(name))

    def _is_trainable(self, name: str) -> bool:
        if name in self.optimised:
            return True
        kind = self.kinds.get(name)
        return name not in self.data and kind != "" and not (kind and DATA.search(kind))

    def _is_step(self, call: Call) -> bool:
        by_name = is_step(call) or (call.verb == "step" and call.receiver in self.optimisers)
        return by_name and not self.only_computes(call)

    def own_method(self, call: Call) -> Behaviour | None:
        """Return the effects of the method of a class of the notebook that a call runs; None if it is not known."""
        found = self._method_of(call)
        return None if found is None else found.behaviour

    def method(self, call: Call) -> Behaviour | None:
        """Return the effects of the method that a call runs: of its object's class, or of any with this method."""
        return self.own_method(call) or self.methods.get(call.verb)

    def changed(self, calls: Iterable[Call]) -> frozenset[str]:
        """Return the objects that their own methods change whose names are those of methods that set a mode."""
        named = [call for call in calls if call.verb in {"train", "eval"} and call.receiver]
        own = [(call.receiver or "", self.own_method(call)) for call in named]
        return frozenset(name for name, method in own if method is not None and "self" in method.touched_params)

    def _method_of(self, call: Call) -> OwnMethod | None:
        receiver = call.receiver or ""
        of_class = self._classes.method_of(receiver, call.verb)
        if of_class is None and call.is_direct:
            of_class = self._classes.method_of(self.kinds.get(receiver, ""), call.verb)
        return of_class

    def only_computes(self, call: Call) -> bool:
        """Return whether a call runs a function or method of the notebook that takes no training step, by its text."""
        if any(name in self.behaviours for name in call.args):
            return False  # it may call them
        method = self._method_of(call) if call.receiver else None
        if call.receiver and method is None:
            return False
        waiting: list[tuple[str, str]] = [(method.owner if method else "", call.verb)]
        seen = set(waiting)
        while waiting:
            owner, name = waiting.pop()
            own = self._classes.method_of(owner, name) if owner else None
            node = own.node if own is not None else self._functions.get(name) if name in self.behaviours else None
            if node is None or may_train(node, self._is_own(owner)):
                return False
            new = {(owner if is_method else "", called) for is_method, called in own_calls(node)}
            known = {pair for pair in new if self._is_own(pair[0])(*pair)}
            waiting += sorted(known - seen)
            seen |= known
        return True

    def _is_own(self, owner: str) -> Callable[[str, str], bool]:
        """Return whether a function, or a method of an object of this class, is the notebook's own."""
        return lambda kind, name: (
            self._classes.method_of(owner, name) is not None
            if kind
            else name in self.behaviours and name in self._functions
        )

    def changes_receiver(self, call: Call) -> bool:
        """Return whether a call trains its receiver, whatever it returns: `out = trainer.train()`, `sgd.step(f)`."""
        if call.receiver is None or call.receiver in self.modules:
            return False
        if self.only_computes(call):
            return False
        if call.verb in UPDATES:
            return self._is_step(call)
        return (call.verb in FITS and call.verb != "train") or self.is_training(call)

    def call_trains(self, call: Call) -> bool:
        """Return whether a call takes training steps: itself, in an own function or method, or in one passed to it."""
        if self._is_step(call) or self.imported_training(call):
            return True
        if call.receiver and self.only_computes(call):
            return False
        if call.function is not None and call.function in self.behaviours:
            if self.trains(call.function):
                return True
        elif call.receiver is not None and call.receiver not in self.modules:
            is_mode = call.verb == "train" and not call.arguments and self.kinds.get(call.receiver) in self.modes
            if call.verb in self.methods and not is_mode and self.trains(f".{call.verb}"):
                return True
            if self.runs_training(call):
                return True
        if only_hands_on(call):
            return False
        return any(name in self.behaviours and self.trains(name) for name in call.args)

    def imported_training(self, call: Call) -> frozenset[str]:
        """Return the models and optimisers that an imported function gets to train: `engine.train(model, opt)`."""
        own = self.imported_trainer(call)
        if own is not None:
            return self._trained_by_imported(call, own)
        is_imported = (call.receiver or call.function) in self.modules and call.function not in self.behaviours
        if not is_imported or not (names_training(call.verb) or _STEPS.fullmatch(call.verb)):
            return frozenset()
        return reach(call.args, self.objects) & self.optimised

    def imported_trainer(self, call: Call) -> Behaviour | None:
        """Return the effects of a call of a function or method of the user's modules that trains, else None."""
        own = self.imported(call, self.kinds.get(call.receiver or "", ""))
        return None if call.function in self.behaviours else own

    def _trained_by_imported(self, call: Call, own: Behaviour) -> frozenset[str]:
        """Return the objects that a function or method of the user's modules trains: `engine.one_pass(model, data)`."""
        found = own.touched_args(call) | own.given_for(call, own.trained_params)
        found |= reach(call.args, self.objects) & self.optimised
        if call.receiver is not None and call.receiver not in self.modules:
            found |= {call.receiver}
        return self._with_parts({*(found or call.args - self.data)}) - self.modules

    def runs_training(self, call: Call) -> bool:
        """Return whether `trainer.run(data)` runs a training function given to the trainer."""
        given = self.passed_functions.get(call.receiver or "", frozenset())
        return RUNS.match(call.verb) is not None and any(self.trains(name) for name in given)

    def trains(self, function: str) -> bool:
        """Return whether an own function or (with a dot) method takes training steps, or calls one that does."""
        seen, waiting = {function}, [function]
        while waiting:
            name = waiting.pop()
            own = self.methods.get(name[1:]) if name.startswith(".") else self.behaviours.get(name)
            if own is None:
                continue
            if own.trains:
                return True
            new = (own.calls | own.mentions) - seen
            seen |= new
            waiting += new
        return False


def _iterated(node: ast.stmt, names: Set[str]) -> frozenset[str]:
    """Return the containers of objects that loops and comprehensions name: `{k: SGD(m.parameters()) for m in nets}`."""
    found = set()
    for part in walk(node) if names else ():
        if isinstance(part, ast.For | ast.comprehension) and not names.isdisjoint(bound_names(part.target)):
            found |= objects_in(part.iter)
    return frozenset(found)


def _owners_of_parts(node: ast.stmt) -> frozenset[str]:
    """Return the models whose parts a statement iterates over: `for p in ema.parameters()`."""
    calls = [part for part in walk(node) if isinstance(part, ast.Call) and verb_of(part.func) in _PARTS]
    return frozenset(name for call in calls if (name := root_name(call.func)) is not None)


def only_hands_on(call: Call) -> bool:
    """Return whether the functions passed to a call do not run in it: constructors, wrappers, registrations."""
    starts = ("add_", "register", "set_", "on_")
    return call.verb in HANDS_ON or call.verb[:1].isupper() or call.verb.startswith(starts)


def _takes_model(call: Call) -> bool:
    is_trainer = "trainer" in (call.receiver or "").lower() or _TRAINER_KINDS.search(call.maker) is not None
    return is_trainer or call.receiver in _LEARNERS
