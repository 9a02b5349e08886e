"""Memory of a program: the limit of its allocations, and the freed blocks that the C library keeps."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["keep_freed", "limit_data"]

SLACK_BYTES: Final = 256 << 20
"""An allowance for thread stacks and allocator arenas, which count although little of them is used."""

_SETTINGS: Final = (
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 << 20),
    ("MALLOC_TRIM_THRESHOLD_", -1, 64 << 20),
)
"""The user's environment variable, the mallopt parameter (glibc, malloc.h), and glibc's own largest value in bytes."""


def keep_freed() -> None:
    """Let glibc keep freed blocks of up to 32 MiB, as it does by itself once it has freed a block that large.

    Until then, gradients and temporaries of some MB are returned to the kernel at each step, and their pages are
    faulted in again. A fork of a zygote, which frees nothing large during its imports, had 1,100 page faults per step
    of a 784-512-10 network, 30 % of its time. Whether a plain process has them is chance. The user's own variables take
    precedence.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for variable, number, size in _SETTINGS:
            wanted = os.environ.get(variable, "")
            mallopt(number, int(wanted) if wanted.isdigit() else size)


def limit_data(limit_bytes: int) -> None:
    """Make an allocation far above the job's memory limit (0: none) fail with an error that has a line.

    The memory that processes use is limited from outside (`runtime/hosts/resource_limits.py`), which reacts a moment
    later and cannot name the line. This limit counts all memory allocated from now on, used or not, so it permits twice
    the job's limit.
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
