"""Messages for a reader of a job after its cursor, the same for the WebSocket and the long poll.

A cursor is a position in the event table and in append-only files, so it stays valid after a restart of everything.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlaas_server.core.presentation.clock_shift import shifted_progress
from dlaas_server.engine.estimation.pace import with_time_left
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.pools.base import METRICS, PROGRESS, Chunk, PoolUnavailable, log_of
from jupyter_dlaas.wire.codec import Invalid, Json, decode_float, encode, encode_float
from jupyter_dlaas.wire.protocol import Cursor, NotFound

__all__ = [
    "CHUNK_BYTES",
    "WANTS",
    "Message",
    "Reader",
    "Watchers",
    "cursor_of",
    "curves",
    "metric_records",
    "text_of",
    "thinned",
]

Message = dict[str, Json]
CHUNK_BYTES: Final = 65_536
SKIP_BYTES: Final = 4 * 2**20
"""Lag in one log, in bytes, beyond which a reader skips to the tail, with a mark."""
TAIL_BYTES: Final = 256 * 1024
WANTS: Final = ("view", "log", "metrics")


@dataclass(slots=True)
class Reader:
    """Reader of one job, with a cursor of its own."""

    lifecycle: Lifecycle
    job: str
    row: int = 0
    metrics: int = 0
    logs: dict[str, int] = field(default_factory=dict)
    want: Sequence[str] = WANTS
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _stale: set[str] = field(default_factory=set)  # streams that may have new data; the view is always checked
    _first: bool = True
    _progress_s: float = 0.0
    bytes_sent: int = 0
    """Bytes of log and metrics sent so far, for acknowledgements."""

    def stream_changed(self, stream: str) -> None:
        """Record that a stream may have new data."""
        self._stale.add(stream)
        self.news.set()

    def skip_progress(self) -> None:
        """Treat the present progress as already sent."""
        progress = self.lifecycle.progress.get(self.job)
        self._progress_s = progress.at_s if progress is not None else 0.0

    def cursor(self) -> Cursor:
        """Return the cursor."""
        return Cursor(row=self.row, metrics=self.metrics, logs=dict(self.logs))

    async def messages(self, budget: int = 4 * CHUNK_BYTES) -> list[Message]:
        """Return all new messages, up to about `budget` bytes of logs and metrics, and advance the cursor."""
        self.news.clear()
        out: list[Message] = []
        job = self.lifecycle.jobs.get(self.job)
        if job is None:
            return [{"type": "gone", "job": self.job}]
        if "view" in self.want and self.lifecycle.rows[self.job] > self.row:
            view = self.lifecycle.view(job)
            self.row = view.row
            out.append({"type": "job", "job": encode(view)})
        stale, self._stale = self._stale, set()
        if self._first:
            self._first = False
            stale = set(await self._streams())
        if PROGRESS in stale and "view" in self.want:
            out += self._progress()
        for stream in sorted(stale - {PROGRESS}):
            left = budget - sum(_size(m) for m in out)
            out += await self._read(stream, max(left, 0))
        self.bytes_sent += sum(_size(m) for m in out)
        return out

    def touch_view(self) -> None:
        """Send the view again: it changed without a new row, for example by another wait reason."""
        self.row = min(self.row, self.lifecycle.rows.get(self.job, 1) - 1)
        self.news.set()

    async def _streams(self) -> Mapping[str, int]:
        try:
            return await self.lifecycle.pool.streams(self.job)
        except NotFound:
            return {}  # its directory does not exist yet: it waits
        except PoolUnavailable:
            self._first = True  # read them when the pool reports news
            return {}

    def _progress(self) -> list[Message]:
        progress = self.lifecycle.progress.get(self.job)
        if progress is None or progress.at_s == self._progress_s:
            return []
        self._progress_s = progress.at_s
        report = shifted_progress(with_time_left(progress), self.lifecycle.drift())
        return [{"type": "progress", "job": self.job, "progress": encode(report)}]

    async def _read(self, stream: str, budget: int) -> list[Message]:
        if stream == METRICS:
            return await self._read_metrics(budget) if "metrics" in self.want else []
        if stream.startswith("log:") and "log" in self.want:
            return await self._read_log(stream.removeprefix("log:"), budget)
        return []

    async def _read_metrics(self, budget: int) -> list[Message]:
        out: list[Message] = []
        while budget > 0:
            chunk = await self._chunk(METRICS, self.metrics)
            whole = chunk.data.rfind(b"\n") + 1
            if not whole:
                return out
            start, self.metrics = self.metrics, self.metrics + whole
            records: list[Json] = list(metric_records(chunk.data[:whole]))
            out.append({"type": "metrics", "job": self.job, "from": start, "to": self.metrics, "records": records})
            budget -= whole
        self.stream_changed(METRICS)
        return out

    async def _read_log(self, member: str, budget: int) -> list[Message]:
        out: list[Message] = []
        stream = log_of(int(member))
        while budget > 0:
            offset = self.logs.get(member, 0)
            chunk = await self._chunk(stream, offset)
            if chunk.size - offset > SKIP_BYTES:
                tail = chunk.size - TAIL_BYTES
                self.logs[member] = tail
                out.append({"type": "log_skipped", "job": self.job, "member": int(member), "from": offset, "to": tail})
                continue
            if chunk.start > offset:  # the middle of a long log is not kept
                self.logs[member] = chunk.start
                out.append(
                    {"type": "log_skipped", "job": self.job, "member": int(member), "from": offset, "to": chunk.start}
                )
                continue
            text, used = text_of(chunk)
            if not used:
                return out
            self.logs[member] = offset + used
            at_s = await self.lifecycle.pool.time_of(self.job, int(member), offset + used - 1)
            out.append(
                {
                    "type": "log",
                    "job": self.job,
                    "member": int(member),
                    "from": offset,
                    "to": offset + used,
                    "text": text,
                    "at_s": at_s,
                }
            )
            budget -= used
        self.stream_changed(stream)
        return out

    async def _chunk(self, stream: str, offset: int) -> Chunk:
        try:
            return await self.lifecycle.pool.read(self.job, stream, offset, CHUNK_BYTES)
        except (NotFound, PoolUnavailable):  # a pool that can be reached again reports what has grown
            return Chunk(offset, offset, offset, b"")


def _size(message: Message) -> int:
    begin, end = message.get("from"), message.get("to")
    is_counted = message["type"] in ("log", "metrics") and isinstance(begin, int) and isinstance(end, int)
    return int(end) - int(begin) if is_counted and isinstance(begin, int) and isinstance(end, int) else 0


def text_of(chunk: Chunk) -> tuple[str, int]:
    """Return the chunk as text, cut at a line end if more follows and never inside a character, and the bytes used."""
    data = chunk.data
    if chunk.end < chunk.size:
        cut = data.rfind(b"\n") + 1
        data = data[:cut] if cut else data
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    waiting = len(decoder.getstate()[0])
    if waiting and waiting == len(data) and chunk.end < chunk.size:
        return decoder.decode(b"", final=True), len(data)
    return text, len(data) - waiting


def metric_records(data: bytes) -> list[dict[str, Json]]:
    """Return the records of whole lines. A damaged line becomes a record that says so."""
    out: list[dict[str, Json]] = []
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        out.append(record if isinstance(record, dict) else {"damaged": line.decode("utf-8", "replace")[:200]})
    return out


class Watchers:
    """Listener of the lifecycle that forwards changes to the readers of a job."""

    def __init__(self) -> None:
        self._readers: dict[str, list[Reader]] = {}

    def add(self, reader: Reader) -> None:
        """Register a reader of a job."""
        self._readers.setdefault(reader.job, []).append(reader)

    def remove(self, reader: Reader) -> None:
        """Remove a reader. Unknown readers are ignored."""
        readers = self._readers.get(reader.job, [])
        if reader in readers:
            readers.remove(reader)
        if not readers:
            self._readers.pop(reader.job, None)

    def job_changed(self, job: str) -> None:
        """Implement `Listener`."""
        for reader in self._readers.get(job, ()):
            reader.touch_view()

    def stream_changed(self, job: str, stream: str) -> None:
        """Implement `Listener`."""
        for reader in self._readers.get(job, ()):
            reader.stream_changed(stream)

    def pool_changed(self) -> None:
        """Implement `Listener`."""


def cursor_of(row: int, metrics: int, logs: str) -> Cursor:
    """Return the cursor of a query string (`logs` is `0:12,1:33`). Raises Invalid."""
    offsets: dict[str, int] = {}
    for part in filter(None, logs.split(",")):
        member, _, offset = part.partition(":")
        if not (member.isascii() and member.isdigit() and offset.isascii() and offset.isdigit() and len(part) < 40):
            raise Invalid(f"logs: '{part[:40]}' is not valid; use MEMBER:OFFSET, such as 0:4096")
        offsets[member] = int(offset)
    return Cursor(row=row, metrics=metrics, logs=offsets)


def thinned(points: Sequence[tuple[int, float, float]], limit: int) -> list[list[Json]]:
    """Return at most `limit` points: the minimum, maximum and first non-finite point of each bucket, in order."""
    if len(points) > limit:
        kinds = 2 if all(math.isfinite(point[2]) for point in points) else 3
        buckets = max(limit // kinds, 1)
        parts = [points[i * len(points) // buckets : (i + 1) * len(points) // buckets] for i in range(buckets)]
        points = [point for part in parts for point in _extremes(part)]
    return [[step, at_s, encode_float(value)] for step, at_s, value in points]


def _extremes(part: Sequence[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    finite = [i for i, point in enumerate(part) if math.isfinite(point[2])]
    chosen = {f(finite, key=lambda i: part[i][2]) for f in (min, max)} if finite else set()
    chosen |= set([i for i, point in enumerate(part) if not math.isfinite(point[2])][:1])
    return [part[i] for i in sorted(chosen)]


def curves(records: Sequence[Mapping[str, Json]]) -> dict[str, list[tuple[int, float, float]]]:
    """Return the valid points of each metric, without those of steps that were rolled back."""
    out: dict[str, list[tuple[int, float, float]]] = {}
    for record in records:
        rewind = record.get("rewind")
        if isinstance(rewind, int):
            out = {name: [p for p in points if p[0] <= rewind] for name, points in out.items()}
            continue
        values, step, at_s = record.get("values"), record.get("step"), record.get("t")
        if isinstance(values, dict) and isinstance(step, int) and isinstance(at_s, int | float):
            for name, value in values.items():
                out.setdefault(name, []).append((step, float(at_s), decode_float(value)))
    return out
