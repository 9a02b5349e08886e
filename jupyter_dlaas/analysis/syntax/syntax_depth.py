"""Maximum depth of a syntax tree. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

RECURSION_LIMIT: Final = 50_000
"""Recursion limit. Python's compiler accepts trees about 3,000 levels deep; one level takes up to five frames."""


@contextmanager
def deep_trees() -> Iterator[None]:
    """Allow recursion through every syntax tree that Python can run: a chain of 400 `elif` is 400 levels deep."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
