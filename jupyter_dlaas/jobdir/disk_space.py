"""Disk space of open files: reserved ahead or released, while the files keep their sizes."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

__all__ = ["release", "reserve"]

_KEEP_SIZE: Final = 0x01  # FALLOC_FL_KEEP_SIZE (linux/falloc.h)
_PUNCH_HOLE: Final = 0x02 | _KEEP_SIZE  # FALLOC_FL_PUNCH_HOLE


def reserve(fd: int, first: int, end: int) -> None:
    """Reserve the disk space of bytes [first, end). Does nothing if the disk is full or the file system cannot."""
    _allocate(fd, _KEEP_SIZE, first, end)


def release(fd: int, first: int, end: int) -> None:
    """Release the disk space of bytes [first, end). Unsupported file systems keep it until the file is removed."""
    _allocate(fd, _PUNCH_HOLE, first, end)


def _allocate(fd: int, mode: int, first: int, end: int) -> None:
    if first < end:
        with suppress(AttributeError):  # not Linux
            call = ctypes.CDLL(None, use_errno=True).fallocate
            call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
            call(fd, mode, first, end - first)
