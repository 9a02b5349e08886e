"""Properties of a link: whatever is cut, nothing is lost, nothing is doubled, and the order is kept."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.runtime.link import session as session_module
from jupyter_dlaas.runtime.link.frames import BODY_MAX, Refusal
from jupyter_dlaas.runtime.link.session import (
    PING_S,
    SILENCE_S,
    ContentRefused,
    FileStored,
    PeerRestarted,
    Session,
)
from jupyter_dlaas.runtime.link.storage import BytesSource, PathRefused
from tests.link.pairs import MemoryStorage, Pair, Side

STEPS = st.one_of(
    st.tuples(st.just("line"), st.integers(0, 1), st.binary(max_size=40)),
    st.tuples(st.just("grow"), st.integers(0, 1), st.integers(0, 2), st.binary(min_size=1, max_size=300)),
    st.tuples(st.just("file"), st.integers(0, 1), st.integers(0, 2), st.binary(max_size=500)),
    st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 400)),
    st.tuples(st.just("read"), st.integers(0, 1), st.integers(1, 400)),
    st.tuples(st.just("exchange")),
    st.tuples(st.just("cut")),
)


def hash_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def send_file(side: Side, path: str, data: bytes) -> None:
    side.session.send_file(path, BytesSource(data), hash_of(data))


def grow(side: Side, path: str, data: bytes) -> None:
    if path not in side.streams:
        side.streams[path] = BytesSource()
        side.session.send_stream(path, side.streams[path])
    side.streams[path].data += data


@pytest.fixture(scope="module", autouse=True)
def _small_chunks() -> Iterator[None]:
    """Small chunks and windows, so that short contents need many frames."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("CHUNK_BYTES", 50), ("WINDOW_BYTES", 400), ("QUEUE_BYTES", 300)):
            patch.setattr(session_module, name, value)
        yield


@pytest.mark.parametrize("what", ["line", "stream", "file"])
def test_new_contents_of_an_idle_session_are_due_at_once(what: str) -> None:
    pair = Pair()
    pair.dial()
    pair.settle()
    side = pair.both[0]
    assert due_s(side) > 0.0
    if what == "line":
        side.session.send_line(b"order")
    elif what == "stream":
        grow(side, "logs/0", b"text")
    else:
        send_file(side, "train.py", b"print()")
    assert due_s(side) <= 0.0

    pair.write(side, 1 << 16)
    assert due_s(side) > 0.0, "it is asleep again"


def due_s(side: Side) -> float:
    found = side.session.due()
    assert found is not None
    return found


@given(steps=st.lists(STEPS, max_size=120))
def test_cuts_lose_nothing_and_double_nothing(steps: list[tuple[Any, ...]]) -> None:
    pair = Pair()
    lines: tuple[list[bytes], list[bytes]] = ([], [])
    files: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
    for step in steps:
        if not pair.is_connected:
            pair.dial()
        if step[0] == "cut":
            pair.cut()
        elif step[0] == "exchange":
            for side in pair.both:
                pair.write(side, 1 << 16)
                pair.read(pair.other(side), 1 << 16)
        elif step[0] == "line":
            lines[step[1]].append(step[2])
            pair.both[step[1]].session.send_line(step[2])
        elif step[0] == "grow":
            grow(pair.both[step[1]], f"logs/{step[2]}", step[3])
        elif step[0] == "file":
            path = f"files/{step[2]}"
            files[step[1]][path] = step[3]
            send_file(pair.both[step[1]], path, step[3])
        else:
            move = pair.write if step[0] == "write" else pair.read
            move(pair.both[step[1]], step[2])
    pair.settle()

    for number, side in enumerate(pair.both):
        receiver = pair.other(side)
        assert receiver.lines == lines[number]
        assert receiver.storage.streams == {path: source.data for path, source in side.streams.items() if source.data}
        assert {path: data for path, (_, data) in receiver.storage.files.items()} == files[number]
        assert side.session.unacknowledged_lines == 0
        assert side.session.pending_files == []
        assert all(side.session.has_stored(path) for path in side.streams)
        stored = [event.path for event in side.events if isinstance(event, FileStored)]
        assert set(stored) == set(files[number])


def test_lines_and_contents_sent_before_the_first_connection_arrive() -> None:
    pair = Pair()
    pair.dialer.session.send_line(b"one")
    grow(pair.dialer, "log", b"text")
    send_file(pair.dialer, "f", b"data")
    pair.settle()

    assert pair.acceptor.lines == [b"one"]
    assert pair.acceptor.storage.streams["log"] == b"text"
    assert pair.acceptor.storage.files["f"][1] == b"data"


def test_a_file_that_is_present_is_not_sent_again() -> None:
    pair = Pair()
    send_file(pair.dialer, "f", b"x" * 5000)
    pair.settle()
    before = pair.dialer.sent_bytes
    send_file(pair.dialer, "f", b"x" * 5000)
    pair.settle()

    assert pair.dialer.sent_bytes - before < 1000
    assert [type(event) for event in pair.dialer.events] == [FileStored, FileStored]
    assert pair.acceptor.storage.placed == ["f"]


def test_a_file_resumes_at_the_stored_offset() -> None:
    pair = Pair()
    send_file(pair.dialer, "f", b"x" * 5000)
    pair.dial()
    while len(pair.acceptor.storage.part("f")) < 4000:
        for side in pair.both:
            pair.write(side, 64)
            pair.read(pair.other(side), 64)
    pair.cut()
    before = pair.dialer.sent_bytes
    pair.settle()

    assert pair.acceptor.storage.files["f"][1] == b"x" * 5000
    # 1,000 bytes are left; a frame with its header and tag has at most 150 bytes more than its 50 bytes of data.
    assert pair.dialer.sent_bytes - before < 1000 // 50 * 200 + 1000


def test_a_file_that_changed_while_it_was_sent_is_refused() -> None:
    pair = Pair()
    pair.dialer.session.send_file("f", BytesSource(b"other"), hash_of(b"first"))
    pair.settle()

    assert pair.dialer.events == [ContentRefused("f", hash_of(b"first"), "its SHA-256 differs from the announced one")]
    assert pair.acceptor.storage.files == {}


def test_a_stream_that_was_shortened_is_given_up_and_reported() -> None:
    pair = Pair()
    grow(pair.dialer, "log", b"0123456789")
    pair.settle()
    pair.cut()
    del pair.dialer.streams["log"].data[4:]
    pair.settle()

    refused = [event for event in pair.dialer.events if isinstance(event, ContentRefused)]
    assert [(event.path, event.reason) for event in refused] == [
        ("log", "the receiver has 10 bytes of it, but it was shortened to 4")
    ]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", ".link/x", "x" * 300])
def test_paths_that_lead_out_are_refused(path: str) -> None:
    pair = Pair()
    grow(pair.dialer, path, b"x")
    send_file(pair.dialer, path, b"x")
    pair.dialer.session.send_line(b"after")
    pair.settle()

    refused = [event for event in pair.dialer.events if isinstance(event, ContentRefused)]
    assert [event.path for event in refused] == [path, path]
    assert not pair.acceptor.storage.files
    assert not pair.acceptor.storage.streams
    assert pair.acceptor.lines == [b"after"]


def test_restarted_peer_gets_no_lines_of_the_former_one() -> None:
    pair = Pair()
    pair.dialer.session.send_line(b"delivered")
    grow(pair.dialer, "log", b"abc")
    pair.settle()
    pair.cut()
    pair.dialer.session.send_line(b"for the former guardian")
    former = pair.acceptor
    pair.acceptor = Side("guardian", storage=former.storage, process="second")
    grow(pair.dialer, "log", b"def")
    pair.settle()

    assert PeerRestarted((b"for the former guardian",)) in pair.dialer.events
    pair.dialer.session.send_line(b"new state")
    pair.settle()
    assert former.lines == [b"delivered"]
    assert pair.acceptor.lines == [b"new state"]
    assert pair.acceptor.storage.streams["log"] == b"abcdef"


def test_idle_link_pings_and_silent_one_is_given_up() -> None:
    pair = Pair()
    pair.settle()
    session = pair.dialer.session
    pair.now += PING_S
    session.tick(pair.now)
    assert pair.dialer.connection is not None
    assert pair.dialer.connection.waiting_bytes > 0
    pair.settle()
    pair.now += SILENCE_S
    with pytest.raises(Refusal, match="silent for 25 s"):
        session.tick(pair.now)


def test_lines_do_not_wait_behind_a_large_file() -> None:
    pair = Pair()
    send_file(pair.dialer, "f", b"x" * 100_000)
    pair.dial()
    for _ in range(8):
        for side in pair.both:
            pair.write(side, 1000)
            pair.read(pair.other(side), 1000)
    pair.dialer.session.send_line(b"heartbeat")
    before = pair.dialer.sent_bytes
    while not pair.acceptor.lines:
        for side in pair.both:
            pair.write(side, 100)
            pair.read(pair.other(side), 100)

    assert pair.dialer.sent_bytes - before < 3000
    assert "f" not in pair.acceptor.storage.files


def test_a_line_above_the_limit_is_refused_by_its_sender() -> None:
    with pytest.raises(ValueError, match="exceeds the limit"):
        Session(MemoryStorage()).send_line(b"x" * (BODY_MAX + 1))


@pytest.mark.parametrize("path", ["a\0b", "a\udc80", "x" * 2000])
def test_path_too_long_for_a_frame_is_refused(path: str) -> None:
    session = Session(MemoryStorage())
    with pytest.raises(PathRefused):
        session.send_file(path, BytesSource(b"x"), hash_of(b"x"))
    with pytest.raises(PathRefused):
        session.send_stream(path, BytesSource(b"x"))
