"""Pause of Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_at_rest"]


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Disable the cyclic garbage collector inside the block, and restore it afterwards.

    A replay makes no cycles: what it drops is freed at once by its count of references. But each record of it that
    lives on is looked at again and again by the collector, which takes a seventh of a replay of 41,226 jobs; and a full
    collection of all that is imported (20 ms with scipy) falls into some decision and looks like a slow one.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
