"""Two sides of a link joined by a wire in memory that loses what is on its way when it is cut."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from jupyter_dlaas.runtime.link.connection import Connection, Endpoint
from jupyter_dlaas.runtime.link.session import Event, LineReceived, Session
from jupyter_dlaas.runtime.link.storage import BytesSource, split_path

TOKEN = bytes(range(32))


def endpoint(name: str, *, job: str = "a-1", token: bytes = TOKEN, process: str = "first", epoch: int = 0) -> Endpoint:
    session = hashlib.sha256(f"{name} {process}".encode()).hexdigest()[:32]
    return Endpoint(job=job, name=name, token=token, session=session, epoch=epoch)


def shake_hands(dialer: Connection, acceptor: Connection) -> None:
    """Exchange both handshakes, whole."""
    for _ in range(3):
        acceptor.receive(dialer.take(1 << 20))
        dialer.receive(acceptor.take(1 << 20))
    assert dialer.is_proven
    assert acceptor.is_proven


def proven_pair() -> tuple[Connection, Connection]:
    dialer = Connection(endpoint("agent"), is_dialer=True, nonce=b"d" * 32)
    acceptor = Connection(endpoint("guardian"), is_dialer=False, nonce=b"a" * 32)
    shake_hands(dialer, acceptor)
    return dialer, acceptor


class MemoryStorage:
    """Storage in memory, with the checks of the real one."""

    def __init__(self) -> None:
        self.streams: dict[str, bytearray] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.placed: list[str] = []
        self._parts: dict[tuple[str, str], bytearray] = {}

    def stream_size(self, path: str) -> int:
        split_path(path)
        return len(self.streams.get(path, b""))

    def append(self, path: str, data: bytes) -> None:
        self.streams.setdefault(path, bytearray()).extend(data)

    def begin(self, path: str, size: int, sha256: str, *, is_executable: bool) -> int | None:
        split_path(path)
        for key in [key for key in self._parts if key[0] == path and key[1] != sha256]:
            del self._parts[key]
        if path in self.files and self.files[path][0] == sha256:
            return None
        return len(self._parts.setdefault((path, sha256), bytearray()))

    def part(self, path: str) -> bytes:
        """Return the bytes that have arrived of a file in transfer."""
        return next((bytes(data) for (name, _), data in self._parts.items() if name == path), b"")

    def write(self, path: str, sha256: str, data: bytes) -> None:
        self._parts[path, sha256].extend(data)

    def finish(self, path: str, sha256: str) -> bool:
        data = bytes(self._parts.pop((path, sha256)))
        if hashlib.sha256(data).hexdigest() != sha256:
            return False
        self.files[path] = (sha256, data)
        self.placed.append(path)
        return True


@dataclass
class Side:
    """One process: its session, what it received, and its connection."""

    name: str
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    events: list[Event] = field(default_factory=list)
    connection: Connection | None = None
    process: str = "first"
    """Which process with this name it is."""
    sent_bytes: int = 0
    arriving: bytearray = field(default_factory=bytearray)
    """Bytes on their way to this side."""

    def __post_init__(self) -> None:
        self.session = Session(self.storage)
        self.streams: dict[str, BytesSource] = {}

    @property
    def lines(self) -> list[bytes]:
        return [event.text for event in self.events if isinstance(event, LineReceived)]


class Pair:
    """A dialer and an acceptor."""

    def __init__(self) -> None:
        self.dialer, self.acceptor = Side("agent"), Side("guardian")
        self.now = 0.0
        self._nonce = 0

    def other(self, side: Side) -> Side:
        return self.acceptor if side is self.dialer else self.dialer

    @property
    def is_connected(self) -> bool:
        return self.dialer.connection is not None

    def dial(self) -> None:
        self._nonce += 1
        for side, is_dialer in ((self.dialer, True), (self.acceptor, False)):
            nonce = bytes([is_dialer]) + self._nonce.to_bytes(31, "big")
            side.connection = Connection(endpoint(side.name, process=side.process), is_dialer=is_dialer, nonce=nonce)

    def cut(self) -> None:
        """Lose the connection, and all bytes on their way."""
        for side in (self.dialer, self.acceptor):
            side.connection = None
            side.session.detach()
            side.arriving.clear()

    def write(self, side: Side, limit: int) -> int:
        """Move at most `limit` bytes from a side onto the wire."""
        assert side.connection is not None
        if side.connection.is_proven:
            side.events += side.session.produce(self.now)
        data = side.connection.take(limit)
        self.other(side).arriving += data
        side.sent_bytes += len(data)
        return len(data)

    def read(self, side: Side, limit: int) -> int:
        """Let a side read at most `limit` bytes from the wire."""
        data = bytes(side.arriving[:limit])
        del side.arriving[: len(data)]
        self.receive(side, data)
        return len(data)

    def receive(self, side: Side, data: bytes) -> None:
        connection = side.connection
        assert connection is not None
        was_proven = connection.is_proven
        records = connection.receive(data)
        if connection.is_proven and not was_proven:
            side.events += side.session.attach(connection, self.now)
        if records:
            side.events += side.session.receive(records, self.now)

    def settle(self) -> None:
        """Exchange until nothing is on its way."""
        if not self.is_connected:
            self.dial()
        moved = 1
        while moved:
            moved = sum(self.write(side, 1 << 20) + self.read(self.other(side), 1 << 20) for side in self.both)

    @property
    def both(self) -> tuple[Side, Side]:
        return self.dialer, self.acceptor
