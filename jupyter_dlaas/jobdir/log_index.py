"""Index and masking of a learner's log: the guardian records when bytes were written, and masks secrets."""

from __future__ import annotations

import bisect
import os
import time
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import write_whole
from jupyter_dlaas.wire.secret_masking import Mask

__all__ = ["INDEX", "LOG", "LogIndex", "LogMask", "read_index", "time_of"]

LOG: Final = "stdout.log"
INDEX: Final = "stdout.idx"
Entry = tuple[int, float]
_INDEX_BYTES_MAX: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 22


class LogIndex:
    """Writer of a log's `stdout.idx`: a line `offset time` says that the bytes from `offset` on existed at `time`."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / LOG
        path = folder / INDEX
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Bytes written while no guardian ran count to the previous entry: the error is as short as the guardian's
        # absence.
        self._end = self._size() if read_index(path) else 0

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except FileNotFoundError:
            return 0

    def look(self, now_s: float | None = None) -> bool:
        """Record the bytes appended since the last look. Return whether there were any and the record was written."""
        size = self._size()
        if size <= self._end:
            return False
        now_s = time.time() if now_s is None else now_s
        try:
            os.write(self._fd, f"{self._end} {now_s:.3f}\n".encode())
            if os.fstat(self._fd).st_size > _INDEX_BYTES_MAX:
                self._thin()
        except OSError:
            return False  # the disk is full: these bytes belong to the next entry
        self._end = size
        return True

    def _thin(self) -> None:
        """Keep every second entry, so that the index of a log written for weeks stays short."""
        path = self._log.with_name(INDEX)
        entries = read_index(path)
        write_whole(path, b"".join(b"%d %.3f\n" % entry for entry in entries[:-1:2] + entries[-1:]))
        thick, self._fd = self._fd, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.close(thick)

    def close(self) -> None:
        os.close(self._fd)


class LogMask:
    """Masking of secrets in one log, shortly after the program has written them.

    The program itself appends to the file, so its output cannot be filtered before it reaches the disk. A secret and
    its mask have the same length, so that no offsets change.
    """

    def __init__(self, folder: Path, mask: Mask) -> None:
        self._log, self._mask = folder / LOG, mask
        self._done = 0

    def look(self) -> None:
        """Mask the bytes appended since the last look."""
        try:
            fd = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            overlap = max(0, self._mask.longest_bytes - 1)
            while True:
                start = max(0, self._done - overlap)  # a secret may arrive in two parts
                data = os.pread(fd, _PIECE_BYTES, start)
                if start + len(data) <= self._done:
                    return
                for first, end in self._mask.places(data):
                    os.pwrite(fd, b"*" * (end - first), start + first)
                self._done = start + len(data)
        except OSError:
            return  # retried with the next output; readers also mask what they read
        finally:
            os.close(fd)


def read_index(path: Path) -> list[Entry]:
    """Return all entries of an index in order of their offsets. Skip incomplete or damaged lines."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return []
    entries: list[Entry] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            offset, at_s = line.split()
            entries.append((int(offset), float(at_s)))
        except ValueError:
            continue
    return entries


def time_of(entries: list[Entry], offset: int) -> float | None:
    """Return the time at which the byte at `offset` was written, as far as it is known."""
    at = bisect.bisect_right(entries, offset, key=lambda entry: entry[0]) - 1
    return entries[at][1] if at >= 0 else None
