"""Results loaded into existing objects, so that all references to a model stay valid.

A notebook's optimiser, scheduler, trainer and aliases refer to the model object of an earlier cell. Rebinding the name
would leave them with the old object; loading the state into that object does not. This requires the same class and the
same names, shapes and types of tensors.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Final

from jupyter_dlaas.objects import keras_objects, shared_state_objects, torch_optimizers
from jupyter_dlaas.objects.object_kinds import FIELDS, Budget
from jupyter_dlaas.objects.random_generators import generator_of
from jupyter_dlaas.objects.torch_parametrizations import class_of
from jupyter_dlaas.transfer import code_by_value, fitted_models, shared_objects, torch_hooks
from jupyter_dlaas.transfer.object_traversal import shown, walk
from jupyter_dlaas.transfer.plain_values import LEAVES, is_plain
from jupyter_dlaas.transfer.result_kinds import (
    DEPTH_MAX,
    FILLED,
    device_of,
    has_state,
    is_estimator,
    is_keras,
    is_named_function,
    is_own_function,
    is_own_object,
    is_scheduler,
    is_table,
    is_taken_over,
    is_tensor,
    is_torch,
    is_trainable,
    is_users,
    moved,
    own_fields,
)
from jupyter_dlaas.transfer.shared_arrays import existing_memory, keep_views

__all__ = ["Restored", "can_be_filled", "restore"]

_OTHER_PARTS: Final = "its parts are connected differently in the job"
_OTHER_SHAPES: Final = "its weights have different shapes or types"
_OTHERWISE_BUILT: Final = "it is built differently"
_NO_WEIGHTS: Final = "the model that it trains is not among the results"
_OBJECTS_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Restored:
    """Values to bind to their names, and the reason why all are new objects if a model could not keep its identity."""

    values: dict[str, Any]
    reason: str = ""
    kept: frozenset[str] = frozenset()
    """Names of the existing objects that received the new state."""
    loaded: frozenset[int] = frozenset()
    """Identities of all existing objects that received state, also as parts of a result."""
    notes: tuple[str, ...] = ()
    """Differences from the job's objects that remain, a sentence each."""


def restore(
    values: Mapping[str, Any],
    into: Mapping[str, Any],
    *,
    with_weights: bool = False,
    changed: Collection[str] = frozenset(),
    bound: Collection[str] = frozenset(),
    assigned: Collection[str] = frozenset(),
    origins: Mapping[str, Mapping[str, str]] | None = None,
) -> Restored:
    """Load values into the existing objects of the same names.

    Torch modules, optimisers, schedulers, gradient scalers, trainable tensors, Keras models, and user objects that hold
    any of these keep their identity; all other values are new and refer to them. If a model or optimiser does not fit
    the existing one, nothing is loaded into anything, and all values are new. An optimiser without its model is loaded
    only `with_weights`, which also loads its weights.

    `changed`: names that the program changes and does not bind. Their lists, dicts, sets, arrays, random generators and
    objects of the user's classes (metrics, early stopping) keep their identity, too. `bound`: the other names that the
    job returns: functions may read them. `assigned`: the names that the training cell binds to values, which a function
    finds unchanged here if the job does not return them. `origins`: for the parts of values that are those from before
    the training cell, the path that they had then (`shared_objects.Origins`). They keep their identity, wherever they
    are now.
    """
    returned = frozenset({*values, *bound})
    pairs = _Pairs(with_weights=with_weights, bound=returned, stale=frozenset(assigned) - returned)
    kept: dict[str, Any] = {}
    try:
        for name in sorted(values, key=lambda one: (not is_keras(values[one]), not has_state(values[one]))):
            # models before their holders
            if name in changed and name in into and pairs.fill(into[name], values[name]):
                kept[name] = into[name]
                continue
            why = pairs.add(into[name], values[name]) if name in into else ""
            if why and has_state(into[name]):
                return Restored(dict(values), why)
            if name in into and (
                pairs.is_pair(into[name], values[name])
                or (name in changed and pairs.take_fields(into[name], values[name]))
            ):
                kept[name] = into[name]
        pairs.continue_parts(values, into, origins or {})
        kept |= {name: one for name, one in into.items() if name in values and pairs.is_pair(one, values[name])}
        if pairs.conflict or pairs.lacks_weights() or not pairs.old_of:
            return Restored(dict(values), pairs.conflict or (_NO_WEIGHTS if pairs.lacks_weights() else ""))
        pairs.connect_closures(values)
        found = {name: kept[name] if name in kept else pairs.connected(value) for name, value in values.items()}
        actions = list(pairs.actions())
    except Exception as error:  # noqa: BLE001 - copying runs the user's own classes, which may raise anything
        return Restored(dict(values), f"{type(error).__name__}: {error}")
    for act in actions:
        act()
    if "torch" in sys.modules:
        importlib.import_module("jupyter_dlaas.transfer.pushed_objects").mend_schedulers(found.values())
    loaded = frozenset(id(one) for one in pairs.old_of.values())
    return Restored(found, kept=frozenset(kept), loaded=loaded, notes=tuple(pairs.notes))


def can_be_filled(value: object) -> bool:
    """Return whether a value is a container, array, generator or object that can take over another one's state."""
    is_filled = _is_container(value) or is_table(value)
    return is_filled or generator_of(value) is not None or is_own_object(value)


def _is_container(value: object) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return type(value) in FILLED or (numpy is not None and type(value) is numpy.ndarray)


class _Pairs:
    """Pairs of loaded objects and the existing ones in their place."""

    def __init__(self, *, with_weights: bool, bound: frozenset[str], stale: frozenset[str]) -> None:
        self.with_weights = with_weights
        self._bound, self._stale = bound, stale
        self.old_of: dict[int, Any] = {}
        self.conflict = ""
        self.notes: list[str] = []
        self._tables: dict[int, torch_hooks.Table] = {}
        """The hooks of the loaded objects and the existing ones in their place, by the identity of the loaded table."""
        self._optimizers: list[Any] = []
        """New optimisers without a counterpart that were not copied yet."""
        self._whole: dict[int, Any] = {}
        """Loaded Keras models and layers: copies of them would not be connected."""
        self._with_gradients: list[Any] = []
        """The loaded weights that have a gradient."""
        self._new_of: dict[int, Any] = {}
        self._order: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        self._loaded: set[int] = set()  # weights of modules, and weights that are results themselves
        self._trained: set[int] = set()  # weights of optimisers
        self._memo: dict[int, Any] = {}
        self._memories: list[Any] = []
        """The memory of loaded arrays and tensors, with the existing one in its place."""
        self._tensors: list[tuple[Any, Any]] = []
        self._paths: dict[int, str] = {}
        """The paths of the loaded objects by their identities."""
        self._knows_origins = False
        self._continued: set[int] = set()
        """Objects of the job that are those from before its training cell."""

    def add(self, old: Any, new: Any, depth: int = 0) -> str:
        """Pair two objects with all their parts. Return the reason if that is not possible, else ""."""
        if is_trainable(old) and is_trainable(new):
            why = self._tensor(old, new)
            if not why:
                self._order.append((old, new))
                self._loaded.add(id(new))
            return why
        if class_of(old) is not class_of(new):
            old_part, new_part = type(old).__qualname__, type(new).__qualname__
            return (
                f"the job's value is a {new_part}"
                if old_part != new_part
                else f"the class `{old_part}` was defined again"
            )
        if shared_state_objects.is_shared(new):
            self.old_of[id(new)], self._new_of[id(old)] = old, new
            return ""
        is_known = id(new) in self.old_of or id(old) in self._new_of
        if is_known and not self.is_pair(old, new):
            self.conflict = _OTHER_PARTS
            return self.conflict
        if keras_objects.is_layer(new):  # with the torch backend it is a torch module, too
            return self._keras(old, new)
        if is_known:
            return self.conflict
        if keras_objects.is_stateful(new):
            return self._note(old, new) if keras_objects.fits(old, new, self._keras_models()) else _OTHER_SHAPES
        if is_torch(new, "nn", "Module"):
            return self._module(old, new)
        if is_torch(new, "optim", "Optimizer"):
            return self._optimiser(old, new)
        if is_scheduler(new):
            return self.add(old.optimizer, new.optimizer, depth) or self._note(old, new)
        if is_torch(new, "amp", "GradScaler"):
            return self._note(old, new)
        return self._holder(old, new, depth)

    def _keras(self, old: Any, new: Any) -> str:
        """Pair two Keras models or layers with the layers in them. A model in another one may be compiled by itself."""
        if not _keras_fits(old, new):
            return _OTHER_SHAPES
        for have, come in zip(keras_objects.layers_in(old), keras_objects.layers_in(new), strict=True):
            self.old_of[id(come)], self._new_of[id(have)] = have, come
        if not any(come is new for _, come in self._order):
            self._order.append((old, new))
        return ""

    def _keras_models(self) -> list[Any]:
        return [one for one, _ in self._order if is_keras(one)]

    def fill(self, old: Any, new: Any) -> bool:
        """Pair two containers or arrays of the same kind; the old one takes over the items of the new one."""
        if type(old) is not type(new) or not _is_container(new):
            return False
        if type(new) not in FILLED and (old.shape, old.dtype, old.flags.writeable) != (new.shape, new.dtype, True):
            return False
        if id(new) not in self.old_of and id(old) not in self._new_of:
            self._note(old, new)
            before = self.conflict
            self._add_all(_inside(old, new), 1)  # models in it keep their identity, too
            self.conflict = before  # a model that does not fit is a new item
        return self.is_pair(old, new)

    def take_fields(self, old: Any, new: Any) -> bool:
        """Pair two random generators or two objects of one class; the old one takes over the state."""
        if type(old) is not type(new) or id(new) in self.old_of or id(old) in self._new_of:
            return False
        if not (is_own_object(new) or is_table(new) or _is_same_generator(old, new)):
            return False
        self._note(old, new)
        return True

    def continue_parts(
        self, values: Mapping[str, Any], into: Mapping[str, Any], origins: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Pair the parts of the values that the job has changed in place with the existing ones."""
        self._knows_origins = set(values) <= set(origins)
        there = {
            path: part
            for name, old in into.items()
            for path, part in (shared_objects.parts_of(name, old) or {}).items()
        }
        for name, former in origins.items():
            parts = shared_objects.parts_of(name, values[name]) or {} if name in values and former else {}
            for path, new in parts.items():
                if path in former:
                    self._continued.add(id(new))
                    self._continue(there.get(former[path]), new)

    def _continue(self, old: Any, new: Any) -> None:
        if type(old) is not type(new) or id(new) in self.old_of or id(old) in self._new_of:
            return
        if is_tensor(new):
            is_fit = old.layout == new.layout and not old.requires_grad and not new.requires_grad
            if is_fit and not self._tensor(old, new):
                self._order.append((old, new))
        elif not self.fill(old, new) and (not is_own_object(new) or is_users(type(new)) or is_estimator(new)):
            self.take_fields(old, new)

    def lacks_weights(self) -> bool:
        """Return whether an optimiser would be kept with weights that nothing loads."""
        return not self._trained <= self._loaded

    def connected(self, value: Any) -> Any:
        """Copy a value so that it refers to the existing objects, once all pairs are known."""
        if not self._memo:
            self._memo = self._whole | self.old_of | {number: one.have for number, one in self._tables.items()}
            pairs = [pair for pair in (*self._order, *self._tensors) if self.is_pair(*pair)]
            self._memories = existing_memory(pairs)
        keep_views(value, self._memo, self._memories)
        if keras_objects.is_stateful(value) and id(value) not in self.old_of:
            return self._over_model(value)
        made = copy.deepcopy(value, self._memo)
        self._complete_optimizers()
        return made

    def _complete_optimizers(self) -> None:
        """Give copies of optimisers the attributes that torch omits: LBFGS would have no parameters."""
        for one in [one for one in self._optimizers if id(one) in self._memo]:
            self._optimizers.remove(one)
            added = {name: copy.deepcopy(part, self._memo) for name, part in torch_optimizers.added_fields(one).items()}
            vars(self._memo[id(one)]).update(added)

    def connect_closures(self, values: Mapping[str, Any]) -> None:
        """Let closures of loaded functions refer to the existing objects: `copy.deepcopy` leaves functions alone.

        The variables are collected first: once one is changed, a search through it would find the notebook's functions.
        """
        paths = [*walk(values, _OBJECTS_MAX, stops_at=is_named_function)]
        self._paths = {id(one): path for path, one in paths}
        parts: list[Any] = [one for _, one in paths]
        functions = [one for one in parts if type(one) is FunctionType and is_own_function(one)]
        self._optimizers = [one for one in parts if is_torch(one, "optim", "Optimizer") and id(one) not in self.old_of]
        self._whole = {id(one): one for one in parts if keras_objects.is_layer(one)}
        self._with_gradients = [one for one in parts if is_trainable(one) and one.grad is not None]
        hooked = [(self.old_of[id(one)], one) for one in parts if id(one) in self.old_of and _has_hooks(one)]
        self._tables = {id(one.come): one for pair in hooked for one in torch_hooks.tables(*pair)}
        torch_hooks.renumber(parts, self._tables)
        for cell in {id(cell): cell for one in functions for cell in one.__closure__ or ()}.values():
            with suppress(ValueError):  # it is not bound yet
                cell.cell_contents = self.connected(cell.cell_contents)

    def _items(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.connected(key): self.connected(one) for key, one in value.items()}
        return [self.connected(one) for one in value]

    def _over_model(self, value: Any) -> Any:
        """Return a Keras optimiser for the variables of the kept model; a copy of it would lose its state."""
        made = type(value).from_config(value.get_config())
        models = self._keras_models()
        if not keras_objects.fits(made, value, models):
            return value
        keras_objects.load_state(made, value, models)
        return made

    def actions(self) -> Iterator[Callable[[], object]]:
        """Return the calls that load the state, once everything is known to fit."""
        groups = torch_optimizers.SharedGroups(one for one, _ in self._order if is_torch(one, "optim", "Optimizer"))
        for old, new in self._order:
            label = shown(self._paths.get(id(new), type(new).__name__))
            if keras_objects.is_layer(new):
                yield partial(self._load_keras, old, new, label)
            elif keras_objects.is_stateful(new):
                yield partial(keras_objects.load_state, old, new, self._keras_models())
            elif is_torch(new, "nn", "Module"):
                yield from self._module_actions(old, new, label)
            elif is_torch(new, "optim", "Optimizer"):
                yield partial(groups.load, old, new.state_dict())
                yield from self._field_actions(old, torch_optimizers.added_fields(new), label)
                yield from self._hook_actions([(old, new)], label)
            elif is_scheduler(new) or is_torch(new, "amp", "GradScaler"):
                if state := new.state_dict():
                    yield partial(old.load_state_dict, state)
            elif type(new) in FILLED:
                yield partial(_fill, old, copy.copy(new) if _is_flat(new) else self._items(new))
            elif type(new).__module__ == "numpy":
                yield partial(old.__setitem__, ..., new)
            elif is_tensor(new):
                yield partial(old.data.copy_, new.data)
            elif is_table(new):
                yield partial(_refill_table, old, new)
            elif (generator := generator_of(new)) is not None:
                yield partial(generator.put, old, generator.read(new, Budget()))
            else:
                fields = {key: self.connected(part) for key, part in FIELDS.items(new).items()}
                yield partial(_refill, old, fields)
        yield from self._gradient_actions()

    def _gradient_actions(self) -> Iterator[Callable[[], object]]:
        """Return the calls that give weights the gradients of the job's last step; copies have none so far."""
        pairs = [pair for pair in self._tensors if pair[0].is_leaf and pair[1].is_leaf and self.is_pair(*pair)]
        copies = [(self._memo[id(one)], one) for one in self._with_gradients if id(one) in self._memo]
        for have, come in (*pairs, *copies):
            if have.grad is not None or come.grad is not None:
                gradient = self._memo.get(id(come.grad), come.grad)  # it may be a result itself
                yield partial(setattr, have, "grad", moved(gradient, have.device))

    def _load_keras(self, old: Any, new: Any, label: str) -> None:
        if why := fitted_models.load_state(old, new):
            self.notes.append(f"{label} is not compiled as in the job ({why[:200]}). Call its compile() again.")

    def _module_actions(self, old: Any, new: Any, label: str) -> Iterator[Callable[[], object]]:
        """Return the calls that load what a module has in its state_dict, and what it keeps beside that."""
        yield partial(old.load_state_dict, new.state_dict())
        for (path, old_part), new_part in zip(old.named_modules(), new.modules(), strict=True):
            name, fields = f"{label}.{path}" if path else label, own_fields(new_part)
            yield from self._field_actions(old_part, fields, name)
            if left := own_fields(old_part).keys() - fields.keys():
                self.notes.append(
                    f"{name} still has {', '.join(sorted(left))} here, which it did not have at the job's end."
                )
        owners = [
            *zip(old.modules(), new.modules(), strict=True),
            *zip(old.parameters(), new.parameters(), strict=True),
        ]
        yield from self._hook_actions(owners, label)
        for old_part, new_part in zip(old.parameters(), new.parameters(), strict=True):
            if old_part.is_leaf and old_part.requires_grad != new_part.requires_grad:
                yield partial(old_part.requires_grad_, new_part.requires_grad)

    def _field_actions(self, old: Any, fields: Mapping[str, Any], label: str) -> Iterator[Callable[[], object]]:
        found: dict[str, Any] = {}
        for key, one in fields.items():
            before = vars(old).get(key)
            if names := self._unbound(one):
                self.notes.append(f"{label}.{key} is not the job's: {_reads(names)}.")
                continue
            is_made = self._knows_origins and id(one) not in self._continued
            if not is_taken_over(one, before, self.old_of, is_made=is_made):
                continue
            try:
                found[key] = moved(self.connected(one), device_of(before))
            except Exception as error:  # noqa: BLE001 - copying runs the user's own classes, which may raise anything
                why = " ".join(f"{type(error).__name__}: {error}".split())
                self.notes.append(f"{label}.{key} is not the job's: it cannot be copied ({why[:200]}).")
        yield partial(old.__dict__.update, found)

    def _hook_actions(self, owners: Sequence[tuple[Any, Any]], label: str) -> Iterator[Callable[[], object]]:
        taken = {id(old): [one for one in self._tables.values() if one.owner is old] for old, _ in owners}
        if left := sum(one.count_left() for each in taken.values() for one in each):
            hooks = "a hook" if left == 1 else f"{left} hooks"
            self.notes.append(f"{label} still has {hooks} here that it did not have at the job's end.")

        def is_refused(hook: Any) -> bool:
            names = self._unbound(hook)
            if names:
                self.notes.append(f"{label} does not have the job's hook `{hook.__name__}`: {_reads(names)}.")
            return bool(names)

        for old, new in owners:
            for one in taken[id(old)]:
                yield partial(one.take, is_refused, self._connected_hook)
            yield partial(torch_hooks.take_flags, old, new, taken[id(old)])

    def _unbound(self, value: Any) -> set[str]:
        """Return the names that a function reads and that the notebook will not have."""
        return code_by_value.unbound(value, self._stale) - self._bound if type(value) is FunctionType else set()

    def _connected_hook(self, hook: Any) -> Any:
        try:
            return self.connected(hook)
        except Exception as error:  # noqa: BLE001 - as above
            self.notes.append(f"the hook {hook!r} refers to the job's objects: {type(error).__name__}: {error}")
            return hook

    def _note(self, old: Any, new: Any) -> str:
        self.old_of[id(new)], self._new_of[id(old)] = old, new
        self._order.append((old, new))
        return ""

    def is_pair(self, old: Any, new: Any) -> bool:
        """Return whether the old object takes the place of the new one."""
        return self.old_of.get(id(new)) is old and self._new_of.get(id(old)) is new

    def _tensor(self, old: Any, new: Any) -> str:
        if id(new) in self.old_of or id(old) in self._new_of:
            return "" if self.is_pair(old, new) else _OTHER_PARTS
        if old.shape != new.shape or old.dtype != new.dtype:
            return _OTHER_SHAPES
        self.old_of[id(new)], self._new_of[id(old)] = old, new
        self._tensors.append((old, new))
        return ""

    def _module(self, old: Any, new: Any) -> str:
        old_part, new_part = (dict(one.named_modules(remove_duplicate=False)) for one in (old, new))
        if [*old_part] != [*new_part] or any(
            class_of(old_part[key]) is not class_of(new_part[key]) for key in old_part
        ):
            return _OTHERWISE_BUILT
        before = dict(self.old_of), dict(self._new_of)
        for get in ("named_parameters", "named_buffers"):
            have, come = (dict(getattr(one, get)(remove_duplicate=False)) for one in (old, new))
            if [*have] != [*come]:
                return self._back(before, _OTHERWISE_BUILT)
            for key in have:
                if why := self._tensor(have[key], come[key]):
                    return self._back(before, why)
        for key in old_part:
            known = self.old_of.get(id(new_part[key]), old_part[key])
            if known is not old_part[key]:
                return self._back(before, _OTHERWISE_BUILT)
            self.old_of[id(new_part[key])], self._new_of[id(old_part[key])] = old_part[key], new_part[key]
        self._order.append((old, new))
        self._loaded.update(id(parameter) for parameter in new.parameters())
        for key in old_part:
            self._add_all(_common(own_fields(old_part[key]), own_fields(new_part[key])), 1)
        return ""

    def _back(self, before: tuple[dict[int, Any], dict[int, Any]], why: str) -> str:
        self.old_of, self._new_of = before
        return why

    def _optimiser(self, old: Any, new: Any) -> str:
        old_part, new_part = old.param_groups, new.param_groups
        if [len(one["params"]) for one in old_part] != [len(one["params"]) for one in new_part]:
            return "it trains different parameters"
        before = dict(self.old_of), dict(self._new_of)
        for have, come in zip(old_part, new_part, strict=True):
            for one, other in zip(have["params"], come["params"], strict=True):
                if self._tensor(one, other):
                    return self._back(before, "it trains different parameters")
                if self.with_weights:
                    self._order.append((one, other))
                    self._loaded.add(id(other))
        self._trained.update(id(one) for group in new_part for one in group["params"])
        self._note(old, new)
        self._add_all(_common(*map(torch_optimizers.added_fields, (old, new))), 1)  # SAM has an optimiser inside
        return ""

    def _holder(self, old: Any, new: Any, depth: int) -> str:
        """Pair two user objects that hold models: their fields are taken over. Containers are only searched."""
        if depth == DEPTH_MAX or id(new) in self._seen:
            return "it is not a model"
        self._seen.add(id(new))
        inside = _inside(old, new)
        if not inside and _has_plain_fields(new):
            inside = _common(vars(old), vars(new))
        count = len(self.old_of)
        self._add_all(inside, depth + 1)
        if len(self.old_of) > count and _has_plain_fields(new):
            return self._note(old, new)
        return "it is not a model"

    def _add_all(self, inside: Iterable[tuple[Any, Any]], depth: int) -> None:
        for old_part, new_part in inside:
            if not is_plain(new_part):
                why = self.add(old_part, new_part, depth)
                self.conflict = self.conflict or (why if has_state(old_part) and has_state(new_part) else "")


def _has_hooks(value: Any) -> bool:
    """Return whether a value is a module, an optimiser or a weight, which may have hooks."""
    return is_torch(value, "nn", "Module") or is_torch(value, "optim", "Optimizer") or is_trainable(value)


def _reads(names: Collection[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    return f"it reads {listed}, which the job did not return; add {','.join(sorted(names))} to -o"


def _inside(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """Return the corresponding items of two dicts, or of two lists or tuples of the same length."""
    if isinstance(new, dict):
        return [(old[key], new[key]) for key in new if key in old]
    return list(zip(old, new, strict=True)) if type(new) in (list, tuple) and len(old) == len(new) else []


def _common(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return [(old[key], part) for key, part in new.items() if key in old]


def _is_same_generator(old: Any, new: Any) -> bool:
    bits = [getattr(one, "bit_generator", one) for one in (old, new)]
    return generator_of(new) is not None and type(bits[0]) is type(bits[1])


def _has_plain_fields(value: Any) -> bool:
    """Return whether pickle and copy use the object's own dict as its only state."""
    kind: Any = type(value)
    usual: Any = object
    is_default = all(
        getattr(kind, one) is getattr(usual, one) for one in ("__reduce_ex__", "__reduce__", "__getstate__")
    )
    is_own = not any(hasattr(kind, one) for one in ("__setstate__", "__slots__", "__deepcopy__"))
    return is_default and is_own and hasattr(value, "__dict__")


def _refill_table(value: Any, new: Any) -> None:
    """Give a table the rows and columns of another one, as pandas does for `inplace=True`."""
    value._update_inplace(new)
    value.attrs = dict(new.attrs)
    if type(new).__name__ == "Series":
        value.name = new.name


def _is_flat(container: Any) -> bool:
    """Return whether a container holds numbers and strings only."""
    if type(container) is bytearray:
        return True
    return all(type(one) in LEAVES for one in container) and (
        not isinstance(container, dict) or all(type(one) in LEAVES for one in container.values())
    )


def _fill(value: Any, items: Any) -> None:
    value.clear()
    (value.update if isinstance(value, dict | set) else value.extend)(items)


def _refill(value: Any, new: Mapping[str, Any]) -> None:
    for name in FIELDS.items(value):
        FIELDS.delete(value, name)
    for name, part in new.items():
        FIELDS.set(value, name, part)


def _keras_fits(old: Any, new: Any) -> bool:
    kinds = [[type(layer) for layer in keras_objects.layers_in(one)] for one in (old, new)]
    shapes = [[tuple(weight.shape) for weight in one.weights] for one in (old, new)]
    return kinds[0] == kinds[1] and shapes[0] == shapes[1]
