"""How the C library keeps memory that a training frees at each step."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed"]

_SETTINGS: Final = (
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 << 20),
    ("MALLOC_TRIM_THRESHOLD_", -1, 64 << 20),
)
"""The user's variable, number for mallopt (glibc, malloc.h), bytes: the largest that glibc itself comes to."""


def keep_freed() -> None:
    """Let glibc hold on to freed blocks of up to 32 MiB, as it does of itself after it once freed one as large.

    Until then gradients and temporaries of some MB go back to the kernel at each step, and every page of them is
    faulted in again: a fork of a zygote, which frees nothing large while it imports, had 1,100 page faults a step of a
    784-512-10 network, 30 % of its time; whether a plain process has them is chance. The user's own variables win.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for variable, number, size in _SETTINGS:
            wanted = os.environ.get(variable, "")
            mallopt(number, int(wanted) if wanted.isdigit() else size)
