"""Huge pages for the memory of a process from which others are forked: a fork copies one entry instead of 512.

Measured with PyTorch loaded (384 MB of memory of its own): a fork takes 2 to 3 ms instead of 7 to 13. A page that a
fork changes is still copied alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["collapse"]

_HUGE_BYTES: Final = 2 << 20
_MADV_COLLAPSE: Final = 25
"""Since Linux 6.1, see madvise(2)."""
_OWN: Final = frozenset({"", "[heap]"})


def collapse() -> int:
    """Move this process's own memory to huge pages, and return how many bytes were moved; 0 where that is impossible.

    Call it before the first fork: forks would keep the former pages as well.
    """
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    moved = 0
    for first, last in _own_ranges():
        begin, end = -(-first // _HUGE_BYTES) * _HUGE_BYTES, last // _HUGE_BYTES * _HUGE_BYTES
        if begin < end and advise(begin, end - begin, _MADV_COLLAPSE) == 0:
            moved += end - begin
    return moved


def _own_ranges() -> Iterator[tuple[int, int]]:
    """Yield the addresses of writable private memory that belongs to no file."""
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            place, rights, _, _, _, *name = line.split(maxsplit=5)
            if rights == "rw-p" and "".join(name).strip() in _OWN:
                first, _, last = place.partition("-")
                yield int(first, 16), int(last, 16)
