"""PyTorch optimisers with the attributes that their classes add: pickling, and loading in place."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from jupyter_dlaas.objects.object_values import is_infrastructure

__all__ = ["SharedGroups", "added_fields", "is_optimizer", "reduce_state"]

_HOOKS: Final = "_optimizer_"
_NOT_STORED: Final = (_HOOKS, "_zero_grad_profile_name", "_warned_")
"""Prefixes of attributes that torch creates itself: hooks and names for the profiler."""
_STORED: Final = frozenset({"defaults", "state", "param_groups"})
_COUNTED: Final = "_wrapped_by_lr_sched"
"""Marker of the method that a scheduler of torch puts in place of `step` to count the calls."""


def is_optimizer(value: object) -> bool:
    """Return whether a value is an optimiser of torch."""
    torch: Any = sys.modules.get("torch")
    base = getattr(getattr(torch, "optim", None), "Optimizer", None)
    return base is not None and isinstance(value, base)


def reduce_state(value: Any, *, with_hooks: bool = True) -> Any:
    """Return the reduction of an optimiser with all its attributes; NotImplemented for other objects.

    `Optimizer.__getstate__` returns defaults, state and parameter groups only: LBFGS loses its parameters, and wrappers
    such as SAM or Lookahead the optimiser inside. Of a class with its own pickling only the `step` is left out that a
    scheduler has replaced: it holds a weak reference, and is replaced again where it is loaded.
    """
    if not is_optimizer(value):
        return NotImplemented
    base: Any = sys.modules["torch"].optim.Optimizer
    usual = {"__getstate__": base.__getstate__, "__reduce__": object.__reduce__, "__reduce_ex__": object.__reduce_ex__}
    if any(getattr(type(value), name) is not method for name, method in usual.items()):
        return _without_counted_step(value)
    reduced = value.__reduce_ex__(5)
    state = reduced[2]
    fields = added_fields(value) | (_hooks_of(value) if with_hooks else {})
    added = {name: one for name, one in fields.items() if name not in state}
    return (*reduced[:2], state | added, *reduced[3:]) if added else NotImplemented


def _hooks_of(optimizer: Any) -> dict[str, OrderedDict[int, Any]]:
    """Return the hooks of the program, which torch does not store, in the dictionaries that torch has for them."""
    found: dict[str, OrderedDict[int, Any]] = {}
    for name, hooks in vars(optimizer).items():
        if name.startswith(_HOOKS) and any(not is_infrastructure(one) for one in hooks.values()):
            found[name] = OrderedDict((key, one) for key, one in hooks.items() if not is_infrastructure(one))
    return found


def _without_counted_step(value: Any) -> Any:
    if not hasattr(vars(value).get("step"), _COUNTED):
        return NotImplemented
    reduced = value.__reduce_ex__(5)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return NotImplemented
    return (*reduced[:2], {name: one for name, one in reduced[2].items() if name != "step"}, *reduced[3:])


def added_fields(optimizer: Any) -> dict[str, Any]:
    """Return the attributes that an optimiser's class adds to those of `torch.optim.Optimizer`."""
    return {
        name: one
        for name, one in vars(optimizer).items()
        # schedulers, among others, replace methods of the object, and do so again where it is loaded
        if name not in _STORED
        and not callable(getattr(type(optimizer), name, None))
        and not name.startswith(_NOT_STORED)
    }


class SharedGroups:
    """Parameter groups and states of optimisers, which keep their identity while new state is loaded.

    `load_state_dict` creates new ones. A wrapper such as SAM has those of the optimiser inside, which would keep the
    former ones: its learning rate and momentum would no longer be the wrapper's.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._parts = {id(one): (one.param_groups, list(one.param_groups), one.state) for one in optimizers}

    def load(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Load a `state_dict` into the existing groups."""
        groups, each, states = self._parts[id(optimizer)]
        defaults = dict(optimizer.defaults)
        optimizer.load_state_dict(state)
        optimizer.defaults.clear()  # torch adds new options to them
        optimizer.defaults.update(defaults)
        for group, loaded in zip(each, optimizer.param_groups, strict=True):
            if group is not loaded:
                content = dict(loaded)
                group.clear()
                group.update(content)
        groups[:] = each
        if states is not optimizer.state:
            content = dict(optimizer.state)
            states.clear()
            states.update(content)
        optimizer.param_groups, optimizer.state = groups, states
