"""Hooks of torch modules, optimisers and tensors, and gradients of tensors, which follow an object into its result.

torch stores the hooks of modules and drops all others. None are in a `state_dict`: without them, a model that a
notebook takes back would compute and train otherwise than the job's.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects.object_values import is_infrastructure

__all__ = [
    "Gradients",
    "GradientsTooLarge",
    "Table",
    "fill",
    "has_hooks",
    "is_same_function",
    "reduce_state",
    "renumber",
    "tables",
    "take_flags",
]

_OF_TENSORS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
}
"""The dictionaries that say how a module's hooks are called, by the one that holds the hooks."""


def has_hooks(value: object) -> bool:
    """Return whether a value is a tensor with hooks of the program."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and bool(_hooks_of(value))


def _hooks_of(tensor: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _OF_TENSORS if tensor.is_leaf else ():
        hooks = getattr(tensor, name, None) or OrderedDict()
        ours = OrderedDict((key, one) for key, one in hooks.items() if not is_infrastructure(one))
        if ours:
            found[name] = hooks if len(ours) == len(hooks) else ours  # handles refer to the dictionary itself
    return found


def reduce_state(value: Any) -> Any:
    """Return the reduction of a tensor with its hooks; NotImplemented for tensors without hooks and other objects."""
    return _with_attributes(value, _hooks_of(value)) if has_hooks(value) else NotImplemented


def _with_attributes(tensor: Any, attributes: Mapping[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it drops hooks
        reduced = tensor.__reduce_ex__(2)
    return (*reduced[:2], attributes, None, None, stored.fill_hooks)


def fill(tensor: Any, attributes: Mapping[str, Any]) -> None:
    """Give a loaded tensor its hooks and its gradient."""
    for name, found in attributes.items():
        setattr(tensor, name, found)


class GradientsTooLarge(Exception):
    """Error of gradients that are too large to be stored with their tensors."""


class Gradients:
    """Reductions of tensors with their gradients, up to a total size in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._known: set[int] = set()

    @property
    def count(self) -> int:
        """The number of gradients so far."""
        return len(self._known)

    def reduce(self, value: Any) -> Any:
        """Return the reduction of a tensor with its gradient and hooks; NotImplemented for all other objects.

        Raises GradientsTooLarge.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or not value.is_leaf or value.grad is None:
            return NotImplemented
        gradient = value.grad.detach() if value.grad.requires_grad else value.grad
        if id(value) not in self._known:
            self._known.add(id(value))  # objects are pickled twice if they share memory
            self._left -= gradient.numel() * gradient.element_size()
        if self._left < 0:
            raise GradientsTooLarge
        return _with_attributes(value, _hooks_of(value) | {"grad": gradient})


def is_same_function(one: Any, other: Any) -> bool:
    """Return whether two callables do the same by their code, wherever in a program they are defined."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, types.MethodType):
        return type(one.__self__) is type(other.__self__) and is_same_function(one.__func__, other.__func__)
    if isinstance(one, types.FunctionType):
        return _is_same_code(one.__code__, other.__code__)
    return not isinstance(one, types.BuiltinFunctionType | type)


def _is_same_code(one: types.CodeType, other: types.CodeType) -> bool:
    if (one.co_qualname, one.co_code, one.co_names, one.co_varnames, len(one.co_consts)) != (
        other.co_qualname,
        other.co_code,
        other.co_names,
        other.co_varnames,
        len(other.co_consts),
    ):
        return False
    return all(
        _is_same_code(a, b)
        if isinstance(a, types.CodeType) and isinstance(b, types.CodeType)
        else type(a) is type(b) and a == b
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Table:
    """Hooks of an existing object, those of the loaded one in its place, and their numbers in the existing table."""

    name: str
    owner: Any
    have: dict[int, Any]
    come: dict[int, Any]
    numbers: dict[int, int]

    def take(self, refused: Callable[[Any], bool], connected: Callable[[Any], Any]) -> None:
        """Add the hooks that the existing object does not have, unless they are refused."""
        added = {key: number for key, number in self.numbers.items() if number not in self.have}
        added = {key: number for key, number in added.items() if not refused(self.come[key])}
        self.have.update((number, connected(self.come[key])) for key, number in added.items())
        if added and getattr(self.owner, self.name) is not self.have:
            setattr(self.owner, self.name, self.have)

    def count_left(self) -> int:
        """Return how many hooks of the existing object the loaded one does not have."""
        known = {*self.numbers.values()}
        return sum(key not in known and not is_infrastructure(one) for key, one in self.have.items())


def tables(old: Any, new: Any) -> list[Table]:
    """Return the hooks of two modules, optimisers or tensors of the same kind."""
    found = [_table(name, old, *(vars(one)[name] for one in (old, new))) for name in _tables_of(new)]
    for name in _OF_TENSORS if hasattr(new, "is_leaf") else ():
        have, come = (_hooks_of(one).get(name) for one in (old, new))
        if have is not None or come is not None:
            have = getattr(old, name, None)
            found.append(_table(name, old, OrderedDict() if have is None else have, come or OrderedDict()))
    return [one for one in found if one.have or one.come]


def take_flags(old: Any, new: Any, taken: Iterable[Table]) -> None:
    """Let a module call the hooks that it has received as the other module does."""
    for table in taken:
        for flag in _FLAGS.get(table.name, ()):
            flags = {table.numbers[key]: one for key, one in vars(new)[flag].items() if key in table.numbers}
            vars(old)[flag].update((number, one) for number, one in flags.items() if number in table.have)
    if getattr(old, "_backward_hooks", None) and getattr(old, "_is_full_backward_hook", True) is None:
        old._is_full_backward_hook = new._is_full_backward_hook


def renumber(handles: Iterable[Any], of: Mapping[int, Table]) -> None:
    """Give loaded handles the numbers of their hooks in the existing tables. `of`: tables by the loaded one's id."""
    if not of:
        return
    kind: Any = sys.modules["torch"].utils.hooks.RemovableHandle
    for handle in handles:
        if isinstance(handle, kind) and (table := of.get(id(handle.hooks_dict_ref()))) is not None:
            handle.id = table.numbers.get(handle.id, handle.id)


def _tables_of(value: Any) -> list[str]:
    """Return the names of the dictionaries in which a module or an optimiser has its hooks."""
    own = getattr(value, "__dict__", {})
    return [name for name, one in own.items() if name.endswith("_hooks") and isinstance(one, dict)]


def _table(name: str, owner: Any, have: dict[int, Any], come: dict[int, Any]) -> Table:
    handle: Any = sys.modules["torch"].utils.hooks.RemovableHandle
    left, numbers = dict(have), dict[int, int]()
    for key, one in come.items():
        known = next((number for number, other in left.items() if is_same_function(other, one)), None)
        if known is not None:
            del left[known]
        elif is_infrastructure(one):
            continue
        numbers[key] = known if known is not None else key if key not in have else handle.next_id
        handle.next_id = max(handle.next_id, numbers[key] + 1)
    return Table(name, owner, have, come, numbers)
