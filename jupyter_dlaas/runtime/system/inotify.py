"""Watching of directories by Linux inotify, with polling as the fallback."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path
from typing import Final

__all__ = ["Watch"]

_MODIFY: Final = 0x2
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE_SELF: Final = 0x400
_IGNORED: Final = 0x8000
_EVENT: Final = struct.Struct("iIII")


class Watch:
    """Watcher of directories that reports files that were written, created or renamed.

    `fd` becomes readable on a change; `read` never blocks. If inotify is missing or exhausted, `read` compares sizes
    and times instead: call it regularly.
    """

    def __init__(self) -> None:
        self.fd: int | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._folders: dict[int, Path] = {}
        self._polled: dict[Path, dict[str, tuple[int, int]]] = {}
        if self._libc is not None:
            fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            self.fd = fd if fd >= 0 else None

    def add(self, path: Path) -> None:
        """Watch the files of a directory. Watching it twice has no further effect. Raise FileNotFoundError."""
        if self.fd is not None and self._libc is not None:
            mask = _MODIFY | _MOVED_TO | _CREATE
            number = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
            if number >= 0:
                self._folders[number] = path
                return
            code = ctypes.get_errno()
            if code not in (errno.ENOSPC, errno.ENOMEM, errno.ENOSYS):
                raise OSError(code, os.strerror(code), str(path))
        if not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._polled.setdefault(path, {})

    def remove(self, path: Path) -> None:
        """Stop watching a directory."""
        self._polled.pop(path, None)
        for number in [n for n, folder in self._folders.items() if folder == path]:
            del self._folders[number]
            if self.fd is not None and self._libc is not None:
                self._libc.inotify_rm_watch(self.fd, number)  # fails harmlessly if the directory is gone

    @property
    def must_poll(self) -> bool:
        """True if a directory is polled, so that `fd` does not report all changes."""
        return bool(self._polled)

    def read(self) -> set[Path]:
        """Return the files that changed since the last call."""
        found: set[Path] = set()
        while self.fd is not None:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                if mask & _IGNORED:
                    self._folders.pop(number, None)
                elif name and number in self._folders:
                    found.add(self._folders[number] / os.fsdecode(name))
        for folder, known in self._polled.items():
            found |= _look(folder, known)
        return found

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _look(folder: Path, known: dict[str, tuple[int, int]]) -> set[Path]:
    found: set[Path] = set()
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return found
    for entry in entries:
        try:
            info = entry.stat()
        except FileNotFoundError:
            continue
        mark = (info.st_size, info.st_mtime_ns)
        if known.get(entry.name) != mark:
            known[entry.name] = mark
            found.add(folder / entry.name)
    return found
