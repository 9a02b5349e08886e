"""Size cap of a learner's log: head and tail are kept, and a mark names the gap between them.

The program itself appends to the file, so it cannot be rotated while the program runs. The dropped part becomes a hole
in the file, which takes no disk space; after the learner's end, the file is rewritten without the hole. Offsets remain
those of the whole log: `stdout.cut` says which bytes are missing, and `CutLog` reads around them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import read_json, write_whole
from jupyter_dlaas.jobdir.disk_space import release
from jupyter_dlaas.jobdir.log_index import LOG

__all__ = ["CUT", "HEAD_BYTES", "TAIL_BYTES", "Cut", "CutLog", "LogCap", "log_size", "read_cut"]

CUT: Final = "stdout.cut"
HEAD_BYTES: Final = 8 << 20
TAIL_BYTES: Final = 24 << 20
STEP_BYTES: Final = 8 << 20
"""Bytes by which the tail may exceed its limit before its beginning is dropped."""
_COPY_BYTES: Final = 1 << 20
_LINE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Cut:
    """Missing bytes [first, end) of a log.

    `size` is the size of the whole log; it is set once the file was rewritten without these bytes.
    """

    first: int
    end: int
    size: int | None = None


def read_cut(folder: Path) -> Cut | None:
    """Return the missing range of the log in a learner's directory, or None."""
    body = read_json(folder / CUT) or {}
    first, end, size = body.get("first"), body.get("end"), body.get("size")
    if not isinstance(first, int) or not isinstance(end, int):
        return None
    return Cut(first, end, size if isinstance(size, int) else None)


def log_size(file_bytes: int, cut: Cut | None) -> int:
    """Return the size of the whole log from the size of its file."""
    return file_bytes if cut is None or cut.size is None else cut.size


class LogCap:
    """Cap on one learner's log, applied by the guardian."""

    def __init__(self, folder: Path, *, head: int = HEAD_BYTES, tail: int = TAIL_BYTES, step: int = STEP_BYTES) -> None:
        self._folder, self._log = folder, folder / LOG
        self._head, self._tail, self._step = head, tail, step
        kept = f"first {head >> 20} and last {tail >> 20} MiB" if head >> 20 else "head and tail"
        self._mark = (
            f"\n[… the middle of this log was dropped: it is longer than the {kept} that are kept …]\n".encode()
        )
        self._cut = read_cut(folder)

    def look(self) -> None:
        """Drop the part that exceeds the cap."""
        begins = self._head if self._cut is None else self._cut.end
        try:
            size = self._log.stat().st_size
            if size - begins <= self._tail + self._step or (self._cut is not None and self._cut.size is not None):
                return
            fd = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._drop(fd, size)
            finally:
                os.close(fd)
        except OSError:
            return  # gone, or the disk is full: retried when more arrives

    def _drop(self, fd: int, size: int) -> None:
        end = size - self._tail
        end += os.pread(fd, min(_LINE_BYTES, self._tail), end).find(b"\n") + 1  # begin with a whole line
        first = self._head + len(self._mark)
        if self._cut is None:
            os.pwrite(fd, self._mark, self._head)
        before = first if self._cut is None else self._cut.end
        self._note(Cut(first, end))  # recorded before the bytes are gone, so that no reader reads a hole
        release(fd, before, end)

    def finish(self) -> None:
        """Rewrite an ended learner's log without the missing part."""
        self.look()
        cut = self._cut
        if cut is None or cut.size is not None:
            return
        part = self._log.with_name(f".{LOG}.{os.getpid()}")
        try:
            with self._log.open("rb") as file, part.open("xb") as to:
                part.chmod(0o600)
                size = os.fstat(file.fileno()).st_size
                for piece in _pieces(file.fileno(), 0, cut.first):
                    to.write(piece)
                for piece in _pieces(file.fileno(), cut.end, size):
                    to.write(piece)
            self._note(Cut(cut.first, cut.end, size))
            part.replace(self._log)
        except OSError:  # no space: the hole stays
            with suppress(OSError):
                self._note(cut)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _note(self, cut: Cut) -> None:
        body = {"first": cut.first, "end": cut.end} | ({} if cut.size is None else {"size": cut.size})
        write_whole(self._folder / CUT, json.dumps(body).encode())
        self._cut = cut


def _pieces(fd: int, first: int, end: int) -> Iterator[bytes]:
    while first < end and (piece := os.pread(fd, min(_COPY_BYTES, end - first), first)):
        yield piece
        first += len(piece)


class CutLog:
    """Reader of an open log by offsets of the whole log."""

    def __init__(self, fd: int, folder: Path) -> None:
        self._fd, self._folder = fd, folder
        self._file_bytes = os.fstat(fd).st_size
        self._cut = read_cut(folder)
        self.size = log_size(self._file_bytes, self._cut)

    def next_offset(self, offset: int) -> int:
        """Return the first available offset at or after `offset`."""
        cut = self._cut
        return cut.end if cut is not None and cut.first <= offset < cut.end else offset

    def limit(self, offset: int) -> int:
        """Return the end of the contiguous bytes from `offset` on."""
        cut = self._cut
        return cut.first if cut is not None and offset < cut.first else self.size

    def start(self, offset: int) -> int:
        """Return the start of the contiguous bytes before `offset`."""
        cut = self._cut
        return cut.end if cut is not None and offset >= cut.end else 0

    def pread(self, offset: int, count: int) -> bytes:
        """Return up to `count` contiguous bytes; fewer at the end of the range."""
        count = min(count, self.limit(offset) - offset)
        at = offset
        cut = self._cut
        # Between the cut's record and the file's replacement, the old file is still there, as long as the whole log.
        if cut is not None and cut.size is not None and offset >= cut.end and self._file_bytes < cut.size:
            at = offset - cut.end + cut.first
        parts: list[bytes] = []
        while count > 0 and (part := os.pread(self._fd, min(count, 1 << 24), at)):
            parts.append(part)
            at += len(part)
            count -= len(part)
        return b"".join(parts)

    def is_current(self) -> bool:
        """Return whether nothing was dropped since the log was opened, so that the bytes read are valid."""
        now = read_cut(self._folder)
        return now is None or (self._cut is not None and now.end == self._cut.end)
