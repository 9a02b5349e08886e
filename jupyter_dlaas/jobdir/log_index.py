"""What a guardian does with a learner's log: the index of when which byte was written, and masked secrets."""

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
    """Keeps `stdout.idx` of one log: a line `offset time` says that the bytes from `offset` on were there at `time`."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / LOG
        path = folder / INDEX
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Bytes that came while no guardian looked count to the entry before them: the gap is as short as its absence.
        self._end = self._size() if read_index(path) else 0

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except FileNotFoundError:
            return 0

    def look(self, now_s: float | None = None) -> bool:
        """Note what was appended since the last look; True when there was something, and the disk took the note."""
        size = self._size()
        if size <= self._end:
            return False
        now_s = time.time() if now_s is None else now_s
        try:
            os.write(self._fd, f"{self._end} {now_s:.3f}\n".encode())
            if os.fstat(self._fd).st_size > _INDEX_BYTES_MAX:
                self._thin()
        except OSError:
            return False  # the disk is full: these bytes count to the next note
        self._end = size
        return True

    def _thin(self) -> None:
        """Keep every second entry, so that the index of a log that is written for weeks stays short."""
        path = self._log.with_name(INDEX)
        entries = read_index(path)
        write_whole(path, b"".join(b"%d %.3f\n" % entry for entry in entries[:-1:2] + entries[-1:]))
        thick, self._fd = self._fd, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.close(thick)

    def close(self) -> None:
        os.close(self._fd)


class LogMask:
    """Overwrites the secrets in one log, a moment after the program has written them.

    The program appends to the file itself, so nothing stands between it and the disk; a secret and its mask have the
    same length, so that nobody else's offsets change.
    """

    def __init__(self, folder: Path, mask: Mask) -> None:
        self._log, self._mask = folder / LOG, mask
        self._done = 0

    def look(self) -> None:
        """Mask what was appended since the last look."""
        try:
            fd = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            overlap = max(0, self._mask.longest_bytes - 1)
            while True:
                start = max(0, self._done - overlap)  # a secret may come in two pieces
                data = os.pread(fd, _PIECE_BYTES, start)
                if start + len(data) <= self._done:
                    return
                for first, end in self._mask.places(data):
                    os.pwrite(fd, b"*" * (end - first), start + first)
                self._done = start + len(data)
        except OSError:
            return  # tried again with what comes next; readers mask what they read, too
        finally:
            os.close(fd)


def read_index(path: Path) -> list[Entry]:
    """All entries of an index, in order of their offsets; torn or damaged lines are passed over."""
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
    """When the byte at `offset` was written, as well as is known."""
    at = bisect.bisect_right(entries, offset, key=lambda entry: entry[0]) - 1
    return entries[at][1] if at >= 0 else None
