"""What was logged: metrics.jsonl, and `run.history` made of it, whole over halts, resizes and crashes."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["History", "Metrics", "number_of"]

_PATIENCE_S: Final = 5.0
"""Who was the writer is on its way out, or is dead: so long its last line is waited for."""
History = dict[str, list[float]]
"""Metric -> all its values in the order in which they were logged."""


def number_of(name: str, value: Any) -> float:
    """A logged value as a number: also tensors and arrays of one element. Raises TypeError."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int | float):
        return float(value)
    raise TypeError(f"run.log({name}=…): a {type(value).__name__} is no number")


def _is_ours(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Metrics:
    """The file of one job, as its present rank 0 goes on with it; without a path only the history is kept."""

    def __init__(self, path: Path | None, step: int | None) -> None:
        """`step`: training goes on from there; None: it starts. What was logged for later steps is taken back."""
        self.history: History = {}
        self._path = path
        self._fd: int | None = None
        self._waiting = b""
        """What a full disk did not take yet, the rest of a torn line first."""
        self._is_waiting = False
        """More is coming that is written with it."""
        self._is_later = False
        self._step = -1 if step is None else step
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        kept: list[tuple[int, dict[str, Any]]] = []
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if "rewind" in record:
                kept = [one for one in kept if one[0] <= record["rewind"]]
            elif isinstance(record.get("values"), dict):
                kept.append((int(record.get("step", 0)), record["values"]))
        self._is_later = any(step > self._step for step, _ in kept)
        for step, values in kept:
            if step <= self._step:
                self._keep(values)

    def _keep(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.history.setdefault(name, []).append(math.nan if value is None else value)

    def open(self) -> None:
        """Take the file over as its writer: a torn line goes, and what no longer counts is taken back.

        Waits for the writer before, who may be about to write its last line.
        """
        if self._path is None or self._fd is not None:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        until_s = time.monotonic() + _PATIENCE_S
        while not _is_ours(fd) and time.monotonic() < until_s:
            time.sleep(0.002)
        self.history = {}
        self._read(self._path)
        size = os.fstat(fd).st_size
        tail = os.pread(fd, 1 << 16, max(0, size - (1 << 16)))
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        if torn:
            os.ftruncate(fd, size - torn)
        self._fd = fd
        if self._is_later:
            self._write({"t": time.time(), "rewind": self._step})

    def close(self) -> None:
        """Give the file to the next writer."""
        if self._fd is not None:
            self.flush()
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a forked data worker holds the same lock as long as it lives
            os.close(self._fd)
            self._fd = None

    def log(self, values: dict[str, float], *, step: int, epoch: int, source: str) -> None:
        """Add one record. NaN and the infinities, which JSON lacks, are written as null."""
        self._keep(dict(values))
        if self._fd is not None:
            sent = {name: value if math.isfinite(value) else None for name, value in values.items()}
            self._write({"t": time.time(), "step": step, "epoch": epoch, "values": sent, "source": source})

    @contextmanager
    def together(self) -> Iterator[None]:
        """All records of this time go to the file in one piece."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False
            self.flush()

    def _write(self, record: dict[str, Any]) -> None:
        self._waiting += json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if not self._is_waiting:
            self.flush()

    def flush(self) -> None:
        """A full disk ends no training: what it does not take is written later."""
        with suppress(OSError):
            while self._waiting and self._fd is not None:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
