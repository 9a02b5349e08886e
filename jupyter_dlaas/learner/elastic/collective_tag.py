"""Tags of collectives: one byte that holds the step and the kind of an all-reduce."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["TAG_STEPS", "Kind", "kind_of", "word_of"]

TAG_STEPS: Final = 50


class Kind(IntEnum):
    """Kinds of sums between learners."""

    GRADIENTS = 0
    LATE_GRADIENTS = 1
    """At the end of a backward pass."""
    LEFT = 2
    """A loop over batches is left."""
    EPOCH = 3
    """An epoch ended."""


def word_of(step: int, kind: Kind) -> int:
    """First byte of a sum, from 1 to 255."""
    return 1 + step % TAG_STEPS * len(Kind) + kind


def kind_of(word: int) -> Kind | None:
    """Return the kind that a word names; None where it names none."""
    return Kind((word - 1) % len(Kind)) if word else None
