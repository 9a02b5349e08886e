"""Who wrote into which folder: Linux' inotify, and looking again where there is none."""

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
    """Tells which files in the watched folders were written, made or renamed.

    `fd` becomes readable when there is news; `read` never blocks. Where inotify is missing or used up, `fd` is None and
    `read` compares sizes and times: call it every now and then.
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
        """Watch the files of a folder. Watching it twice changes nothing. Raises FileNotFoundError."""
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
        """Watch a folder no longer."""
        self._polled.pop(path, None)
        for number in [n for n, folder in self._folders.items() if folder == path]:
            del self._folders[number]
            if self.fd is not None and self._libc is not None:
                self._libc.inotify_rm_watch(self.fd, number)  # fails where the folder is gone: as good

    @property
    def must_poll(self) -> bool:
        """Whether some folder is watched by looking again, so that `fd` alone does not tell all."""
        return bool(self._polled)

    def read(self) -> set[Path]:
        """The files with news since the last call."""
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
