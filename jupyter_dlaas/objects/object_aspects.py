"""Aspect of an object: one way in which it can change, as a checkpoint reads, compares and restores it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_dlaas.objects.array_digests import Budget

__all__ = ["Aspect"]


class Aspect:
    """One way in which an object can change."""

    is_whole = False
    """True if it is stored as an object and its holder receives a new one."""
    is_pickled = False
    """True if it is read as the pickle of the object."""
    is_of_epoch = False
    """True if a `with` statement around an inner loop may have changed it, so that its end restores what it found.

    Where an epoch that was interrupted begins again, it has its value from the beginning of that epoch.
    """
    can_revert = True
    """True if the value before the loop is known, not only its checksum."""

    def read(self, value: Any, budget: Budget) -> Any:
        """Return the state to compare with later."""
        raise NotImplementedError

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the objects that it holds, each with the step that leads there."""
        return iter(())

    def differs(self, base: Any, now: Any) -> bool:
        """Return whether two results of `read` differ."""
        return bool(base != now)

    def is_opaque(self, value: Any) -> bool:
        """Return whether it holds objects that have no path of their own, so that it is stored changed or not."""
        return False

    def mark(self, value: Any, now: Any) -> None:
        """Record the state at the beginning of an epoch."""

    def withheld(self, base: Any, now: Any) -> Mapping[str, str]:
        """Return, by path, the changes that `carry` leaves out on purpose, with the reasons; "" is the object's."""
        return {}

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        """Return the data that a checkpoint stores for a change."""
        return now

    def put(self, value: Any, carried: Any) -> None:
        """Apply stored data to the object."""
        raise NotImplementedError

    def copy(self, value: Any) -> Any:
        """Return data from which `put` restores the object if `read` gives only a checksum, else None."""
        return None

    def size(self, value: Any) -> int:
        """Return the size of `copy` in bytes."""
        return 0

    def revert(self, value: Any, base: Any, now: Any) -> None:
        """Restore the former state."""
        self.put(value, self.carry(value, now, base))
