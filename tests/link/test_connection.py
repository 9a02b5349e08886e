"""Handshake and tags: only a peer that knows the job's token is heard, and only what it sent in this connection."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from jupyter_dlaas.runtime.link.connection import Connection, Endpoint
from jupyter_dlaas.runtime.link.frames import (
    BODY_MAX,
    HEADER_MAX,
    KINDS,
    PREFIX,
    Data,
    Hello,
    Line,
    Open,
    Ping,
    Refusal,
    Resume,
    pack,
    parse,
)
from jupyter_dlaas.runtime.link.session import Session
from tests.link.pairs import TOKEN, MemoryStorage, endpoint, proven_pair, shake_hands

EXAMPLES = 10_000
SEED = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))


def dialer(**changes: object) -> Connection:
    nonce = changes.pop("nonce", b"d" * 32)
    return Connection(endpoint("agent", **changes), is_dialer=True, nonce=nonce)  # type: ignore[arg-type]


def acceptor(*, epoch_min: int = 0, **changes: object) -> Connection:
    nonce = changes.pop("nonce", b"a" * 32)
    me = endpoint("guardian", **changes)  # type: ignore[arg-type]
    return Connection(me, is_dialer=False, nonce=nonce, epoch_min=epoch_min)  # type: ignore[arg-type]


def test_both_sides_prove_the_token_which_never_travels() -> None:
    one, two = dialer(), acceptor()
    wire = b""
    for _ in range(3):
        for sender, receiver in ((one, two), (two, one)):
            data = sender.take(1 << 20)
            wire += data
            receiver.receive(data)

    assert one.is_proven
    assert two.is_proven
    assert TOKEN not in wire
    assert TOKEN.hex().encode() not in wire


def test_an_acceptor_says_nothing_before_the_hello() -> None:
    assert acceptor().take(1 << 20) == b""


def test_another_token_is_refused_by_both_sides() -> None:
    one, two = dialer(token=b"x" * 32), acceptor()
    two.receive(one.take(1 << 20))
    answer = two.take(1 << 20)
    with pytest.raises(Refusal, match="does not prove the job's token"):
        one.receive(answer)
    assert not one.is_proven

    stolen = dialer(token=b"x" * 32, nonce=b"e" * 32)
    stolen.receive(answer[: PREFIX.size + sum(PREFIX.unpack_from(answer))])  # the hello without the proof
    impostor = stolen.take(1 << 20)
    two = acceptor()
    with pytest.raises(Refusal, match="does not prove the job's token"):
        two.receive(impostor)
    assert not two.is_proven


def test_a_replayed_connection_is_refused() -> None:
    one, two = dialer(), acceptor()
    recorded = one.take(1 << 20)
    two.receive(recorded)
    one.receive(two.take(1 << 20))
    recorded += one.take(1 << 20)
    two.receive(recorded[-1:])

    with pytest.raises(Refusal, match="replayed connection"):
        acceptor(nonce=b"b" * 32).receive(recorded)


def test_a_reflected_hello_is_refused() -> None:
    one = dialer()
    with pytest.raises(Refusal, match="reflects"):
        one.receive(one.take(1 << 20))


def test_frames_of_one_direction_prove_nothing_in_the_other() -> None:
    one, two = proven_pair()
    one.send(Ping())
    with pytest.raises(Refusal, match="tag is wrong"):
        one.receive(one.take(1 << 20))
    assert two.is_proven


def test_another_job_is_named_in_the_refusal() -> None:
    with pytest.raises(Refusal, match="belongs to job 'b-2', not to 'a-1'"):
        acceptor().receive(dialer(job="b-2").take(1 << 20))


def test_an_older_guardian_is_refused() -> None:
    agent = Connection(endpoint("agent"), is_dialer=True, nonce=b"d" * 32, epoch_min=3)
    former = acceptor(epoch=2)
    former.receive(agent.take(1 << 20))
    with pytest.raises(Refusal, match="of epoch 2; epoch 3 was seen"):
        agent.receive(former.take(1 << 20))


def test_another_version_is_refused() -> None:
    hello = Hello(version=9, job="a-1", name="agent", session="0" * 32, epoch=0, nonce="1" * 64)
    with pytest.raises(Refusal, match="version 9"):
        acceptor().receive(pack(hello))


def test_a_short_token_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Endpoint(job="a-1", name="agent", token=b"short", session="0" * 32)


def test_an_endpoint_does_not_print_its_token() -> None:
    assert TOKEN.hex() not in repr(endpoint("agent"))
    assert repr(TOKEN) not in repr(endpoint("agent"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frames: [frames[0], frames[0]],
        lambda frames: [frames[1], frames[0]],
        lambda frames: [frames[1]],
        lambda frames: [frames[0][:-1] + bytes([frames[0][-1] ^ 1])],
        lambda frames: [frames[0].replace(b"1", b"2", 1)],
    ],
    ids=["repeated", "reordered", "left out", "tag changed", "content changed"],
)
def test_tampered_frames_are_refused(spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    one, two = proven_pair()
    frames = []
    for number in (1, 2):
        one.send(Line(number=number), b"text")
        frames.append(one.take(1 << 20))
    with pytest.raises(Refusal, match="tag is wrong"):
        two.receive(b"".join(spoil(frames)))


@pytest.mark.parametrize(
    ("prefix", "is_proven"),
    [
        (PREFIX.pack(HEADER_MAX + 1, 0), True),
        (PREFIX.pack(10, BODY_MAX + 1), True),
        (PREFIX.pack(5000, 0), False),
        (PREFIX.pack(100, 1), False),
        (b"GET / HTTP/1.1\r\n", False),
    ],
)
def test_frames_too_long_are_refused_by_their_lengths(prefix: bytes, is_proven: bool) -> None:
    connection = proven_pair()[1] if is_proven else acceptor()
    with pytest.raises(Refusal, match="too long"):
        connection.receive(prefix)


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 10_000, "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "must be an object"),
        (b'{"kind":[]}', "unknown kind list"),
        (b'{"kind":"line"}', "line.number: is missing"),
        (b'{"kind":"line","number":-1}', "line.number"),
        (b'{"kind":"line","number":true}', "line.number"),
        (b'{"kind":"line","number":1e400}', "line.number"),
        (b'{"kind":"offer","transfer":1,"path":"x","size":1,"sha256":"../"}', "offer.sha256"),
        (b'{"kind":"open","transfer":1,"path":"a\\u0000b"}', "zero byte"),
    ],
)
def test_malformed_headers_are_refused(header: bytes, what: str) -> None:
    with pytest.raises(Refusal, match=what.replace("[", r"\[")):
        parse(header)


def test_an_unknown_field_is_ignored() -> None:
    assert parse(b'{"kind":"ping","since":"a later version"}') == Ping()


# -- fuzzing -----------------------------------------------------------------------------------------------------------


def mutated(data: bytes, choice: random.Random) -> bytes:
    """Change, remove or insert some bytes."""
    changed = bytearray(data)
    for _ in range(choice.randint(1, 4)):
        at = choice.randrange(len(changed) + 1)
        match choice.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([choice.randrange(256)])
            case 1:
                del changed[at : at + choice.randint(1, 8)]
            case 2:
                changed[at:at] = choice.randbytes(choice.randint(1, 8))
            case _:
                changed[at:at] = changed[: choice.randint(0, 64)]
    return bytes(changed)


def random_fields(choice: random.Random) -> bytes:
    """Draw a header of a known kind with fields of any kind."""
    values = ["0", "1", "2", "-1", "7", "1e9", "null", "true", '"x"', '"../x"', f'"{"0" * 64}"', "[]", "{}"]
    names = ["transfer", "path", "offset", "size", "sha256", "number", "lines", "reason", "is_executable", "nonce"]
    fields = [f'"{name}":{choice.choice(values)}' for name in choice.sample(names, choice.randint(0, len(names)))]
    return ("{" + ",".join([f'"kind":"{choice.choice(sorted(KINDS))}"', *fields]) + "}").encode()


def send_raw(connection: Connection, header: bytes, body: bytes) -> None:
    """Send a frame of any content with a valid tag."""
    connection.send_packed(PREFIX.pack(len(header), len(body)) + header + body)


def test_random_bytes_before_the_proof_are_refused_or_ignored() -> None:
    choice = random.Random(SEED)
    recorded = dialer().take(1 << 20)
    for number in range(EXAMPLES // 2):
        connection = acceptor()
        data = choice.randbytes(choice.randint(0, 200)) if number % 4 == 0 else mutated(recorded, choice)
        with suppress(Refusal):
            connection.receive(data + choice.randbytes(choice.randint(0, 100)))
        assert not connection.is_proven, f"FUZZ_SEED={SEED}"


def test_a_proven_peer_cannot_break_a_session_with_any_frames() -> None:
    """A faulty peer of the same job: its frames have valid tags and any content."""
    choice = random.Random(SEED)
    samples = [
        pack(record, body)[PREFIX.size :]
        for record, body in (
            (Resume(lines=0), b""),
            (Line(number=1), b""),
            (Open(transfer=1, path="log"), b""),
            (Data(transfer=1, offset=0), b""),
        )
    ]
    refused = 0
    for _ in range(EXAMPLES // 2):
        storage = MemoryStorage()
        session = Session(storage)
        me, peer = proven_pair()
        session.attach(me, 0.0)
        session.send_line(b"x")
        peer.send(Resume(lines=0))
        for _ in range(choice.randint(1, 6)):
            header = random_fields(choice) if choice.randrange(3) else mutated(choice.choice(samples), choice)
            send_raw(peer, header, choice.randbytes(choice.choice([0, 0, 1, 50])))
        try:
            session.receive(me.receive(peer.take(1 << 20)), 0.0)
            session.produce(0.0)
        except Refusal:
            refused += 1
        assert all(".." not in path for path in (*storage.streams, *storage.files)), f"FUZZ_SEED={SEED}"
    assert refused > EXAMPLES // 10


def test_a_hello_decides_nothing_without_its_proof() -> None:
    one, two = dialer(), acceptor()
    two.receive(one.take(1 << 20))
    assert two.peer is not None
    assert not two.is_proven
    shake_hands(dialer(), acceptor())
