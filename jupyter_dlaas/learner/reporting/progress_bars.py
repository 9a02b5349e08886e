"""Counts of the program's progress bars, over repeated steps and restarts in the middle of a pass."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["OPEN", "Numbered", "back_to", "mark"]

OPEN: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""All open bars of this process."""


class Numbered:
    """An iterable that may begin in the middle or yield an item again, and knows its place."""

    index: int = -1
    """The index of the item last yielded."""


def mark() -> list[tuple[Any, float]]:
    """Return the open bars with their counts, to undo what a failed step adds to them."""
    return [(bar, bar.n) for bar in OPEN]


def back_to(marked: Sequence[tuple[Any, float]]) -> None:
    """Restore the counts of a mark."""
    for bar, count in marked:
        if bar.n > count:
            bar.n, bar.last_print_n = count, min(bar.last_print_n, count)
