"""Reliable exchange between two processes over connections that may break. Pure: the caller gives time and bytes.

A session lasts as long as both processes. What the peer has not acknowledged is kept and sent again over the next
connection:

- lines by number: each arrives once and in order;
- streams by offset: the receiver says how many bytes it has stored, and the sender continues there;
- whole files by hash: the receiver says from which offset it needs bytes, or that it has the file.

A silent link proves nothing: after a timeout the session only closes the connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.runtime.link.connection import Connection
from jupyter_dlaas.runtime.link.frames import (
    BODY_MAX,
    Acknowledge,
    Data,
    Goodbye,
    Line,
    Offer,
    Open,
    Ping,
    Position,
    Record,
    Refusal,
    Refused,
    Resume,
    Stored,
)
from jupyter_dlaas.runtime.link.storage import PathRefused, Source, Storage, check_encodable

__all__ = [
    "PING_S",
    "SILENCE_S",
    "ContentRefused",
    "Event",
    "FileArrived",
    "FileStored",
    "LineReceived",
    "OfferRefused",
    "PeerRestarted",
    "Session",
    "StreamGrew",
    "StreamStored",
]

PING_S: Final = 5.0
"""Seconds without a frame after which a ping is sent."""
SILENCE_S: Final = 20.0
"""Seconds without a received byte after which the connection is closed and dialled again."""
CHUNK_BYTES: Final = 128 << 10
WINDOW_BYTES: Final = 2 << 20
"""Maximum number of bytes of streams and files on their way: a line must not wait behind more."""
QUEUE_BYTES: Final = 256 << 10
"""Number of bytes waiting to be written above which no more bulk data is queued."""


@dataclass(frozen=True, slots=True)
class LineReceived:
    """Line from the peer. Each is reported once, in the order in which they were sent."""

    text: bytes


@dataclass(frozen=True, slots=True)
class StreamGrew:
    """Bytes of the peer's stream were stored; `size` counts all bytes so far."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FileArrived:
    """File from the peer is in its place, verified."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class StreamStored:
    """The peer has stored this many bytes of a stream."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FileStored:
    """The peer has stored a file."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ContentRefused:
    """The peer does not accept a file or stream; it will not be offered again."""

    path: str
    sha256: str | None
    """Hash of a file; None for a stream."""
    reason: str


@dataclass(frozen=True, slots=True)
class PeerRestarted:
    """Another process with the peer's name has connected.

    `undelivered` holds the lines that the former process had not acknowledged. They are not sent: the new process needs
    the state as a whole.
    """

    undelivered: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """A file or stream of the peer is not accepted here."""

    path: str
    reason: str


Event = (
    LineReceived | StreamGrew | FileArrived | OfferRefused | StreamStored | FileStored | ContentRefused | PeerRestarted
)


@dataclass(slots=True)
class _Outgoing:
    """Stream or whole file that is sent."""

    path: str
    source: Source
    sha256: str | None = None
    """Hash of a whole file; None for a stream."""
    size: int = 0
    """Size of a whole file."""
    is_executable: bool = False
    is_announced: bool = False
    sent: int | None = None
    """Number of bytes sent; None until the receiver has said where to begin."""
    stored: int = 0

    @property
    def size_now(self) -> int:
        return self.source.size() if self.sha256 is None else self.size


@dataclass(slots=True)
class _Incoming:
    """Stream or whole file that is received over this connection."""

    path: str
    stored: int
    offer: Offer | None = None
    """Announcement of a whole file; None for a stream."""


class Session:
    """One side of a link."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._connection: Connection | None = None
        self._peer: str | None = None
        """Session of the peer, known from its last proven connection."""
        self._is_resumed = False
        self._lines: deque[tuple[int, bytes]] = deque()
        """Lines that the peer has not acknowledged."""
        self._next_line = 1
        self._line_to_send = 1
        self._received = self._acknowledged = 0
        self._outgoing: dict[int, _Outgoing] = {}
        self._next_transfer = 1
        self._incoming: dict[int, _Incoming] = {}
        self._replies: deque[Record] = deque()
        self._turn = 0
        self._received_s = self._sent_s = 0.0

    # -- what the application sends ------------------------------------------------------------------------------------

    def send_line(self, text: bytes) -> None:
        """Queue a line."""
        if len(text) > BODY_MAX:
            raise ValueError(f"a line of {len(text):,} bytes exceeds the limit of {BODY_MAX:,}")
        self._lines.append((self._next_line, text))
        self._next_line += 1

    def send_stream(self, path: str, source: Source) -> None:
        """Send a content that grows, as far as it has grown, until `end_stream`."""
        if self._stream(path) is None:
            self._add(_Outgoing(path, source))

    def end_stream(self, path: str) -> None:
        """Stop sending a stream."""
        number = self._stream(path)
        if number is not None:
            self._remove(number)

    def send_file(self, path: str, source: Source, sha256: str, *, is_executable: bool = False) -> None:
        """Send a whole file. It takes the place of another version that is still under way."""
        for number, out in list(self._outgoing.items()):
            if out.path == path and out.sha256 is not None:
                self._remove(number)
        self._add(_Outgoing(path, source, sha256, source.size(), is_executable))

    def _add(self, out: _Outgoing) -> None:
        check_encodable(out.path)
        self._outgoing[self._next_transfer] = out
        self._next_transfer += 1

    def _remove(self, number: int) -> None:
        self._outgoing.pop(number).source.close()

    def _stream(self, path: str) -> int | None:
        found = (number for number, out in self._outgoing.items() if out.path == path and out.sha256 is None)
        return next(found, None)

    @property
    def unacknowledged_lines(self) -> int:
        """Number of lines that the peer has not acknowledged."""
        return len(self._lines)

    @property
    def pending_files(self) -> list[str]:
        """Paths of the files that the peer has not stored."""
        return [out.path for out in self._outgoing.values() if out.sha256 is not None]

    def has_stored(self, path: str) -> bool:
        """Return whether the peer has stored all bytes that a stream holds now."""
        number = self._stream(path)
        return number is None or self._outgoing[number].stored >= self._outgoing[number].source.size()

    # -- connections ---------------------------------------------------------------------------------------------------

    @property
    def is_linked(self) -> bool:
        """True while a proven connection is in use."""
        return self._connection is not None and self._is_resumed

    def attach(self, connection: Connection, now: float) -> list[Event]:
        """Use a proven connection, in place of any former one."""
        assert connection.is_proven
        assert connection.peer is not None
        self.detach()
        self._connection = connection
        self._received_s = self._sent_s = now
        events: list[Event] = []
        if self._peer not in (None, connection.peer.session):
            events.append(PeerRestarted(tuple(text for _, text in self._lines)))
            self._lines.clear()
            self._next_line = 1
        if self._peer != connection.peer.session:
            self._received = 0
        self._peer = connection.peer.session
        self._acknowledged = self._received
        connection.send(Resume(lines=self._received))
        return events

    def detach(self) -> None:
        """Stop using the connection, which broke or was closed."""
        self._connection, self._is_resumed = None, False
        self._incoming.clear()
        self._replies.clear()
        for out in self._outgoing.values():
            out.sent, out.is_announced = None, False

    # -- time ----------------------------------------------------------------------------------------------------------

    def due(self) -> float | None:
        """Return the time of the next call of `tick`, or of `produce` if it has something to send at once."""
        if self._connection is None:
            return None
        if self._has_news and not self._connection.waiting_bytes:
            return self._sent_s
        return min(self._sent_s + PING_S, self._received_s + SILENCE_S)

    @property
    def _has_news(self) -> bool:
        """True if a line or a content was given to this session since it last produced records."""
        return self._is_resumed and (
            self._line_to_send < self._next_line or any(not out.is_announced for out in self._outgoing.values())
        )

    def tick(self, now: float) -> None:
        """Send a ping if nothing was sent for a while. Raise Refusal if nothing was received for long."""
        if self._connection is None:
            return
        if now >= self._received_s + SILENCE_S:
            raise Refusal(f"it was silent for {now - self._received_s:.0f} s")
        if now >= self._sent_s + PING_S:
            self._sent_s = now
            self._connection.send(Ping())

    # -- received records ----------------------------------------------------------------------------------------------

    def receive(self, records: list[tuple[Record, bytes]], now: float) -> list[Event]:
        """Process records of the attached connection. Raise Refusal, or OSError if they cannot be stored."""
        self._received_s = now
        events: list[Event] = []
        for record, body in records:
            events += self._process(record, body)
        return events

    def _process(self, record: Record, body: bytes) -> list[Event]:
        if not self._is_resumed and not isinstance(record, Resume | Goodbye):
            raise Refusal(f"{record.KIND} arrives before resume")
        if body and not isinstance(record, Line | Data):
            raise Refusal(f"{record.KIND} has a body")
        match record:
            case Resume():
                return self._resume(record)
            case Line():
                return self._line(record, body)
            case Acknowledge():
                return self._acknowledge_lines(record.lines)
            case Open() | Offer():
                return self._begin(record)
            case Data():
                return self._data(record, body)
            case Position():
                return self._position(record)
            case Stored():
                return self._stored(record)
            case Refused():
                return self._refused(record)
            case Ping():
                return []
            case Goodbye():
                raise Refusal(f"it closed the connection: {record.reason}")
            case _:
                raise Refusal(f"{record.KIND} is out of place")

    def _resume(self, record: Resume) -> list[Event]:
        if self._is_resumed:
            raise Refusal("a second resume")
        self._is_resumed = True
        if self._lines and record.lines + 1 < self._lines[0][0]:
            raise Refusal(f"it has lost lines after line {record.lines}")
        self._acknowledge_lines(record.lines)
        self._line_to_send = record.lines + 1
        return []

    def _line(self, record: Line, body: bytes) -> list[Event]:
        if record.number != self._received + 1:
            raise Refusal(f"line {record.number} follows line {self._received}")
        self._received += 1
        return [LineReceived(body)]

    def _acknowledge_lines(self, number: int) -> list[Event]:
        if number >= self._next_line:
            raise Refusal(f"it acknowledges line {number}; line {self._next_line - 1} is the last")
        while self._lines and self._lines[0][0] <= number:
            self._lines.popleft()
        return []

    # -- received contents ---------------------------------------------------------------------------------------------

    def _begin(self, record: Open | Offer) -> list[Event]:
        """Answer the announcement of a content with the position from which it is needed."""
        number = record.transfer
        if number in self._incoming:
            raise Refusal(f"transfer {number} is announced twice")
        for other, incoming in list(self._incoming.items()):
            if incoming.path == record.path and (incoming.offer is None) == isinstance(record, Open):
                del self._incoming[other]  # the sender gave it up
        try:
            if isinstance(record, Open):
                self._incoming[number] = _Incoming(record.path, self._storage.stream_size(record.path))
            else:
                offset = self._storage.begin(
                    record.path, record.size, record.sha256, is_executable=record.is_executable
                )
                if offset is None:
                    self._replies.append(Stored(transfer=number))
                    return [FileArrived(record.path, record.sha256)]
                self._incoming[number] = _Incoming(record.path, offset, record)
                if offset == record.size:
                    return self._finish(number, record)
        except PathRefused as refused:
            return self._refuse(number, record.path, str(refused))
        self._replies.append(Position(transfer=number, offset=self._incoming[number].stored))
        return []

    def _data(self, record: Data, body: bytes) -> list[Event]:
        incoming = self._incoming.get(record.transfer)
        if incoming is None:
            return []  # refused meanwhile
        if record.offset != incoming.stored or not body:
            raise Refusal(f"{incoming.path!r} continues at {record.offset:,}, not at {incoming.stored:,}")
        try:
            if incoming.offer is None:
                self._storage.append(incoming.path, body)
            elif record.offset + len(body) > incoming.offer.size:
                raise Refusal(f"{incoming.path!r} is longer than its announced {incoming.offer.size:,} bytes")
            else:
                self._storage.write(incoming.path, incoming.offer.sha256, body)
        except PathRefused as refused:
            return self._refuse(record.transfer, incoming.path, str(refused))
        incoming.stored += len(body)
        if incoming.offer is not None and incoming.stored == incoming.offer.size:
            return self._finish(record.transfer, incoming.offer)
        last = self._replies[-1] if self._replies else None
        if isinstance(last, Position) and last.transfer == record.transfer:
            self._replies.pop()  # the new position includes it
        self._replies.append(Position(transfer=record.transfer, offset=incoming.stored))
        return [StreamGrew(incoming.path, incoming.stored)] if incoming.offer is None else []

    def _finish(self, number: int, offer: Offer) -> list[Event]:
        try:
            is_intact = self._storage.finish(offer.path, offer.sha256)
        except PathRefused as refused:
            return self._refuse(number, offer.path, str(refused))
        if not is_intact:
            return self._refuse(number, offer.path, "its SHA-256 differs from the announced one")
        del self._incoming[number]
        self._replies.append(Stored(transfer=number))
        return [FileArrived(offer.path, offer.sha256)]

    def _refuse(self, number: int, path: str, reason: str) -> list[Event]:
        self._incoming.pop(number, None)
        self._replies.append(Refused(transfer=number, reason=reason[:500]))
        return [OfferRefused(path, reason)]

    # -- answers about sent contents -----------------------------------------------------------------------------------

    def _position(self, record: Position) -> list[Event]:
        out = self._outgoing.get(record.transfer)
        if out is None or not out.is_announced:
            return []  # ended or replaced meanwhile
        if out.sent is None:
            if record.offset > out.size_now:
                self._remove(record.transfer)
                reason = f"the receiver has {record.offset:,} bytes of it, but it was shortened to {out.size_now:,}"
                return [ContentRefused(out.path, out.sha256, reason)]
            out.sent = record.offset
        elif not out.stored <= record.offset <= out.sent:
            raise Refusal(f"it acknowledges {record.offset:,} bytes of {out.path!r} out of order")
        out.stored = record.offset
        return [StreamStored(out.path, out.stored)] if out.sha256 is None else []

    def _stored(self, record: Stored) -> list[Event]:
        out = self._outgoing.get(record.transfer)
        if out is None or out.sha256 is None:
            return []
        self._remove(record.transfer)
        return [FileStored(out.path, out.sha256)]

    def _refused(self, record: Refused) -> list[Event]:
        out = self._outgoing.get(record.transfer)
        if out is None:
            return []
        self._remove(record.transfer)
        return [ContentRefused(out.path, out.sha256, record.reason)]

    # -- records to send -----------------------------------------------------------------------------------------------

    def produce(self, now: float) -> list[Event]:
        """Queue what can be sent on the connection: answers and lines first, then streams and files by turns.

        Return the contents that can no longer be read.
        """
        connection = self._connection
        events: list[Event] = []
        if connection is None or not self._is_resumed:
            return events
        before = connection.waiting_bytes
        while self._replies:
            connection.send(self._replies.popleft())
        if self._acknowledged != self._received:
            self._acknowledged = self._received
            connection.send(Acknowledge(lines=self._received))
        for number, text in self._lines:
            if number == self._line_to_send and connection.waiting_bytes < BODY_MAX:
                connection.send(Line(number=number), text)
                self._line_to_send += 1
        self._announce(connection)
        while connection.waiting_bytes < QUEUE_BYTES and self._send_bulk(connection, events):
            pass
        if connection.waiting_bytes > before:
            self._sent_s = now
        return events

    def _announce(self, connection: Connection) -> None:
        for number, out in self._outgoing.items():
            if out.is_announced:
                continue
            out.is_announced = True
            if out.sha256 is None:
                connection.send(Open(transfer=number, path=out.path))
            else:
                offer = Offer(
                    transfer=number,
                    path=out.path,
                    size=out.size,
                    sha256=out.sha256,
                    is_executable=out.is_executable,
                )
                connection.send(offer)

    def _send_bulk(self, connection: Connection, events: list[Event]) -> bool:
        """Send the next bytes of one content. Return False if there are none, or the window is full."""
        begun = [(number, out, out.sent) for number, out in self._outgoing.items() if out.sent is not None]
        ready = [(number, out, sent) for number, out, sent in begun if sent < out.size_now]
        if not ready or sum(sent - out.stored for _, out, sent in begun) >= WINDOW_BYTES:
            return False
        self._turn += 1
        number, out, offset = ready[self._turn % len(ready)]
        try:
            data = out.source.read(offset, min(CHUNK_BYTES, out.size_now - offset))
            reason = "it was shortened while it was sent"
        except OSError as error:
            data, reason = b"", f"it cannot be read: {error.strerror or error}"
        if data:
            connection.send(Data(transfer=number, offset=offset), data)
            out.sent = offset + len(data)
        else:
            self._remove(number)
            events.append(ContentRefused(out.path, out.sha256, reason))
        return True
