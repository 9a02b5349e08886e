"""Journal file of a job: one fact per line, numbered without gaps, readable after any crash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import write_whole
from jupyter_dlaas.jobdir.disk_space import reserve
from jupyter_dlaas.runtime.system.process import uptime_s
from jupyter_dlaas.wire.journal import Fact, FactKind, JobClosed, fact_to_line, find_fact
from jupyter_dlaas.wire.masked_records import masked_fact
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask

__all__ = ["Journal", "facts_of", "is_closed", "read_facts"]

_LASTING: Final = frozenset(
    {
        FactKind.CHECKPOINT,
        FactKind.CLOSED,
        FactKind.COMMITTED,
        FactKind.COMPLETED,
        FactKind.HALTED,
        FactKind.LOST,
    }
)
"""Kinds of facts that are synced to disk. A power cut ends all processes, so facts about those need not survive."""
_LAST_BYTES: Final = 1024
"""Length of the part that is read for the last fact: more than the fact of a closed job has."""
_RESERVE_BYTES: Final = 1 << 15
"""Reserved space: about a hundred facts, more than a job writes while it leaves its devices."""


def facts_of(data: bytes) -> list[Fact]:
    """Return the facts of all whole lines. Skip damaged lines, which a power cut can leave."""
    read = (find_fact(line) for line in data[: data.rfind(b"\n") + 1].split(b"\n"))
    return [fact for fact in read if fact is not None]


def read_facts(path: Path, offset: int = 0) -> tuple[Sequence[Fact], int]:
    """Return the facts after byte `offset`, and the offset after the last whole line."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return (), offset
    return facts_of(data), offset + data.rfind(b"\n") + 1


def is_closed(path: Path) -> bool:
    """Return whether the last fact of a journal says that its job was closed. Reads only the end of the file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            data = file.read()
    except OSError:
        return False
    last = find_fact(data[: data.rfind(b"\n") + 1].rstrip(b"\n").rpartition(b"\n")[2])
    return isinstance(last, JobClosed)


class Journal:
    """Only writer of a journal. Opening it removes a line that a crash left incomplete.

    A full disk loses no facts: they wait in memory, in order, until `flush` can write them. Space is reserved for the
    last ones, so that a job can leave its devices on a full disk.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time, *, mask: Mask = NO_MASK) -> None:
        self._path, self._now, self._mask = path, now, mask
        self._fd = _open(path)
        data = _content(self._fd)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._fd, whole)
        self.earlier: Sequence[Fact] = facts_of(data)
        """Facts that earlier guardians wrote."""
        self._next = 1 + max((fact.n for fact in self.earlier), default=-1)
        self._waiting: list[Fact] = []
        self._reserved = 0
        self._reserve(os.fstat(self._fd).st_size)

    def append(self, fact: Fact) -> Fact:
        """Write one fact now, with the next number and the time. Return it as written."""
        written = masked_fact(replace(fact, n=self._next, at_s=self._now(), up_s=round(uptime_s(), 3)), self._mask)
        self._next += 1
        self._waiting.append(written)
        self.flush()
        return written

    def number_from(self, read: int) -> None:
        """Use no number below `read` again, even if the lines with these numbers are lost."""
        self._next = max(self._next, read)

    def renew(self) -> None:
        """Restore the file if it was removed or replaced, unless its directory is gone or the disk is full."""
        with suppress(OSError):
            if os.fstat(self._fd).st_nlink == 0 and self._path.parent.is_dir():
                write_whole(self._path, _content(self._fd), sync=True)
                lost, self._fd = self._fd, _open(self._path)
                os.close(lost)
                self._reserved = 0

    def flush(self) -> bool:
        """Write waiting facts. Return False while the disk accepts none."""
        while self._waiting:
            fact = self._waiting[0]
            line = fact_to_line(fact)
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # another writer left an unfinished line: start a new one
            try:
                written = os.write(self._fd, line)
                if written < len(line):
                    raise OSError("the disk is full")
                if fact.kind in _LASTING:
                    os.fsync(self._fd)
            except OSError:
                if os.fstat(self._fd).st_size > size:
                    os.ftruncate(self._fd, size)  # an incomplete line must not stay: a reader would wait for its end
                return False
            self._waiting.pop(0)
            if fact.kind is FactKind.CLOSED:
                os.ftruncate(self._fd, size + len(line))  # gives back what is still reserved
            else:
                self._reserve(size + len(line))
        return True

    def _reserve(self, size: int) -> None:
        if size + _RESERVE_BYTES // 2 > self._reserved:
            self._reserved = size + _RESERVE_BYTES
            reserve(self._fd, size, self._reserved)

    def close(self) -> None:
        os.close(self._fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _content(fd: int) -> bytes:
    data = b""
    while chunk := os.pread(fd, 1 << 20, len(data)):
        data += chunk
    return data
