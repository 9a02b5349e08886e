"""Objects whose class keeps one `__dict__` for all of them (the Borg pattern), such as accelerate's GradientState.

Pickled like other objects, each copy would have a `__dict__` of its own: an optimiser of accelerate would no longer
know that gradients are accumulated, and make a step for each batch.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from jupyter_dlaas import stored

__all__ = ["fill", "is_shared", "rebuild", "reduce_state"]


def is_shared(value: Any) -> bool:
    """Return whether an object has the `__dict__` that its class keeps for all of its objects."""
    return _name_of(value) is not None


def reduce_state(value: Any) -> Any:
    """Return the reduction of such an object; NotImplemented for others.

    Where the class has its state already, the object takes part in it. Else it brings the state along.
    """
    name = _name_of(value)
    if name is None:
        return NotImplemented
    state = {key: _lasting(one) for key, one in vars(value).items()}
    return stored.shared_state_object, (type(value), name), state, None, None, stored.fill_shared_state


def rebuild(kind: Any, name: str) -> Any:
    """Create an object with the `__dict__` that the class keeps under this name."""
    made = kind.__new__(kind)
    made.__dict__ = getattr(made, name)
    return made


def fill(value: Any, state: dict[str, Any]) -> None:
    """Give the class the state unless it has one."""
    own = vars(value)
    if not own:
        own.update(state)


def _lasting(value: Any) -> Any:
    """Return a value of the state without weak references, which mean objects of this process."""
    if isinstance(value, weakref.ref):
        return None
    return [one for one in value if not isinstance(one, weakref.ref)] if type(value) is list else value


def _name_of(value: Any) -> str | None:
    """Return the name under which the class keeps the object's `__dict__`; None if the object has its own."""
    names = _dicts_of(type(value))
    own = getattr(value, "__dict__", None) if names else None
    return next((name for name in names if getattr(value, name, None) is own), None)


def _dicts_of(kind: type) -> tuple[str, ...]:
    """Return the names under which a class and its bases keep dictionaries."""
    names = _names.get(kind)
    if names is None:
        found = {name: one for base in kind.__mro__ for name, one in vars(base).items()}
        names = tuple(name for name, one in found.items() if type(one) is dict and not name.startswith("__"))
        _names[kind] = names
    return names


_names: Final[weakref.WeakKeyDictionary[type, tuple[str, ...]]] = weakref.WeakKeyDictionary()
