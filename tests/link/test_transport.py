"""Links over real sockets: cuts, other peers, names that do not resolve, and each address family."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.runtime.link.connection import Endpoint
from jupyter_dlaas.runtime.link.session import FileStored, LineReceived, Session
from jupyter_dlaas.runtime.link.storage import BytesSource, DirectoryStorage, sha256_of
from jupyter_dlaas.runtime.link.transport import (
    Acceptor,
    Address,
    Dialer,
    LinkDown,
    LinkUp,
    listen,
    listen_on_all_families,
    new_session_id,
    wait,
)

DEADLINE_S = 60.0
TOKEN = secrets.token_bytes(32)


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


@dataclass
class Ends:
    """An acceptor and the dialers of a test, driven by one loop."""

    root: Path
    address: Address = field(default_factory=Address)
    acceptor: Acceptor | None = None
    dialers: dict[str, Dialer] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    """Sessions of the dialers."""
    events: dict[str, list[Any]] = field(default_factory=dict)
    """Events of each dialer, and below "to NAME" those of the acceptor."""
    log: list[str] = field(default_factory=list)

    def accept(self, listeners: list[socket.socket], *, job: str = "a-1", token: bytes = TOKEN, epoch: int = 0) -> None:
        me = Endpoint(job=job, name="guardian", token=token, session=new_session_id(), epoch=epoch)
        storage = DirectoryStorage(self.root)
        sessions: dict[str, Session] = {}
        self.acceptor = Acceptor(
            me, listeners, lambda name: sessions.setdefault(name, Session(storage)), self.log.append
        )

    def dial(self, name: str = "m0", *, job: str = "a-1", token: bytes = TOKEN) -> Session:
        (self.root / name).mkdir()
        session = self.sessions[name] = Session(DirectoryStorage(self.root / name))
        me = Endpoint(job=job, name=name, token=token, session=new_session_id())
        self.dialers[name] = Dialer(me, lambda: self.address, session, lambda text: self.log.append(f"{name}: {text}"))
        return session

    def turn(self) -> None:
        ends: list[Acceptor | Dialer] = [*self.dialers.values(), *([self.acceptor] if self.acceptor else [])]
        interests: dict[int, int] = {}
        for end in ends:
            interests |= end.interests()
        now = time.monotonic()
        due_s = min([now + 1.0, *(at for end in ends if (at := end.due()) is not None)])
        ready = wait(interests, due_s - now)
        now = time.monotonic()
        for name, dialer in self.dialers.items():
            self.events.setdefault(name, []).extend(dialer.turn(ready, now))
        if self.acceptor is not None:
            for name, event in self.acceptor.turn(ready, now):
                self.events.setdefault(f"to {name}", []).append(event)

    def until(self, is_so: Callable[[], object], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < end, f"not within {DEADLINE_S:g} s: {what}\n" + "\n".join(self.log)
            self.turn()

    def of(self, name: str, kind: type) -> list[Any]:
        return [event for event in self.events.get(name, []) if isinstance(event, kind)]

    def lines(self, name: str) -> list[bytes]:
        return [event.text for event in self.of(name, LineReceived)]

    def close(self) -> None:
        for dialer in self.dialers.values():
            dialer.close()
        if self.acceptor is not None:
            self.acceptor.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path)
    yield made
    made.close()


def address_of(sock: socket.socket) -> Address:
    host, port = sock.getsockname()[:2]
    return Address(host={"::": "::1", "0.0.0.0": "127.0.0.1"}.get(host, host), port=port)


def unix_address(root: Path) -> Address:
    """Return a path longer than a socket address holds."""
    folder = root / ("long" * 30)
    folder.mkdir(exist_ok=True)
    return Address(path=str(folder / "link.sock"))


FAMILIES: dict[str, Callable[[Path], tuple[list[socket.socket], Address | None]]] = {
    "ipv4": lambda root: (listen(Address(host="127.0.0.1")), None),
    "ipv6 only": lambda root: (listen(Address(host="::1")), None),
    "all families": lambda root: (listen_on_all_families(), None),
    "unix": lambda root: (listen(unix_address(root)), unix_address(root)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lines_and_files_arrive_over_each_family(ends: Ends, family: str) -> None:
    if family == "ipv6 only" and not has_ipv6():
        family = "ipv4"  # a machine without IPv6 has no such peers either
    listeners, address = FAMILIES[family](ends.root)
    ends.address = address or address_of(listeners[0])
    ends.accept(listeners)
    session = ends.dial()
    data = secrets.token_bytes(3 << 20)
    session.send_line(b"hello")
    session.send_file("out/result.bin", source := BytesSource(data), sha256_of(source))
    ends.until(lambda: ends.of("m0", FileStored) and ends.lines("to m0"), "the file and the line")

    assert (ends.root / "out/result.bin").read_bytes() == data
    assert ends.lines("to m0") == [b"hello"]
    assert len(ends.of("m0", LinkUp)) == 1


class Relay:
    """A relay between a dialer and an acceptor that can lose all connections."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self.listener = listen(Address(host="127.0.0.1"))[0]
        self.address = address_of(self.listener)
        self.pairs: list[tuple[socket.socket, socket.socket]] = []

    def turn(self, budget: int) -> None:
        """Carry at most `budget` bytes over each connection."""
        with suppress(BlockingIOError):
            sock, _ = self.listener.accept()
            pair = (sock, socket.create_connection((self.target.host, self.target.port)))
            for one in pair:
                one.setblocking(False)
            self.pairs.append(pair)
        for pair in self.pairs:
            for sender, receiver in (pair, pair[::-1]):
                with suppress(BlockingIOError, OSError):
                    if data := sender.recv(budget):
                        receiver.setblocking(True)
                        receiver.sendall(data)
                        receiver.setblocking(False)

    def cut(self) -> None:
        for pair in self.pairs:
            for sock in pair:
                sock.close()
        self.pairs.clear()

    def close(self) -> None:
        self.cut()
        self.listener.close()


def test_cut_connections_resume_without_loss_or_doubling(ends: Ends) -> None:
    listeners = listen(Address(host="127.0.0.1"))
    ends.accept(listeners)
    relay = Relay(address_of(listeners[0]))
    ends.address = relay.address
    session = ends.dial()
    data, log = secrets.token_bytes(1 << 20), BytesSource()
    session.send_stream("stdout.log", log)
    session.send_file("state.bin", source := BytesSource(data), sha256_of(source))
    sent: list[bytes] = []

    def is_complete() -> bool:
        if len(sent) < 60:
            sent.append(b"line %d" % len(sent))
            session.send_line(sent[-1])
            log.data += sent[-1] * 50
        relay.turn(100_000)
        if (
            len(sent) in (10, 20, 40)
            and relay.pairs
            and len(ends.of("m0", LinkUp)) <= (10, 20, 40).index(len(sent)) + 1
        ):
            relay.cut()
        is_quiet = session.unacknowledged_lines == 0 and session.pending_files == []
        return is_quiet and len(sent) == 60 and session.has_stored("stdout.log")

    ends.until(is_complete, "everything")
    relay.close()

    assert ends.lines("to m0") == sent
    assert (ends.root / "stdout.log").read_bytes() == log.data
    assert (ends.root / "state.bin").read_bytes() == data
    assert len(ends.of("m0", LinkDown)) >= 1
    assert len(ends.of("m0", FileStored)) == 1


def test_a_dialer_waits_for_an_acceptor_that_starts_later(ends: Ends) -> None:
    listeners = listen(Address(host="127.0.0.1"))
    ends.address = address_of(listeners[0])
    listeners[0].close()
    session = ends.dial()
    session.send_line(b"first")
    ends.until(lambda: any("cannot reach 127.0.0.1" in text for text in ends.log), "a failed attempt")
    ends.accept(listen(ends.address))
    ends.until(lambda: ends.lines("to m0"), "the line")

    assert len([text for text in ends.log if "cannot reach" in text]) == 1


def test_a_name_that_does_not_resolve_is_reported_and_retried(ends: Ends) -> None:
    listeners = listen(Address(host="127.0.0.1"))
    ends.address = Address(host="no-such-host.invalid", port=1)
    ends.dial()
    ends.until(lambda: any("cannot reach no-such-host.invalid:1" in text for text in ends.log), "a failed resolution")
    ends.address = address_of(listeners[0])
    ends.accept(listeners)
    ends.until(lambda: ends.of("m0", LinkUp), "the link after the name resolves")


@pytest.mark.parametrize(
    ("stranger", "reason"),
    [
        ({"token": b"w" * 32}, "does not prove the job's token"),
        ({"job": "b-2"}, "belongs to job 'b-2'"),
    ],
)
def test_strangers_are_refused_and_logged(ends: Ends, stranger: dict[str, Any], reason: str) -> None:
    listeners = listen(Address(host="127.0.0.1"))
    ends.address = address_of(listeners[0])
    ends.accept(listeners)
    ends.dial("m1", **stranger)
    ends.until(lambda: any(reason in text for text in ends.log), reason)
    ends.dial("m0").send_line(b"still served")
    ends.until(lambda: ends.lines("to m0"), "the line of the right peer")

    assert ends.events.get("to m1", []) == []
    assert not ends.of("m1", LinkUp)


def test_garbage_and_silence_do_not_disturb_other_links(ends: Ends) -> None:
    listeners = listen(Address(host="127.0.0.1"))
    ends.address = address_of(listeners[0])
    ends.accept(listeners)
    strangers = [socket.create_connection((ends.address.host, ends.address.port)) for _ in range(70)]
    strangers[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
    ends.until(lambda: any("too long" in text for text in ends.log), "the refused request")
    ends.dial().send_line(b"x")
    ends.until(lambda: ends.lines("to m0"), "the line")
    for sock in strangers:
        sock.close()

    assert any("too many connections" in text for text in ends.log)


def test_another_connection_of_a_peer_replaces_the_former(ends: Ends) -> None:
    listeners = listen(Address(host="127.0.0.1"))
    ends.address = address_of(listeners[0])
    ends.accept(listeners)
    session = ends.dial()
    ends.until(lambda: ends.of("to m0", LinkUp), "the first link")
    me = Endpoint(job="a-1", name="m0", token=TOKEN, session=new_session_id())
    ends.dialers["second"] = Dialer(me, lambda: ends.address, session, ends.log.append)
    ends.dialers.pop("m0").close()
    session.send_line(b"over the second")
    ends.until(lambda: ends.lines("to m0"), "the line")
    assert len(ends.of("to m0", LinkUp)) == 2


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:x", "host:0", "host:70000"])
def test_invalid_addresses_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid address"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["10.0.0.7:4000", "[fd00::7]:4000", "unix:/run/link.sock", "guardian.ml.svc:4000"])
def test_addresses_are_written_as_they_are_read(text: str) -> None:
    assert str(Address.parse(text)) == text
