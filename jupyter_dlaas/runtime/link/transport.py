"""Links over sockets, for an event loop that never blocks: TCP over IPv4 and IPv6, and Unix sockets.

An owner polls `interests()`, sleeps until `due()` at the latest, and calls `turn()`. One thread at a time resolves and
dials, because name resolution blocks; it ends as soon as it has a connection or an error.
"""

from __future__ import annotations

import errno
import queue
import secrets
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import bind, connect
from jupyter_dlaas.runtime.link.connection import Connection, Endpoint
from jupyter_dlaas.runtime.link.frames import Record, Refusal
from jupyter_dlaas.runtime.link.session import Event, Session

__all__ = [
    "Acceptor",
    "Address",
    "Dialer",
    "LinkDown",
    "LinkUp",
    "listen",
    "listen_on_all_families",
    "new_session_id",
    "wait",
]

HANDSHAKE_S: Final = 10.0
DIAL_S: Final = 10.0
BACKOFF_S: Final = (0.05, 5.0)
"""Pause after the first failed attempt, and the longest pause."""
UNPROVEN_MAX: Final = 64
"""Number of connections that have not proved the token. Above it, the oldest is closed."""
_BYTES: Final = 256 << 10
_ROUNDS: Final = 4
"""Number of reads or writes on one connection before others get their turn."""

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Address:
    """Place of an acceptor: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address in `host:port`, `[IPv6 address]:port` or `unix:PATH`. Raise ValueError."""
        if text.startswith("unix:"):
            return cls(path=text[5:])
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{text!r} is not a valid address: use host:port, [IPv6 address]:port or unix:PATH")
        return cls(host=host, port=int(port))

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link can be used: both sides have proved the token."""

    epoch: int
    """Epoch of the peer."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection is gone. This says nothing about the peer."""

    reason: str


def new_session_id() -> str:
    """Return a random number for a process that begins to use links."""
    return secrets.token_hex(16)


def listen(address: Address) -> list[socket.socket]:
    """Return listening sockets at an address; a host name may stand for several. Raise OSError."""
    if address.path:
        return [_unblocked(bind(socket.SOCK_STREAM, Path(address.path), listen=128))]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [_listen(family, where) for family, where in dict.fromkeys((entry[0], entry[4]) for entry in found)]


def listen_on_all_families(port: int = 0) -> list[socket.socket]:
    """Return listening sockets on all addresses of each family that the machine has, all with one port."""
    sockets: list[socket.socket] = []
    errors: list[OSError] = []
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - each peer proves the token
        try:
            sockets.append(_listen(family, (host, port)))
        except OSError as error:
            errors.append(error)
        else:
            port = sockets[-1].getsockname()[1]
    if not sockets:
        raise errors[0]
    return sockets


def _listen(family: int, where: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        sock.listen(128)
    except BaseException:
        sock.close()
        raise
    return _unblocked(sock)


def _unblocked(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


# -- one connection ----------------------------------------------------------------------------------------------------


class _Channel:
    """Socket with its side of the handshake and the frames that wait to be written."""

    def __init__(self, sock: socket.socket, connection: Connection, now: float) -> None:
        self.sock, self.connection = _unblocked(sock), connection
        self.fd = sock.fileno()
        self.prove_by_s = now + HANDSHAKE_S
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def interest(self) -> int:
        return select.POLLIN | (select.POLLOUT if self.connection.waiting_bytes else 0)

    def read(self) -> tuple[list[tuple[Record, bytes]], bool]:
        """Return received records, and whether any byte was received. Raise Refusal or OSError."""
        records: list[tuple[Record, bytes]] = []
        has_received = False
        for _ in range(_ROUNDS):
            try:
                data = self.sock.recv(_BYTES)
            except BlockingIOError:
                break
            if not data and records:
                break  # the next read reports the end
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
            has_received = True
            records += self.connection.receive(data)
            if len(data) < _BYTES:
                break
        return records, has_received

    def write(self) -> bool:
        """Write queued bytes. Return whether the socket accepted all of them. Raise OSError."""
        while data := self.connection.take(_BYTES):
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self.connection.give_back(data[sent:])
                return False
        return True

    def close(self) -> None:
        with suppress(OSError):
            self.write()
        self.sock.close()


class _Linked:
    """Session together with the connection that it uses."""

    def __init__(self, name: str, session: Session, log: Log) -> None:
        self.name, self.session, self._log = name, session, log
        self.channel: _Channel | None = None
        self._is_up = False

    def adopt(self, channel: _Channel, now: float) -> list[Event | LinkUp | LinkDown]:
        """Use a proven connection."""
        events = self.drop("another connection replaces it") if self.channel is not None else []
        self.channel = channel
        return [*events, *self.session.attach(channel.connection, now)]

    def drop(self, reason: str) -> list[Event | LinkUp | LinkDown]:
        """Stop using the connection."""
        was_up, self._is_up = self._is_up, False
        if self.channel is not None:
            self.session.detach()
            self.channel.close()
            self.channel = None
            self._log(f"link with {self.name}: {reason}")
        return [LinkDown(reason)] if was_up else []

    def turn(
        self, ready: Collection[int], now: float, received: Iterable[tuple[Record, bytes]] = ()
    ) -> list[Event | LinkUp | LinkDown]:
        """Read, process, answer and write."""
        events: list[Event | LinkUp | LinkDown] = []
        channel = self.channel
        if channel is None:
            return events
        records = list(received)
        try:
            has_received = bool(records)
            if channel.fd in ready:
                arrived, has_received = channel.read()
                records += arrived
            if has_received:
                events += self.session.receive(records, now)
            if self.session.is_linked and not self._is_up:
                self._is_up = True
                assert channel.connection.peer is not None
                events.insert(0, LinkUp(channel.connection.peer.epoch))
            self.session.tick(now)
            for _ in range(_ROUNDS):
                events += self.session.produce(now)
                if not channel.connection.waiting_bytes or not channel.write():
                    break
        except Refusal as refusal:
            channel.connection.say_goodbye(str(refusal))
            events += self.drop(str(refusal))
        except OSError as error:
            events += self.drop(error.strerror or str(error))
        return events


# -- the side that dials -----------------------------------------------------------------------------------------------


class Dialer:
    """Link to an acceptor whose address is known. It dials again, with growing pauses, for as long as it is open."""

    def __init__(self, me: Endpoint, address: Callable[[], Address], session: Session, log: Log) -> None:
        """Dial the address that `address` returns at each attempt."""
        self._me, self._address, self._log = me, address, log
        self._linked = _Linked("the acceptor", session, log)
        self._unproven: _Channel | None = None
        self._results: queue.SimpleQueue[socket.socket | str] = queue.SimpleQueue()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._is_dialling = False
        """True from the start of an attempt until its result was taken."""
        self._lock = threading.Lock()
        self._is_thread_running = False
        self._dial_at, self._pause_s, self._up_s = 0.0, BACKOFF_S[0], 0.0
        self._epoch_min = 0
        self._last_error = ""
        self._is_closed = False

    def interests(self) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""
        channels = [channel for channel in (self._unproven, self._linked.channel) if channel is not None]
        return {self._wake_r.fileno(): select.POLLIN} | {channel.fd: channel.interest for channel in channels}

    def due(self) -> float | None:
        """Return the time of the next `turn` without a ready descriptor; None if there is none."""
        if self._linked.channel is not None:
            return self._linked.session.due()
        if self._unproven is not None:
            return self._unproven.prove_by_s
        return None if self._is_dialling or self._is_closed else self._dial_at

    def turn(self, ready: Collection[int], now: float) -> list[Event | LinkUp | LinkDown]:
        """Continue. Return what happened."""
        events: list[Event | LinkUp | LinkDown] = []
        if self._is_closed:
            return events
        self._take_result(now)
        received: list[tuple[Record, bytes]] = []
        if (channel := self._unproven) is not None:
            received = self._shake_hands(channel, ready, now)
            if channel.connection.is_proven and channel is self._unproven:
                assert channel.connection.peer is not None
                self._epoch_min = max(self._epoch_min, channel.connection.peer.epoch)
                self._linked.name = channel.connection.peer.name
                self._unproven = None
                events += self._linked.adopt(channel, now)
        events += self._linked.turn(ready, now, received)
        for event in events:
            if isinstance(event, LinkUp):
                self._up_s, self._last_error = now, ""
            elif isinstance(event, LinkDown):
                if now - self._up_s >= BACKOFF_S[1]:
                    self._pause_s = BACKOFF_S[0]
                self._back_off(now)
        if self._linked.channel is None and self._unproven is None and not self._is_dialling and now >= self._dial_at:
            self._dial()
        return events

    @property
    def own_address(self) -> str | None:
        """Address of this machine on the way to the acceptor; None without a connection or over a Unix socket."""
        channel = self._linked.channel
        if channel is None or channel.sock.family == socket.AF_UNIX:
            return None
        return str(channel.sock.getsockname()[0])

    def close(self) -> None:
        """Close the link for good."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._linked.drop("closed")
        if self._unproven is not None:
            self._unproven.close()
        with self._lock:
            if not self._is_thread_running:  # otherwise that thread does it
                self._release()

    def _release(self) -> None:
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, socket.socket):
                result.close()
        self._wake_r.close()
        self._wake_w.close()

    # -- dialling ------------------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        self._is_dialling = self._is_thread_running = True
        address = self._address()
        threading.Thread(target=self._connect, args=(address,), name="link-dialer", daemon=True).start()

    def _connect(self, address: Address) -> None:
        """Resolve and connect, in a thread of its own."""
        try:
            self._results.put(_connected(address))
        except (OSError, UnicodeError) as error:  # a host name with an empty or overlong label
            self._results.put(f"cannot reach {address}: {getattr(error, 'strerror', None) or error}")
        with self._lock:
            self._is_thread_running = False
            self._wake_w.send(b"\0")
            if self._is_closed:
                self._release()

    def _take_result(self, now: float) -> None:
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return
        with suppress(BlockingIOError):
            self._wake_r.recv(16)
        self._is_dialling = False
        if isinstance(result, str):
            self._failed(result, now)
        else:
            connection = Connection(self._me, is_dialer=True, nonce=secrets.token_bytes(32), epoch_min=self._epoch_min)
            self._unproven = _Channel(result, connection, now)

    def _shake_hands(self, channel: _Channel, ready: Collection[int], now: float) -> list[tuple[Record, bytes]]:
        try:
            received = channel.read()[0] if channel.fd in ready else []
            channel.write()
            if now < channel.prove_by_s:
                return received
            self._failed("the acceptor did not answer", now)
        except Refusal as refusal:
            self._failed(f"connection refused: {refusal}", now)
        except OSError as error:
            self._failed(f"connection lost before the peer proved the token: {error.strerror or error}", now)
        return []

    def _failed(self, error: str, now: float) -> None:
        if self._unproven is not None:
            self._unproven.close()
            self._unproven = None
        if error != self._last_error:
            self._log(error)
        self._last_error = error
        self._back_off(now)

    def _back_off(self, now: float) -> None:
        self._dial_at = now + self._pause_s * (0.5 + secrets.randbelow(500) / 1000)
        self._pause_s = min(2 * self._pause_s, BACKOFF_S[1])


def _connected(address: Address) -> socket.socket:
    """Return a connection to the first address of a host that answers. Raise OSError or UnicodeError."""
    if address.path:
        return connect(socket.SOCK_STREAM, Path(address.path), timeout_s=DIAL_S)
    return socket.create_connection((address.host, address.port), timeout=DIAL_S)


# -- the side that accepts ---------------------------------------------------------------------------------------------


class Acceptor:
    """Links of all peers that connect to this process."""

    def __init__(
        self,
        me: Endpoint,
        listeners: Iterable[socket.socket],
        session_of: Callable[[str], Session | None],
        log: Log,
    ) -> None:
        """Accept peers for which `session_of` returns a session by their name; it is called once they are proven."""
        self._me, self._listeners, self._session_of, self._log = me, list(listeners), session_of, log
        self._unproven: list[_Channel] = []
        self._links: dict[str, _Linked] = {}

    def interests(self) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""
        channels = [*self._unproven, *(link.channel for link in self._links.values() if link.channel is not None)]
        return {sock.fileno(): select.POLLIN for sock in self._listeners} | {
            channel.fd: channel.interest for channel in channels
        }

    def due(self) -> float | None:
        """Return the time of the next `turn` without a ready descriptor; None if there is none."""
        times = [channel.prove_by_s for channel in self._unproven]
        times += [at for link in self._links.values() if (at := link.session.due()) is not None]
        return min(times, default=None)

    def turn(self, ready: Collection[int], now: float) -> list[tuple[str, Event | LinkUp | LinkDown]]:
        """Continue. Return what happened, with the name of the peer."""
        events: list[tuple[str, Event | LinkUp | LinkDown]] = []
        for sock in self._listeners:
            if sock.fileno() in ready:
                self._accept(sock, now)
        for channel in list(self._unproven):
            events += self._shake_hands(channel, ready, now)
        for name, link in list(self._links.items()):
            events += [(name, event) for event in link.turn(ready, now)]
        return events

    def forget(self, name: str) -> None:
        """Close the link with a peer that is gone for good."""
        link = self._links.pop(name, None)
        if link is not None:
            link.drop("closed")

    def close(self) -> None:
        """Close all links and listening sockets."""
        for name in list(self._links):
            self.forget(name)
        for channel in self._unproven:
            channel.close()
        self._unproven.clear()
        for sock in self._listeners:
            sock.close()

    def _accept(self, listener: socket.socket, now: float) -> None:
        for _ in range(_ROUNDS):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._log(f"cannot accept a connection: {error.strerror}")
                return
            connection = Connection(self._me, is_dialer=False, nonce=secrets.token_bytes(32))
            self._unproven.append(_Channel(sock, connection, now))
            if len(self._unproven) > UNPROVEN_MAX:
                self._refuse(self._unproven[0], "too many connections have not proved the token")

    def _refuse(self, channel: _Channel, reason: str) -> None:
        peer = channel.connection.peer
        name = f" from {peer.name!r:.60}" if peer is not None else ""
        self._log(f"connection{name} refused: {reason}")
        self._unproven.remove(channel)
        channel.close()

    def _shake_hands(
        self, channel: _Channel, ready: Collection[int], now: float
    ) -> list[tuple[str, Event | LinkUp | LinkDown]]:
        try:
            received = channel.read()[0] if channel.fd in ready else []
            channel.write()
        except Refusal as refusal:
            self._refuse(channel, str(refusal))
            return []
        except OSError as error:
            self._refuse(channel, f"it ended before it proved the token ({error.strerror or error})")
            return []
        if not channel.connection.is_proven:
            if now >= channel.prove_by_s:
                self._refuse(channel, f"it did not prove the token within {HANDSHAKE_S:g} s")
            return []
        peer = channel.connection.peer
        assert peer is not None
        link = self._links.get(peer.name)
        if link is None:
            session = self._session_of(peer.name)
            if session is None:
                channel.connection.say_goodbye(f"no peer named {peer.name!r} is expected")
                self._refuse(channel, "it is not expected")
                return []
            link = self._links[peer.name] = _Linked(peer.name, session, self._log)
        self._unproven.remove(channel)
        events = link.adopt(channel, now)
        return [(peer.name, event) for event in [*events, *link.turn((), now, received)]]


def wait(interests: dict[int, int], timeout_s: float | None) -> set[int]:
    """Wait for descriptors to become ready. For owners without an event loop of their own."""
    poll = select.poll()
    for fd, events in interests.items():
        poll.register(fd, events)
    return {fd for fd, _ in poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000 + 0.5)}
