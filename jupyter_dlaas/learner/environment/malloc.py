"""Memory of a program: the limit of its allocations, and what the C library keeps of freed blocks."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["keep_freed", "limit_data"]

SLACK_BYTES: Final = 256 << 20
"""Stacks of threads and arenas of the allocator are counted, though little of them is ever used."""

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


def limit_data(limit_bytes: int) -> None:
    """Let an allocation fail that is far above the job's limit of memory (0: none), with an error that has a line.

    What processes use is limited from outside (`runtime/guardian/resource_limits.py`), which notices it a moment later,
    and cannot tell where. Counted here is what is allocated from now on, used or not, so twice the limit is allowed.
    """
    if not limit_bytes:
        return
    with suppress(OSError, ValueError):
        has_bytes = _data_bytes()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = has_bytes + 2 * limit_bytes + SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0
