"""Tags of collectives: one byte that holds the step (modulo 50) and the kind of an all-reduce."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["TAG_STEPS", "Kind", "kind_of", "tag_of"]

TAG_STEPS: Final = 50


class Kind(IntEnum):
    """The kinds of all-reduce between learners."""

    GRADIENTS = 0
    LATE_GRADIENTS = 1
    """Gradients averaged at the end of a backward pass."""
    LEFT = 2
    """A learner leaves the loop over batches."""
    EPOCH = 3
    """An epoch has ended."""


def tag_of(step: int, kind: Kind) -> int:
    """Return the tag of an all-reduce, from 1 to 255."""
    return 1 + step % TAG_STEPS * len(Kind) + kind


def kind_of(tag: int) -> Kind | None:
    """Return the kind that a tag encodes; None for tag 0."""
    return Kind((tag - 1) % len(Kind)) if tag else None
