"""Aspect of an object: one way in which it can change, as a checkpoint reads, compares and puts it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jupyter_dlaas.objects.array_digests import Budget

__all__ = ["Aspect"]


class Aspect:
    """One way in which an object can change."""

    is_whole = False
    """It is stored as an object, and whatever holds it gets another one."""
    can_revert = True
    """True where the value before the loop is known, not only its checksum."""

    def read(self, value: Any, budget: Budget) -> Any:
        """Return what to compare with later."""
        raise NotImplementedError

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the objects that it holds, each with the step that leads there."""
        return iter(())

    def differs(self, base: Any, now: Any) -> bool:
        """Compare what `read` returned at two times."""
        return bool(base != now)

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        """Return what a checkpoint stores of a change."""
        return now

    def put(self, value: Any, carried: Any) -> None:
        """Apply what was stored."""
        raise NotImplementedError

    def copy(self, value: Any) -> Any:
        """Return what `put` makes the object again, where `read` only gives a checksum; None where nothing does."""
        return None

    def size(self, value: Any) -> int:
        """Return how many bytes `copy` takes."""
        return 0

    def revert(self, value: Any, base: Any, now: Any) -> None:
        """Make it again what it was."""
        self.put(value, self.carry(value, now, base))
